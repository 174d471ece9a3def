"""What enters the transformer: patches, their places, the time and the label."""

import math

import torch
from jaxtyping import Float, Float32, Float64, Int, Shaped
from torch import Tensor, nn

from backbone import initialisation
from backbone.site import Grid


class PatchEmbedding(nn.Module):
    """One token per ``patch_size`` x ``patch_size`` patch, row by row."""

    def __init__(self, in_channels: int, patch_size: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=patch_size)
        nn.init.xavier_uniform_(self.proj.weight.flatten(1))
        initialisation.zero_bias(self.proj)

    def forward(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch tokens dim"]:
        return self.proj(x).flatten(2).transpose(1, 2)


def position_table(
    grid: Grid, dim: int, device: torch.device | None = None
) -> Float64[Tensor, "tokens dim"]:
    """Fixed places of the tokens of a grid: sines then cosines of the column, then of the row.

    Row i, column j gets [sin(j w), cos(j w), sin(i w), cos(i w)] with w_k = 10000^(-k / q),
    k = 0 .. q - 1, q = dim / 4. Places count tokens from the corner, whatever the grid's size.
    Source: Peebles and Xie 2023 (their code), after Vaswani et al. 2017.
    """
    assert dim % 4 == 0
    quarter = dim // 4
    k = torch.arange(quarter, dtype=torch.float64, device=device)
    w = 10_000.0 ** (-k / quarter)
    rows, columns = (torch.arange(side, dtype=torch.float64, device=device) for side in grid)
    i, j = torch.meshgrid(rows, columns, indexing="ij")  # rows columns
    angles = (j.flatten()[:, None] * w, i.flatten()[:, None] * w)  # tokens quarter
    return torch.cat([wave(a) for a in angles for wave in (torch.sin, torch.cos)], dim=1)


def time_sinusoid(t: Shaped[Tensor, " batch"], dim: int) -> Float32[Tensor, "batch {dim}"]:
    """``[cos(t f), sin(t f)]`` with f_k = 10000^(-k / half), k = 0 .. half - 1, half = dim // 2.

    Always in float32: 16 bits do not tell neighbouring timesteps apart. An odd ``dim`` ends in a
    column of zeros.
    """
    half = dim // 2
    k = torch.arange(half, dtype=torch.float32, device=t.device)
    angles = t.float()[:, None] * torch.exp(-math.log(10_000) * k / half)
    zeros = angles.new_zeros(len(t), dim % 2)
    return torch.cat([torch.cos(angles), torch.sin(angles), zeros], dim=1)


class TimeEmbedding(nn.Module):
    """The sinusoid of ``time_scale * t``, through a small MLP that autocast leaves alone.

    The sinusoid was made for times of 0 to 1000. With t in [0, 1] and ``time_scale`` 1 most of
    its channels hardly move, which is how SiT was published; 1000 makes them informative.
    """

    frequency_dim = 256

    def __init__(self, dim: int, time_scale: float) -> None:
        super().__init__()
        self.time_scale = time_scale
        first, second = nn.Linear(self.frequency_dim, dim), nn.Linear(dim, dim)
        initialisation.normal(first)
        initialisation.normal(second)
        self.mlp = nn.Sequential(first, nn.SiLU(), second)

    def forward(self, t: Shaped[Tensor, " batch"]) -> Float[Tensor, "batch dim"]:
        sinusoid = time_sinusoid(t.float() * self.time_scale, self.frequency_dim)
        with torch.autocast(t.device.type, enabled=False):
            return self.mlp(sinusoid.to(next(self.mlp.parameters()).dtype))


class LabelEmbedding(nn.Module):
    """One vector per class and, where labels are dropped in training, one for "no label".

    The null label is ``num_classes``. Dropping is the caller's business.
    """

    def __init__(self, num_classes: int, has_null_label: bool, dim: int) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(num_classes + has_null_label, dim)
        nn.init.normal_(self.embedding_table.weight, std=0.02)

    def forward(self, y: Int[Tensor, " batch"]) -> Float[Tensor, "batch dim"]:
        return self.embedding_table(y)
