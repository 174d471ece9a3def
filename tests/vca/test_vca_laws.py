"""Visual-Contrast Attention: identities that hold for any numbers, in float64."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backbone.contrast import lambda_init
from backbone.site import AttentionSite
from backbone.tokens import split_heads
from vca.attention import VCAConfig, VisualContrastAttention
from vca.contrast_tokens import SOURCES

DIM, NUM_HEADS = 12, 3
# Token grid, pooled grid, prefix tokens: even, uneven, more contrast tokens than cells, one each.
PLACES = [
    ((4, 4), (2, 2), 0),
    ((3, 5), (2, 2), 2),
    ((2, 2), (3, 3), 0),
    ((6, 4), (3, 1), 1),
    ((5, 1), (1, 1), 0),
]
Place = tuple[tuple[int, int], tuple[int, int], int]


def layer_at(place: Place, **switches: Any) -> VisualContrastAttention:
    """A float64 layer with random values wherever a new one has none."""
    grid, pooled_grid, _ = place
    config = VCAConfig(pooled_grid=pooled_grid, allow_more_tokens_than_grid=True, **switches)
    layer = VisualContrastAttention(config, AttentionSite(DIM, NUM_HEADS, grid, 4)).double()
    for name, parameter in layer.named_parameters():
        spread = 0.3 if "lambda" in name or "norm" in name else 0.5
        nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=spread)
    return layer


def tokens_at(place: Place) -> Tensor:
    (rows, columns), _, prefix = place
    return torch.randn(2, prefix + rows * columns, DIM, dtype=torch.float64)


def assert_same(a: Tensor, b: Tensor) -> None:
    assert ((a - b).norm() <= 1e-12 * b.norm()).item()


SWITCHES = [
    {
        "joint": joint,
        "value_conv": joint != stage1,
        "stage1_difference": stage1,
        "stage2_difference": stage2,
        "positive_source": positive,
        "negative_source": negative,
    }
    for joint, stage1, stage2 in product((False, True), repeat=3)
    for positive, negative in product(SOURCES, repeat=2)
]


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda s: "-".join(map(str, s.values())))
def test_fused_calls_compute_what_the_maps_say(switches: dict[str, Any]) -> None:
    for place in PLACES:
        layer, tokens = layer_at(place, **switches), tokens_at(place).requires_grad_()
        _, _, prefix = place
        inputs = {"tokens": tokens, **dict(layer.named_parameters())}
        outputs = layer(tokens, None, prefix), layer.maps(tokens, None, prefix).output
        assert_same(*outputs)
        cotangent = torch.randn_like(tokens)
        gradients = [torch.autograd.grad(out, inputs.values(), cotangent) for out in outputs]
        largest = max(gradient.norm() for gradient in gradients[1])
        for name, fused, mapped in zip(inputs, *gradients, strict=True):
            # Lambda has small gradients, sums of large terms, or none where one token is read.
            rounding = 1e-12 * mapped.norm() + 1e-14 * largest
            assert (fused - mapped).norm() <= rounding, name


@pytest.mark.parametrize("variant", ["released", "paper"])
def test_float32_is_close_to_the_maps(variant: str) -> None:
    layer = VisualContrastAttention(VCAConfig(variant=variant), AttentionSite(384, 6, (16, 16), 0))
    tokens = torch.randn(1, 256, 384)
    torch.testing.assert_close(layer(tokens), layer.maps(tokens).output, rtol=0, atol=1e-5)


@pytest.mark.parametrize("place", PLACES)
def test_rows_of_the_maps_sum_to_one(place: Place) -> None:
    tokens = tokens_at(place)
    for joint in (False, True):
        maps = layer_at(place, joint=joint).maps(tokens, None, place[2])
        positive, negative = maps.stage2.positive.sum(-1), maps.stage2.negative.sum(-1)
        ones = torch.ones_like(positive)
        for gathered in (maps.stage1.positive, maps.stage1.negative):
            torch.testing.assert_close(gathered.sum(-1), torch.ones(gathered.shape[:-1]).double())
        torch.testing.assert_close(positive + negative, ones if joint else 2 * ones)
        if not joint:
            signed = maps.stage2.signed.sum(-1)
            torch.testing.assert_close(signed, (1 - maps.stage2.weight).expand_as(signed))


@pytest.mark.parametrize("place", PLACES)
def test_joint_maps_are_separate_maps_weighted_by_the_positive_share(place: Place) -> None:
    separate, joint = layer_at(place, joint=False), layer_at(place, joint=True)
    joint.load_state_dict(separate.state_dict())
    tokens = tokens_at(place)
    apart = separate.maps(tokens, None, place[2]).stage2
    together = joint.maps(tokens, None, place[2]).stage2
    share = together.positive.sum(-1, keepdim=True)
    assert_same(share * apart.positive, together.positive)
    assert_same((1 - share) * apart.negative, together.negative)


def test_equal_banks_leave_only_the_sign_of_one_minus_lambda() -> None:
    place = PLACES[0]
    layer = layer_at(
        place, positive_source="pool", negative_source="pool", eps=1e-30, variant="paper"
    )
    tokens = tokens_at(place)
    before = layer(tokens)
    weights = layer.stage1.lambda_weights
    assert weights().item() < 1
    with torch.no_grad():
        weights.k1 -= 0.1 * weights.q1  # a smaller lambda
    assert_same(layer(tokens), before)


def mirrored(tokens: Tensor, grid: tuple[int, int], prefix: int = 0) -> Tensor:
    """The grid part flipped left to right."""
    flipped = tokens[:, prefix:].unflatten(1, grid).flip(2).flatten(1, 2)
    return torch.cat([tokens[:, :prefix], flipped], dim=1)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("variant", ["released", "paper"])
def test_a_mirrored_image_and_layer_give_the_mirrored_output(place: Place, variant: str) -> None:
    grid, pooled_grid, prefix = place
    layer, tokens = layer_at(place, variant=variant), tokens_at(place)
    mirror = layer_at(place, variant=variant)
    state = layer.state_dict()
    for name in ("contrast_tokens.positive", "contrast_tokens.negative"):
        state[name] = mirrored(state[name], pooled_grid)
    if "value_conv.weight" in state:
        state["value_conv.weight"] = state["value_conv.weight"].flip(-1)
    mirror.load_state_dict(state)
    out = mirror(mirrored(tokens, grid, prefix), None, prefix)
    assert_same(out, mirrored(layer(tokens, None, prefix), grid, prefix))
    if pooled_grid[1] > 1:  # the banks know left from right
        mirror.contrast_tokens.load_state_dict(layer.contrast_tokens.state_dict())
        assert not torch.allclose(mirror(mirrored(tokens, grid, prefix), None, prefix), out)


@pytest.mark.parametrize("variant", ["released", "paper"])
def test_heads_have_no_order(variant: str) -> None:
    place = PLACES[1]
    layer, tokens = layer_at(place, variant=variant), tokens_at(place)
    shuffled = layer_at(place, variant=variant)
    channels = torch.arange(DIM).unflatten(0, (NUM_HEADS, -1))[[2, 0, 1]].flatten()
    rows = torch.cat([channels + i * DIM for i in range(3)])
    state = layer.state_dict()
    for name, value in state.items():
        if name.startswith("qkv"):
            state[name] = value[rows]
        elif name.startswith("contrast_tokens"):
            state[name] = value[..., channels]
        elif name.startswith("value_conv"):
            state[name] = value[channels]
    state["proj.weight"] = state["proj.weight"][:, channels]
    shuffled.load_state_dict(state)
    assert_same(shuffled(tokens, None, 2), layer(tokens, None, 2))


def test_prefix_tokens_get_no_convolution() -> None:
    place = PLACES[1]
    plain, convolved = layer_at(place, value_conv=False), layer_at(place, value_conv=True)
    convolved.load_state_dict(plain.state_dict(), strict=False)
    tokens = tokens_at(place)
    without, with_conv = plain(tokens, None, 2), convolved(tokens, None, 2)
    assert torch.equal(without[:, :2], with_conv[:, :2])
    assert not torch.isclose(without[:, 2:], with_conv[:, 2:]).all(dim=-1).any()


def test_prefix_tokens_are_not_pooled() -> None:
    place = PLACES[1]
    layer, tokens = layer_at(place), tokens_at(place)
    changed = tokens.clone()
    changed[:, :2] += 1.0
    before, after = layer.maps(tokens, None, 2), layer.maps(changed, None, 2)
    assert torch.equal(before.positive, after.positive)
    assert not torch.equal(before.values, after.values)  # but they are read


def test_embeddings_alone_do_not_see_the_image() -> None:
    layer = layer_at(PLACES[0], positive_source="emb", negative_source="emb")
    one, other = (layer.maps(tokens_at(PLACES[0])) for _ in range(2))
    assert torch.equal(one.positive, other.positive)
    embedding = split_heads(layer.contrast_tokens.positive, NUM_HEADS)
    assert torch.equal(one.positive, embedding.expand_as(one.positive))


def test_contrast_tokens_stay_the_same_number_on_a_larger_grid() -> None:
    layer = layer_at(PLACES[0])
    maps = layer.maps(torch.randn(1, 8 * 9, DIM, dtype=torch.float64), (8, 9))
    assert maps.positive.shape[2] == 4
    assert maps.stage2.signed.shape == (1, NUM_HEADS, 72, 4)


@pytest.mark.parametrize("place", PLACES)
def test_both_stages_return_rows_of_the_same_size(place: Place) -> None:
    layer = VisualContrastAttention(
        VCAConfig(pooled_grid=place[1], allow_more_tokens_than_grid=True, affine=False, eps=1e-30),
        AttentionSite(DIM, NUM_HEADS, place[0], 4),
    ).double()
    maps = layer.maps(tokens_at(place), None, place[2])
    for reading in (maps.values, maps.read):
        size = reading.square().mean(-1).sqrt()
        torch.testing.assert_close(size, torch.full_like(size, 1 - lambda_init(4)))
