"""Settings of Visual-Contrast Attention: what exists, how it starts, what it refuses and costs."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from backbone.site import AttentionSite
from backbone.softmax import SoftmaxAttention, SoftmaxConfig
from benchmarks import measure
from vca.attention import VCAConfig, VisualContrastAttention

SITE = AttentionSite(24, 3, (6, 6), 2)
LAMBDA = {"q1", "k1", "q2", "k2"}


def layer(site: AttentionSite = SITE, **switches: Any) -> VisualContrastAttention:
    return VisualContrastAttention(VCAConfig(**switches), site)


def owned(**switches: Any) -> set[str]:
    """Names of the parameters beside those of softmax attention."""
    names = {name for name, _ in layer(**switches).named_parameters()}
    return names - {f"{part}.{kind}" for part in ("qkv", "proj") for kind in ("weight", "bias")}


def stage(index: int) -> set[str]:
    return {f"stage{index}.lambda_weights.{name}" for name in LAMBDA} | {
        f"stage{index}.norm.weight"
    }


EMBEDDINGS = {"contrast_tokens.positive", "contrast_tokens.negative"}
CONV = {"value_conv.weight", "value_conv.bias"}


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({}, EMBEDDINGS | stage(1) | stage(2) | CONV),
        ({"variant": "paper"}, EMBEDDINGS | stage(1) | stage(2)),
        ({"variant": "paper", "value_conv": True}, EMBEDDINGS | stage(1) | stage(2) | CONV),
        ({"value_conv": False}, EMBEDDINGS | stage(1) | stage(2)),
        ({"stage2_difference": False}, EMBEDDINGS | stage(1) | CONV),
        ({"stage1_difference": False}, EMBEDDINGS | stage(2) | CONV),
        (
            {"stage1_difference": False, "stage2_difference": False},
            {"contrast_tokens.positive"} | CONV,
        ),
        (
            {"positive_source": "pool"},
            EMBEDDINGS - {"contrast_tokens.positive"} | stage(1) | stage(2) | CONV,
        ),
        (
            {"positive_source": "pool", "negative_source": "pool", "affine": False},
            {n for n in stage(1) | stage(2) if "lambda" in n} | CONV,
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_only_parameters_that_are_read_exist(switches: dict[str, Any], expected: set[str]) -> None:
    assert owned(**switches) == expected


def test_switches_override_the_variant() -> None:
    assert VCAConfig().is_joint and VCAConfig().has_value_conv
    paper = VCAConfig(variant="paper")
    assert not paper.is_joint and not paper.has_value_conv
    mixed = VCAConfig(variant="paper", joint=True, value_conv=True)
    assert mixed.is_joint and mixed.has_value_conv


def test_usable_alone() -> None:
    alone = VisualContrastAttention(VCAConfig(), AttentionSite(384, 6, (16, 16), 0))
    assert alone.contrast_tokens.pooled_grid == (8, 8)
    tokens = torch.randn(1, 256, 384)
    assert alone(tokens).shape == tokens.shape


def test_initial_values() -> None:
    site = AttentionSite(384, 6, (16, 16), 0)
    fresh = layer(site, embedding_std=0.5, lambda_std=0.1)
    for bank in (fresh.contrast_tokens.positive, fresh.contrast_tokens.negative):
        assert bank.std().item() == pytest.approx(0.5, rel=0.02)
    for part in (fresh.stage1, fresh.stage2):
        vectors = torch.cat(list(part.lambda_weights.parameters()))
        assert vectors.std().item() == pytest.approx(0.1, rel=0.2)
        assert part.lambda_weights().item() == pytest.approx(0.2, abs=0.5)
        assert torch.equal(part.norm.weight, torch.ones(64))
    bound = fresh.value_conv.weight.abs().max().item()
    assert 0.98 / 3 < bound <= 1 / 3


def test_weights_of_softmax_attention_fit() -> None:
    softmax = SoftmaxAttention(SoftmaxConfig(), SITE)
    missing, unexpected = layer().load_state_dict(softmax.state_dict(), strict=False)
    assert unexpected == []
    assert not {"qkv.weight", "qkv.bias", "proj.weight", "proj.bias"} & set(missing)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "publised"}, "unknown variant 'publised'; there are: released, paper"),
        ({"positive_source": "both"}, "unknown positive_source 'both'; there are: pool, emb"),
        ({"negative_source": "none"}, "unknown negative_source 'none'"),
        ({"pooled_grid": (0, 4)}, "has a side below 1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer(**settings)


@pytest.mark.parametrize("pooled_grid", [(7, 2), (2, 7)])
def test_more_contrast_tokens_than_cells_need_the_flag(pooled_grid: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="larger than the token grid"):
        layer(pooled_grid=pooled_grid)
    allowed = layer(pooled_grid=pooled_grid, allow_more_tokens_than_grid=True)
    assert allowed(torch.randn(1, 36, 24)).isfinite().all()


def test_a_call_on_too_small_a_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="larger than the token grid"):
        layer(pooled_grid=(3, 3))(torch.randn(1, 2 * 8, 24), (2, 8))


def test_dropout_acts_in_training_only() -> None:
    dropping = layer(proj_drop=0.5)
    tokens = torch.randn(1, 36, 24)
    assert (dropping(tokens) == 0).float().mean().item() == pytest.approx(0.5, abs=0.15)
    assert dropping.eval()(tokens).all()


def saved_bytes(attention: nn.Module, num_tokens: int) -> int:
    """Bytes that a forward pass keeps for the backward pass, parameters left out."""
    tokens = torch.randn(1, num_tokens, attention.site.dim, requires_grad=True)
    return measure.saved_bytes(lambda: attention(tokens), attention)


def at_side(side: int, **switches: Any) -> VisualContrastAttention:
    return layer(AttentionSite(128, 2, (side, side), 0), pooled_grid=(8, 8), **switches)


@pytest.mark.parametrize("variant", ["released", "paper"])
def test_memory_grows_linearly_with_the_tokens(variant: str) -> None:
    few, some, many = (
        saved_bytes(at_side(side, variant=variant), side * side) for side in (16, 32, 64)
    )
    assert (many - some) / (some - few) == pytest.approx(4, rel=0.01)


# What a layer keeps for the backward pass, in units of what softmax attention keeps, by tokens.
LARGEST_MEMORY = {256: 1.7, 1024: 1.5}


@pytest.mark.parametrize("variant", ["released", "paper"])
@pytest.mark.parametrize("num_tokens", LARGEST_MEMORY)
def test_memory_is_a_small_multiple_of_that_of_softmax(variant: str, num_tokens: int) -> None:
    side = math.isqrt(num_tokens)
    site = AttentionSite(384, 6, (side, side), 0)
    softmax = saved_bytes(SoftmaxAttention(SoftmaxConfig(), site), num_tokens)
    ours = saved_bytes(layer(site, variant=variant), num_tokens)
    assert 1 < ours / softmax <= LARGEST_MEMORY[num_tokens]


@pytest.mark.parametrize(
    ("switches", "core", "fused_core", "conv"),
    [
        ({}, 7, 8, 9),
        ({"variant": "paper"}, 7, 8, 0),
        ({"stage1_difference": False}, 5, 6, 9),
        ({"stage2_difference": False}, 6, 6, 9),
        ({"stage1_difference": False, "stage2_difference": False}, 4, 4, 9),
    ],
)
def test_multiply_accumulates(
    switches: dict[str, Any], core: int, fused_core: int, conv: int
) -> None:
    macs = layer(**switches, pooled_grid=(2, 3)).macs(36 + 2, prefix=2)
    assert macs.dense == 4 * 38 * 24**2
    assert macs.core == core * 6 * 38 * 24
    assert macs.fused_core == fused_core * 6 * 38 * 24
    assert macs.convolution == conv * 36 * 24


def test_readings_of_16_bits_are_subtracted_in_float32() -> None:
    difference = layer().stage1
    positive, negative = torch.randn(2, 1, 3, 4, 8).bfloat16()
    negative = positive + 0.01 * negative  # nearly alike
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = difference(positive, negative)
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, difference(positive.float(), negative.float()))


def test_pooled_queries_of_16_bits_meet_embeddings_in_float32() -> None:
    contrast = layer(embedding_std=0.1).contrast_tokens
    queries = torch.randn(2, 36, 24).bfloat16()
    banks = contrast(queries, (6, 6), 0)
    assert banks.dtype == torch.bfloat16
    pooled = queries.float().unflatten(1, (3, 2, 3, 2)).mean((2, 4)).flatten(1, 2)
    exact = torch.cat([pooled + contrast.positive, pooled + contrast.negative], dim=1)
    assert torch.equal(banks, exact.bfloat16())
