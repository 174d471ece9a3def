"""CARE's interaction: what joins local with global features, and both with the memory."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from backbone.site import Grid
from backbone.tokens import DepthwiseConvOfAll


class Affine(nn.Module):
    """A scale and a shift per channel: a batch norm whose statistics are frozen into it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, u: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        return u * self.weight + self.bias


def _layer_norm(dim: int) -> nn.Module:
    return nn.LayerNorm(dim, eps=1e-6)


def _no_norm(dim: int) -> nn.Module:
    return nn.Identity()


NORMS = {"layer": _layer_norm, "affine": Affine, "none": _no_norm}


class Interaction(nn.Module):
    """``u + fc2(conv(GELU(fc1(norm(u)))))`` with a 3x3 depthwise convolution.

    The GELU is the exact one. A prefix token is convolved as an image of one cell. Without
    ``residual`` the leading ``u`` is left out.
    """

    def __init__(self, dim: int, ratio: int, norm: str, residual: bool = True) -> None:
        super().__init__()
        self.residual = residual
        self.norm = NORMS[norm](dim)
        self.fc1 = nn.Linear(dim, ratio * dim)
        self.conv = DepthwiseConvOfAll(ratio * dim, 3)
        self.fc2 = nn.Linear(ratio * dim, dim)

    def forward(
        self, u: Float[Tensor, "batch tokens dim"], grid: Grid, prefix: int
    ) -> Float[Tensor, "batch tokens dim"]:
        hidden = F.gelu(self.fc1(self.norm(u)))  # batch tokens ratio*dim
        change = self.fc2(self.conv(hidden, grid, prefix))
        return u + change if self.residual else change

    def dense_macs(self, num_tokens: int) -> int:
        return num_tokens * (self.fc1.weight.numel() + self.fc2.weight.numel())
