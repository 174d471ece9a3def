"""What is reported of contrast layers is what the formulas say, taken another way."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from backbone.site import AttentionSite
from runtime.build import build_network
from runtime.contrast_report import has_contrast, lambdas, report_block, summary, table
from runtime.factory import ATTENTIONS
from runtime.training_config import TrainConfig
from vca.attention import VCAConfig, VisualContrastAttention

SITE = AttentionSite(dim=16, num_heads=2, grid=(4, 6), block_index=3)
STAGES = {
    "vca": ["stage1", "stage2"], "vca_split": ["stage1", "stage2"], "differential": ["heads"],
    "softmax": [], "agent": [], "care": [],
}  # fmt: skip


def layer(name: str, **settings: object) -> nn.Module:
    entry = ATTENTIONS[name]
    return entry.layer(entry.config(**settings), SITE)


def tokens() -> torch.Tensor:
    return torch.randn(3, 24, 16)


@pytest.mark.parametrize("name", list(ATTENTIONS))
def test_lambda_of_every_stage_is_the_formula(name: str) -> None:
    attention = layer(name)
    report = report_block(attention, (tokens(), (4, 6)))
    weights = {key: p.detach().double().numpy() for key, p in attention.named_parameters()}
    assert [stage for stage in report if "lambda" in report[stage]] == STAGES[name]
    for stage in STAGES[name]:
        q1, k1, q2, k2 = (weights[f"{stage}.lambda_weights.{v}"] for v in ("q1", "k1", "q2", "k2"))
        start = 0.8 - 0.6 * math.exp(-0.9)
        expected = np.exp(q1 @ k1) - np.exp(q2 @ k2) + start
        assert report[stage]["lambda"] == pytest.approx(expected, abs=1e-6)
        assert report[stage]["lambda_init"] == pytest.approx(start)


def test_weights_and_norms_are_those_of_the_maps() -> None:
    attention = layer("vca", qkv_bias=False)
    x = tokens()
    report = report_block(attention, (x, (4, 6)))
    maps = attention.maps(x, (4, 6))
    for name, stage, output in (
        ("stage1", maps.stage1, maps.values),
        ("stage2", maps.stage2, maps.read),
    ):
        signed = (stage.positive - report[name]["lambda"] * stage.negative).detach().numpy()
        assert report[name]["weight_min"] == pytest.approx(signed.min(), abs=1e-6)
        assert report[name]["weight_mean"] == pytest.approx(signed.mean(), abs=1e-6)
        assert report[name]["weight_max"] == pytest.approx(signed.max(), abs=1e-6)
        assert report[name]["output_rms"] == pytest.approx(output.square().mean().sqrt().item())
    v = (x @ attention.qkv.weight[32:].T).unflatten(-1, (2, 8)).transpose(1, 2)
    difference = maps.stage1.signed @ v  # batch heads contrast head_dim
    found = report["stage1"]
    assert found["difference_rms"] == pytest.approx(difference.square().mean().sqrt().item())
    unrelated = math.hypot(found["positive_rms"], found["lambda"] * found["negative_rms"])
    assert found["kept"] == pytest.approx(found["difference_rms"] / unrelated)


def test_the_share_is_the_mass_of_the_positive_bank_for_both_variants() -> None:
    released, paper = layer("vca", variant="released"), layer("vca", variant="paper")
    paper.load_state_dict(released.state_dict(), strict=False)
    inputs = tokens(), (4, 6)
    joint = released.maps(*inputs).stage2.positive.sum(dim=-1).mean().item()
    assert not math.isclose(joint, 0.5, abs_tol=0.01)
    for attention in (released, paper):
        share = report_block(attention, inputs)["stage2"]["positive_share"]
        assert share == pytest.approx(joint, abs=1e-6)


@pytest.mark.parametrize("variant", ["released", "paper"])
def test_equal_banks_cancel_as_lambda_says(variant: str) -> None:
    attention = layer("vca", variant=variant, positive_source="pool", negative_source="pool")
    report = report_block(attention, (tokens(), (4, 6)))
    assert report["stage2"]["positive_share"] == pytest.approx(0.5, abs=1e-6)
    for stage in ("stage1", "stage2"):
        weight = report[stage]["lambda"]
        expected = abs(1 - weight) / math.hypot(1, weight)
        assert report[stage]["kept"] == pytest.approx(expected, rel=1e-4)


def test_a_stage_without_difference_has_weights_but_nothing_to_cancel() -> None:
    attention = layer("vca", stage2_difference=False)
    report = report_block(attention, (tokens(), (4, 6)))
    assert {"lambda", "kept"} <= report["stage1"].keys()
    assert report["stage2"].keys() == {"weight_min", "weight_mean", "weight_max", "output_rms"}
    neither = VisualContrastAttention(
        VCAConfig(stage1_difference=False, stage2_difference=False), SITE
    )
    assert lambdas(neither) == {}


def test_lines_for_people_hold_the_extremes() -> None:
    blocks = {
        "block00": {
            "stage1": {"lambda": 0.25, "lambda_init": 0.2},
            "stage2": {"lambda": 0.125, "lambda_init": 0.2, "positive_share": 0.25},
        },
        "block01": {"stage2": {"lambda": 0.75, "lambda_init": 0.35, "positive_share": 0.75}},
    }
    assert summary(blocks) == (
        "lambda 0.125 to 0.750, mean 0.375, at most 0.400 from lambda_init; positive share 0.500"
    )
    lines = table(blocks).splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["block00", "stage1", "0.250"],
        ["block00", "stage2", "0.125"],
        ["block01", "stage2", "0.750"],
    ]
    assert lines[2].split()[-1] == "0.250" and lines[1].split()[-1] == "-"


def test_a_network_has_contrast_where_a_layer_has_a_lambda() -> None:
    assert [name for name in ATTENTIONS if lambdas(layer(name))] == [
        name for name in ATTENTIONS if STAGES[name]
    ]
    assert not has_contrast(_network("softmax"))
    assert has_contrast(_network("differential"))


def _network(attention: str) -> nn.Module:
    return build_network(TrainConfig(model="SiT-XXS/2", attention=attention, image_size=64))
