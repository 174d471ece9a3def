"""Learned biases of agent attention for every pair of an agent and a token."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from backbone.norms import wide_dtype
from backbone.site import Grid

COARSE_GRID = (7, 7)  # of the published layer, whatever the token grid


class PositionBiases(nn.Module):
    """The additive masks of both stages: agents over tokens, and tokens over agents."""

    def __init__(self, num_heads: int, num_agents: int, grid: Grid, num_prefix: int) -> None:
        super().__init__()
        self.gather = PositionBias(num_heads, num_agents, grid, num_prefix)
        self.spread = PositionBias(num_heads, num_agents, grid, num_prefix)

    def forward(
        self, grid: Grid, prefix: int, dtype: torch.dtype
    ) -> tuple[Float[Tensor, "1 heads agents tokens"], Float[Tensor, "1 heads tokens agents"]]:
        gather = self.gather(grid, prefix).to(dtype).unsqueeze(0)
        spread = self.spread(grid, prefix).to(dtype).unsqueeze(0)
        return gather, spread.mT.contiguous()  # kernels want the rows of a mask contiguous


class PositionBias(nn.Module):
    """One coarse map per head and agent, resized to the grid, plus biases of rows and of columns.

    ``coarse`` is resized bilinearly; ``rows`` and ``columns`` are as long as the training grid
    and resized linearly for another one. ``num_prefix`` prefix tokens have biases of their own;
    without them prefix tokens have bias zero. Everything starts as a truncated normal with
    standard deviation 0.02. The result is at least float32.
    """

    def __init__(self, num_heads: int, num_agents: int, grid: Grid, num_prefix: int) -> None:
        super().__init__()
        heads = (num_heads, num_agents)
        self.coarse = nn.Parameter(torch.empty(*heads, *COARSE_GRID))
        self.rows = nn.Parameter(torch.empty(*heads, grid[0], 1))
        self.columns = nn.Parameter(torch.empty(*heads, 1, grid[1]))
        self.prefix = nn.Parameter(torch.empty(*heads, num_prefix)) if num_prefix else None
        for parameter in self.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, grid: Grid, prefix: int) -> Float[Tensor, "heads agents tokens"]:
        bias = resize(self.coarse, grid)
        bias = bias + resize(self.rows, (grid[0], 1)) + resize(self.columns, (1, grid[1]))
        bias = bias.flatten(2)  # heads agents rows*columns
        if self.prefix is None:
            return F.pad(bias, (prefix, 0))
        if prefix != self.prefix.shape[-1]:
            raise ValueError(
                f"{prefix} prefix tokens, but position biases for {self.prefix.shape[-1]}"
            )
        return torch.cat([self.prefix.to(bias.dtype), bias], dim=-1)


def resize(
    maps: Float[Tensor, "heads agents _ _"], grid: Grid
) -> Float[Tensor, "heads agents rows columns"]:
    """Bilinear interpolation between the centres of cells, constant beyond the outer centres."""
    # Two small products rather than torch's bilinear resize, whose backward is not
    # deterministic on a GPU.
    with torch.autocast(maps.device.type, enabled=False):
        maps = maps.to(wide_dtype(maps))
        rows = _interpolation(maps.shape[2], grid[0], maps)
        columns = _interpolation(maps.shape[3], grid[1], maps)
        return rows @ maps @ columns.mT


def _interpolation(source: int, target: int, like: Tensor) -> Float[Tensor, "{target} {source}"]:
    """The matrix that resizes a vector of length ``source`` linearly."""
    impulses = torch.eye(source, device=like.device, dtype=like.dtype).unsqueeze(0)
    return F.interpolate(impulses, size=target, mode="linear", align_corners=False)[0].mT
