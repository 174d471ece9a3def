"""Adaptive average pooling of a token grid, and the rule for the pooled grid's size."""

import torch
from jaxtyping import Float
from torch import Tensor

from backbone.norms import wide_dtype
from backbone.site import Grid


def choose_pooled_grid(
    pooled_grid: Grid | None, grid: Grid, allow_more_tokens_than_grid: bool = False
) -> Grid:
    """``pooled_grid``, checked; for None half of ``grid`` per side, at least 1 and at most 8.

    Half per side is what keeps two-stage attention no dearer than softmax attention at every
    patch size, since it needs fewer than 2/7 of the tokens.
    """
    if pooled_grid is None:
        rows, columns = grid
        return max(1, min(rows // 2, 8)), max(1, min(columns // 2, 8))
    if min(pooled_grid) < 1:
        raise ValueError(f"pooled_grid {pooled_grid} has a side below 1")
    check_pooled_grid(pooled_grid, grid, allow_more_tokens_than_grid)
    return pooled_grid


def check_pooled_grid(pooled_grid: Grid, grid: Grid, allow_more_tokens_than_grid: bool) -> None:
    """Raises ValueError where a side of the pooled grid exceeds the grid's, unless allowed."""
    larger = pooled_grid[0] > grid[0] or pooled_grid[1] > grid[1]
    if larger and not allow_more_tokens_than_grid:
        raise ValueError(
            f"pooled_grid {pooled_grid} is larger than the token grid {grid}; "
            "allow_more_tokens_than_grid permits that"
        )


def pool_grid(
    tokens: Float[Tensor, "batch tokens dim"], grid: Grid, prefix: int, pooled_grid: Grid
) -> Float[Tensor, "batch pooled dim"]:
    """Means over boxes of the grid part, row by row; prefix tokens are left out.

    Of ``size`` cells, box i of ``bins`` covers floor(i size / bins) up to, without it,
    ceil((i + 1) size / bins): boxes overlap where bins does not divide size, and repeat cells
    where there are more bins than cells. Sums and result are at least float32.
    """
    image = tokens[:, prefix:].unflatten(1, grid)  # batch rows columns dim
    return _pool_axis(_pool_axis(image, 1, pooled_grid[0]), 2, pooled_grid[1]).flatten(1, 2)


def _pool_axis(x: Float[Tensor, "*axes"], axis: int, bins: int) -> Float[Tensor, "*pooled"]:
    # Plain means are deterministic on a GPU; the backward of torch's adaptive pooling is not.
    size, dtype = x.shape[axis], wide_dtype(x)
    if size % bins == 0:
        return x.unflatten(axis, (bins, size // bins)).mean(axis + 1, dtype=dtype)
    boxes = [(i * size // bins, -(-(i + 1) * size // bins)) for i in range(bins)]
    means = [x.narrow(axis, low, high - low).mean(axis, dtype=dtype) for low, high in boxes]
    return torch.stack(means, axis)
