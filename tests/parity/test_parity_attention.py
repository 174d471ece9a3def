"""Attention layers against ``attention/``: cases, their slopes, pooling, lambda, counts.

A kind of layer is one entry of ``KINDS`` and one of ``COUNTS``.
"""

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from golden import Golden, norm_error
from torch import Tensor, nn

from backbone.contrast import LambdaWeights, lambda_init
from backbone.pooling import pool_grid
from backbone.site import AttentionSite
from backbone.softmax import SoftmaxAttention, SoftmaxConfig
from backbone.tokens import merge_heads, split_heads
from vca.attention import VCAConfig, VisualContrastAttention

Case = dict[str, Any]
Inputs = dict[str, Tensor]

# Compared in test_parity_baselines.py.
LEFT_OUT_KINDS = ("agent", "care", "diff", "vca_split")
LEFT_OUT_COUNTS = r"agent_n\d+|care_\d+_\d+|diff|diff_fused"


@dataclass(frozen=True)
class Kind:
    """How to build a case's layer, name its parameters, and compute what the file holds.

    ``parameters`` maps golden names to ours, as regular expressions. ``results`` returns "out",
    and whatever else it can, under the golden names.
    """

    build: Callable[[Case], nn.Module]
    parameters: dict[str, str]
    results: Callable[[nn.Module, Inputs, Case], dict[str, Tensor]]


def site_of(case: Case) -> AttentionSite:
    return AttentionSite(case["dim"], case["heads"], tuple(case["grid"]), case.get("depth", 0))


def call(layer: nn.Module, x: Tensor, case: Case) -> Tensor:
    return layer(x, tuple(case["grid"]), case.get("prefix", 0))


