"""Heads, grids, pooling and depthwise convolution of tokens."""

import pytest
import torch
import torch.nn.functional as F

from backbone.pooling import choose_pooled_grid, pool_grid
from backbone.tokens import (
    DepthwiseConv,
    DepthwiseConvOfAll,
    merge_heads,
    resolve_grid,
    split_heads,
)

GRIDS = [((4, 4), (2, 2)), ((16, 16), (7, 7)), ((3, 5), (2, 2)), ((2, 2), (3, 3)), ((1, 9), (1, 4))]


def test_merging_undoes_splitting() -> None:
    tokens = torch.randn(2, 5, 12)
    assert torch.equal(merge_heads(split_heads(tokens, 3)), tokens)
    assert torch.equal(split_heads(tokens, 3)[:, 1, :, 0], tokens[:, :, 4])


def test_grid_of_a_call_is_the_sites_unless_passed() -> None:
    assert resolve_grid(12, None, (3, 4), 0) == (3, 4)
    assert resolve_grid(12, (2, 5), (3, 4), 2) == (2, 5)


@pytest.mark.parametrize(
    ("num_tokens", "grid", "prefix"), [(11, None, 0), (12, (4, 4), 0), (12, None, 1)]
)
def test_tokens_that_form_no_grid_are_refused(
    num_tokens: int, grid: tuple[int, int] | None, prefix: int
) -> None:
    with pytest.raises(ValueError, match="do not form the expected grid"):
        resolve_grid(num_tokens, grid, (3, 4), prefix)


@pytest.mark.parametrize(("grid", "pooled_grid"), GRIDS)
@pytest.mark.parametrize("prefix", [0, 2])
def test_pooling_is_adaptive_average_pooling_of_the_grid(
    grid: tuple[int, int], pooled_grid: tuple[int, int], prefix: int
) -> None:
    tokens = torch.randn(2, prefix + grid[0] * grid[1], 3, dtype=torch.float64)
    image = tokens[:, prefix:].transpose(1, 2).unflatten(2, grid)
    expected = F.adaptive_avg_pool2d(image, pooled_grid).flatten(2).transpose(1, 2)
    torch.testing.assert_close(pool_grid(tokens, grid, prefix, pooled_grid), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_pooling_accumulates_in_float32(dtype: torch.dtype) -> None:
    tokens = torch.full((1, 1024, 1), 1000.0, dtype=dtype)
    pooled = pool_grid(tokens, (32, 32), 0, (1, 1))
    assert pooled.dtype == torch.float32
    assert pooled.item() == 1000.0


@pytest.mark.parametrize(
    ("grid", "expected"),
    [((16, 16), (8, 8)), ((8, 8), (4, 4)), ((4, 4), (2, 2)), ((64, 64), (8, 8)), ((1, 12), (1, 6))],
)
def test_pooled_grid_is_half_the_grid_but_at_most_8(
    grid: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert choose_pooled_grid(None, grid) == expected


def test_pooled_grid_larger_than_the_grid_needs_the_flag() -> None:
    with pytest.raises(ValueError, match="allow_more_tokens_than_grid"):
        choose_pooled_grid((2, 5), (4, 4))
    assert choose_pooled_grid((2, 5), (4, 4), allow_more_tokens_than_grid=True) == (2, 5)


@pytest.mark.parametrize("kernel_size", [3, 7])
def test_convolution_is_that_of_the_image(kernel_size: int) -> None:
    conv = DepthwiseConv(5, kernel_size)
    image = torch.randn(2, 5, 3, 4)
    expected = F.conv2d(image, conv.weight[:, None], conv.bias, padding=kernel_size // 2, groups=5)
    tokens = conv(image.flatten(2).transpose(1, 2), (3, 4), 0)
    torch.testing.assert_close(tokens, expected.flatten(2).transpose(1, 2))


def test_prefix_tokens_get_zero_or_count_as_single_cells() -> None:
    tokens = torch.randn(2, 2 + 12, 5)
    skipping = DepthwiseConv(5, 3)
    assert torch.equal(skipping(tokens, (3, 4), 2)[:, :2], torch.zeros(2, 2, 5))
    including = DepthwiseConvOfAll(5, 3)
    including.load_state_dict(skipping.state_dict())
    expected = tokens[:, :2] * including.weight[:, 1, 1] + including.bias
    torch.testing.assert_close(including(tokens, (3, 4), 2)[:, :2], expected)
    assert torch.equal(including(tokens, (3, 4), 2)[:, 2:], skipping(tokens, (3, 4), 2)[:, 2:])
