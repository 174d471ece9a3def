"""Pairs of heads whose maps are subtracted."""

import pytest
import torch
import torch.nn.functional as F

from backbone.contrast import lambda_init
from backbone.pairs import PairedAttention, choose_num_pairs
from backbone.site import AttentionSite
from backbone.tokens import merge_heads, split_heads


def _site(num_heads: int) -> AttentionSite:
    return AttentionSite(24, num_heads, (2, 3), 0)


def _paired(norm: bool) -> PairedAttention:
    return PairedAttention(2, 6, block_index=3, lambda_std=0.3, eps=1e-5, norm=norm).double()


def test_pairs_are_half_the_heads() -> None:
    assert choose_num_pairs(None, _site(4)) == 2
    assert choose_num_pairs(3, _site(3)) == 3


@pytest.mark.parametrize(
    ("num_pairs", "num_heads", "message"),
    [(None, 3, "odd"), (5, 4, "not divisible"), (24, 4, "not divisible"), (0, 4, "not divisible")],
)
def test_heads_that_form_no_pairs_are_refused(
    num_pairs: int | None, num_heads: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        choose_num_pairs(num_pairs, _site(num_heads))


@pytest.mark.parametrize("norm", [True, False])
def test_difference_is_that_of_the_maps(norm: bool) -> None:
    heads = _paired(norm)
    q, k, v = torch.randn(3, 2, 5, 24, dtype=torch.float64)
    slices = [split_heads(x, 4) for x in (q, k)]
    maps = torch.softmax(slices[0] @ slices[1].mT * 6**-0.5, dim=-1)  # batch slices queries keys
    signed = maps[:, 0::2] - heads.lambda_weights() * maps[:, 1::2]
    expected = signed @ split_heads(v, 2)
    if norm:
        scale = (expected.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
        expected = (1 - lambda_init(3)) * expected / scale
    torch.testing.assert_close(heads(q, k, v), merge_heads(expected), rtol=0, atol=1e-13)


def test_equal_slices_leave_1_minus_lambda_of_softmax_attention() -> None:
    heads = _paired(norm=False)
    q, k, v = torch.randn(3, 2, 5, 24, dtype=torch.float64)
    q, k = (x.unflatten(-1, (4, 6))[:, :, [0, 0, 2, 2]].flatten(-2) for x in (q, k))
    once = [split_heads(x, 4)[:, 0::2] for x in (q, k)]
    softmax = merge_heads(F.scaled_dot_product_attention(*once, split_heads(v, 2)))
    expected = (1 - heads.lambda_weights()) * softmax
    torch.testing.assert_close(heads(q, k, v), expected, rtol=0, atol=1e-13)


def test_no_map_is_kept_for_the_backward_pass() -> None:
    heads = PairedAttention(2, 6, block_index=0, lambda_std=0.1, eps=1e-5)
    q, k, v = torch.randn(3, 1, 64, 24).requires_grad_()
    kept: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape) or x, lambda x: x):
        heads(q, k, v)
    assert kept
    assert all(shape[-2:] != (64, 64) for shape in kept if len(shape) > 1)


def test_difference_of_16_bit_reads_is_taken_in_float32() -> None:
    """Of equal streams a fifth is left; 16-bit products would leave several rounding errors."""
    heads = PairedAttention(1, 8, block_index=27, lambda_std=0.0, eps=1e-5, norm=False)
    q, k, v = torch.randn(3, 1, 16, 16).bfloat16()
    q, k = (x[..., :8].repeat(1, 1, 2) for x in (q, k))
    padded = [torch.cat([x[..., :8], torch.zeros(1, 16, 8)], dim=-1).bfloat16() for x in (q, k)]
    read = F.scaled_dot_product_attention(*padded, v, scale=8**-0.5).double()
    expected = (1 - heads.lambda_weights().double()) * read
    error = (heads(q, k, v).double() - expected).abs() / expected.abs()
    assert error.max() <= 2**-8