def input_of(module: nn.Module, run: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """The result of ``run``, and the input that it gives ``module``."""
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    result = run()
    handle.remove()
    return result, seen[0]


def softmax_layer(case: Case) -> nn.Module:
    return SoftmaxAttention(SoftmaxConfig(), site_of(case))


def softmax_results(layer: SoftmaxAttention, inputs: Inputs, case: Case) -> dict[str, Tensor]:
    out, core = input_of(layer.proj, lambda: call(layer, inputs["x"], case))
    return {"out": out, "core": core}


VCA_SWITCHES = {
    "joint": "joint",
    "dwc": "value_conv",
    "diff1": "stage1_difference",
    "diff2": "stage2_difference",
    "pos_source": "positive_source",
    "neg_source": "negative_source",
    "eps": "eps",
}


def vca_config(variant: str, pooled_grid: tuple[int, int], **switches: Any) -> VCAConfig:
    """``variant`` is "paper" or "released", with "+dwc" or "-dwc" for the convolution."""
    name, sign, _ = re.fullmatch(r"(\w+?)(?:([+-])(dwc))?", variant).groups()
    if sign:
        switches = {"dwc": sign == "+", **switches}
    return VCAConfig(
        variant=name,
        pooled_grid=pooled_grid,
        allow_more_tokens_than_grid=True,
        **{VCA_SWITCHES[key]: value for key, value in switches.items()},
    )


def vca_layer(case: Case) -> nn.Module:
    config = vca_config(case["variant"], tuple(case["pool"]), **case.get("switches", {}))
    return VisualContrastAttention(config, site_of(case))


def vca_results(layer: VisualContrastAttention, inputs: Inputs, case: Case) -> dict[str, Tensor]:
    x, grid, prefix = inputs["x"], tuple(case["grid"]), case.get("prefix", 0)
    out = call(layer, x, case)
    maps = layer.maps(x, grid, prefix)
    q, k, v = layer.qkv(x).chunk(3, dim=-1)
    heads = {name: split_heads(z, case["heads"]) for name, z in (("q", q), ("k", k), ("v", v))}
    results = {
        **heads,
        "out": out,
        "out_fused": out,
        "pooled": pool_grid(q, grid, prefix, tuple(case["pool"])),
        "t_pos": maps.positive,
        "stage1_map_pos": maps.stage1.positive,
        "stage1_read_pos": maps.stage1.positive @ heads["v"],
        "stage1_diff": maps.stage1.signed @ heads["v"],
        "v_hat": maps.values,
        "stage2_map_pos": maps.stage2.positive,
        "stage2_signed": maps.stage2.signed,
        "stage2_read": maps.stage2.signed @ maps.values,
        "heads": merge_heads(maps.read),
    }
    optional = {
        "t_neg": maps.negative,
        "stage1_map_neg": maps.stage1.negative,
        "lambda1": maps.stage1.weight,
        "stage2_map_neg": maps.stage2.negative,
        "lambda2": maps.stage2.weight,
    }
    results |= {name: value for name, value in optional.items() if value is not None}
    if maps.negative is None:  # a bank that nothing reads, which the oracle pools all the same
        results["t_neg"] = split_heads(results["pooled"], case["heads"])
    if maps.stage1.negative is not None:
        results["stage1_read_neg"] = maps.stage1.negative @ heads["v"]
    if layer.value_conv is not None:
        results["dwc"] = layer.value_conv(v, grid, prefix)
    return results


LINEAR_NAMES = {r"((qkv|proj)\.(weight|bias))": r"\1"}

KINDS = {
    "mhsa": Kind(softmax_layer, LINEAR_NAMES, softmax_results),
    "vca": Kind(
        vca_layer,
        LINEAR_NAMES
        | {
            r"e_pos": r"contrast_tokens.positive",
            r"e_neg": r"contrast_tokens.negative",
            r"norm(\d)\.weight": r"stage\1.norm.weight",
            r"l([qk]\d)_(\d)": r"stage\2.lambda_weights.\1",
            r"dwc\.(weight|bias)": r"value_conv.\1",
        },
        vca_results,
    ),
}


def our_name(kind: Kind, golden_name: str) -> str:
    for pattern, name in kind.parameters.items():
        if match := re.fullmatch(pattern, golden_name):
            return match.expand(name)
    raise KeyError(golden_name)


def load(
    golden: Golden, case: Case, dtype: torch.dtype
) -> tuple[nn.Module, Inputs, dict[str, np.ndarray]]:
    """The case's layer with the golden parameters, its inputs, and the arrays of its file."""
    arrays = golden.npz(f"attention/{case['file']}")
    kind = KINDS[case["kind"]]
    layer = kind.build(case).to(dtype)
    state = {
        our_name(kind, key.removeprefix("param/")): torch.from_numpy(value).to(dtype)
        for key, value in arrays.items()
        if key.startswith("param/")
    }
    layer.load_state_dict(state)
    inputs = {
        key.removeprefix("in/"): torch.from_numpy(value).to(dtype)
        for key, value in arrays.items()
        if key.startswith("in/")
    }
    return layer, inputs, arrays


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    golden = Golden.of(metafunc.config)
    cases = [c for c in golden.json("attention/cases.json") if c["kind"] in KINDS]
    cases = [c for c in cases if golden.has(f"attention/{c['file']}")]
    if "graded" in metafunc.fixturenames:
        cases = [c for c in cases if c.get("grad")]
        metafunc.parametrize("graded", cases, ids=lambda case: case["tag"])
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", cases, ids=lambda case: case["tag"])
    if "counts_row" in metafunc.fixturenames:
        rows = golden.json("attention/counts.json")
        metafunc.parametrize("counts_row", rows, ids=lambda row: row["model"])


def test_every_kind_is_compared_or_named_as_left_out(golden: Golden) -> None:
    kinds = {case["kind"] for case in golden.json("attention/cases.json")}
    assert kinds <= set(KINDS) | set(LEFT_OUT_KINDS)
    assert not set(KINDS) & set(LEFT_OUT_KINDS)


def test_float64(golden: Golden, case: Case) -> None:
    layer, inputs, arrays = load(golden, case, torch.float64)
    results = KINDS[case["kind"]].results(layer, inputs, case)
    stored = {key.removeprefix("res/") for key in arrays if key.startswith("res/")}
    assert stored <= set(results)
    for name in stored:
        assert norm_error(results[name], arrays[f"res/{name}"]) < 1e-12, name


def test_float32(golden: Golden, case: Case) -> None:
    layer, inputs, arrays = load(golden, case, torch.float32)
    out = KINDS[case["kind"]].results(layer, inputs, case)["out"]
    assert norm_error(out, arrays["res/out"]) < (1e-4 if has_large_logits(case) else 1e-5)


def has_large_logits(case: Case) -> bool:
    return case.get("x_scale", 1) >= 10


def test_slopes(golden: Golden, graded: Case) -> None:
    layer, inputs, arrays = load(golden, graded, torch.float64)
    kind = KINDS[graded["kind"]]
    for value in inputs.values():
        value.requires_grad_()
    out = kind.results(layer, inputs, graded)["out"]
    terms = out * torch.from_numpy(arrays["cotangent"])
    terms.sum().backward()
    # The stored slopes are central differences of this sum, and share its rounding.
    rounding = 1e-9 * terms.abs().sum().item()
    tolerance = 1e-4 if has_large_logits(graded) else 1e-6  # sharp softmaxes curve
    parameters = dict(layer.named_parameters())
    for key in (key for key in arrays if key.startswith("slope/")):
        name = key.removeprefix("slope/")
        ours = inputs[name] if name in inputs else parameters[our_name(kind, name)]
        source = f"in/{name}" if name in inputs else f"param/{name}"
        direction = draw(f"{graded['tag']}/{name}#direction", arrays[source].shape)
        slope = (ours.grad.numpy().reshape(direction.shape) * direction).sum()
        # A slope may be near zero by chance; the gradient's length is what it scales with.
        scale = max(abs(arrays[key]), ours.grad.norm().item())
        assert abs(slope - arrays[key]) < tolerance * scale + rounding, name


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The recipe of the golden numbers."""
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    return generator.standard_normal(shape)


def test_pooling(golden: Golden) -> None:
    for path in sorted((golden.path / "attention").glob("*_pooling.npz")):
        arrays = golden.npz(f"attention/{path.name}")
        for name in (key.removeprefix("in/") for key in arrays if key.startswith("in/")):
            grid, pooled_grid = (tuple(map(int, s.split("x"))) for s in name.split("_to_"))
            tokens = torch.from_numpy(arrays[f"in/{name}"]).flatten(1, 2)
            pooled = pool_grid(tokens, grid, 0, pooled_grid).unflatten(1, pooled_grid)
            assert norm_error(pooled, arrays[f"out/{name}"]) < 1e-12, name


def test_lambda(golden: Golden) -> None:
    for path in sorted((golden.path / "attention").glob("*_lambda.npz")):
        arrays = golden.npz(f"attention/{path.name}")
        starts = np.array([lambda_init(i) for i in range(len(arrays["lambda_init"]))])
        assert norm_error(starts, arrays["lambda_init"]) < 1e-12
        vectors = {name: torch.from_numpy(arrays[name]) for name in ("q1", "k1", "q2", "k2")}
        for i, expected in enumerate(arrays["lambda"]):
            weights = LambdaWeights(vectors["q1"].shape[1], i, std=0.0).double()
            weights.load_state_dict({name: rows[i] for name, rows in vectors.items()})
            assert norm_error(weights(), expected) < 1e-12


def count_softmax(site: AttentionSite) -> nn.Module:
    return SoftmaxAttention(SoftmaxConfig(), site)


def count_vca(site: AttentionSite, variant: str, num_contrast_tokens: str) -> nn.Module:
    # Counts depend on the number of contrast tokens, not on the shape of their grid.
    config = vca_config(variant, (1, int(num_contrast_tokens)))
    return VisualContrastAttention(config, site)


COUNTS: dict[str, Callable[..., nn.Module]] = {
    r"mhsa": count_softmax,
    r"vca_(paper|released)(?:_fused)?_n(\d+)": count_vca,
}


def test_counts(counts_row: dict[str, Any]) -> None:
    for name, expected in counts_row.items():
        if not isinstance(expected, dict) or re.fullmatch(LEFT_OUT_COUNTS, name):
            continue
        found = [(re.fullmatch(p, name), build) for p, build in COUNTS.items()]
        match, build = next((m, build) for m, build in found if m)
        site = AttentionSite(counts_row["dim"], counts_row["heads"], (1, counts_row["tokens"]), 0)
        with torch.device("meta"):
            layer = build(site, *match.groups())
            baseline = count_softmax(site)
        params = sum(prod(p.shape) for p in layer.parameters())
        macs = layer.macs(counts_row["tokens"])
        fused = "_fused" in name
        ours = {
            "params": params,
            "extra_params": params - sum(prod(p.shape) for p in baseline.parameters()),
            "macs": macs.fused_total if fused else macs.total,
            "core_macs": macs.fused_core if fused else macs.core,
        }
        assert {key: ours[key] for key in expected} == expected, name
