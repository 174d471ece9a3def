"""Root-mean-square normalisation, in float32 at least whatever the autocast setting.

Squares of 16-bit activations overflow or lose their small terms, so the norm widens its input,
and hands the wide result on: the caller rounds once, after its own factors.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def wide_dtype(x: Tensor) -> torch.dtype:
    """float32, or float64 where ``x`` is float64."""
    return torch.promote_types(x.dtype, torch.float32)


class RMSNorm(nn.Module):
    """``gain * u / sqrt(mean(u^2) + eps)`` over the last axis, in at least float32.

    The result keeps the wide dtype. Without ``affine`` there is no gain.
    Source: Zhang and Sennrich 2019.
    """

    def __init__(self, dim: int, eps: float, affine: bool = True) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim)) if affine else None

    def forward(self, u: Float[Tensor, "*axes dim"]) -> Float[Tensor, "*axes dim"]:
        dtype = wide_dtype(u)
        gain = None if self.weight is None else self.weight.to(dtype)
        return F.rms_norm(u.to(dtype), (self.dim,), gain, self.eps)


class HeadNorm(RMSNorm):
    """RMSNorm of every head of a (batch, tokens, dim) tensor, back in the dtype it came in.

    Heads are consecutive groups of ``head_dim`` channels and share one gain.
    """

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens dim"]:
        heads = tokens.unflatten(-1, (-1, self.dim))  # batch tokens heads head_dim
        return super().forward(heads).flatten(-2).to(tokens.dtype)


def query_key_norm(enabled: bool, head_dim: int) -> nn.Module:
    """What a layer applies to its queries (and another one to its keys) before the head split."""
    return HeadNorm(head_dim, eps=1e-6) if enabled else nn.Identity()
