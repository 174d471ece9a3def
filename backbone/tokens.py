"""Tokens as heads and as a grid.

Tokens are (batch, prefix + rows * columns, dim): prefix tokens first, which have no place on the
grid, then the grid row by row. Heads are consecutive groups of channels.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from backbone.site import Grid


def split_heads(
    tokens: Float[Tensor, "batch tokens dim"], num_heads: int
) -> Float[Tensor, "batch {num_heads} tokens head_dim"]:
    return tokens.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(
    heads: Float[Tensor, "batch heads tokens head_dim"],
) -> Float[Tensor, "batch tokens dim"]:
    return heads.transpose(1, 2).flatten(-2)


def resolve_grid(num_tokens: int, grid: Grid | None, site_grid: Grid, prefix: int) -> Grid:
    """The grid of one call: ``grid``, or the site's where None is passed.

    Raises ValueError where ``prefix`` and the grid do not add up to the tokens there are.
    """
    rows, columns = site_grid if grid is None else grid
    if prefix < 0 or prefix + rows * columns != num_tokens:
        raise ValueError(
            f"{num_tokens} tokens do not form the expected grid: "
            f"{prefix} prefix tokens and {rows} x {columns} are {prefix + rows * columns}"
        )
    return rows, columns


class DepthwiseConv(nn.Module):
    """One odd, zero-padded kernel per channel, over the grid of the tokens.

    Prefix tokens have no neighbours and receive exactly zero. Weights and biases start uniform
    in +-1 / kernel_size, torch's default for a convolution of this shape.
    """

    def __init__(self, dim: int, kernel_size: int) -> None:
        super().__init__()
        assert kernel_size % 2 == 1
        self.padding = kernel_size // 2
        bound = 1 / kernel_size
        # Without the singleton axis that conv2d wants: its gradient would come in other strides,
        # which data-parallel training copies.
        self.weight = nn.Parameter(
            torch.empty(dim, kernel_size, kernel_size).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.empty(dim).uniform_(-bound, bound))

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid, prefix: int
    ) -> Float[Tensor, "batch tokens dim"]:
        image = tokens[:, prefix:].transpose(1, 2).unflatten(2, grid)  # batch dim rows columns
        dim = len(self.bias)
        image = F.conv2d(image, self.weight[:, None], self.bias, padding=self.padding, groups=dim)
        grid_tokens = image.flatten(2).transpose(1, 2)
        if prefix == 0:
            return grid_tokens
        prefix_tokens = self.convolve_prefix(tokens[:, :prefix]).to(grid_tokens.dtype)
        return torch.cat([prefix_tokens, grid_tokens], dim=1)

    def convolve_prefix(
        self, tokens: Float[Tensor, "batch prefix dim"]
    ) -> Float[Tensor, "batch prefix dim"]:
        return torch.zeros_like(tokens)

    def macs(self, num_tokens: int) -> int:
        """Multiply-accumulates for one image of ``num_tokens`` convolved tokens."""
        return self.weight.numel() * num_tokens


class DepthwiseConvOfAll(DepthwiseConv):
    """The same, with a prefix token taken as an image of one cell: centre tap and bias."""

    def convolve_prefix(
        self, tokens: Float[Tensor, "batch prefix dim"]
    ) -> Float[Tensor, "batch prefix dim"]:
        centre = self.weight[:, None, self.padding, self.padding, None]  # dim 1 1
        # A convolution, so that autocast treats these tokens as it treats the others.
        cells = F.conv1d(tokens.transpose(1, 2), centre, self.bias, groups=len(self.bias))
        return cells.transpose(1, 2)
