"""Root-mean-square normalisation, in float32 at least whatever the autocast setting.

Squares of 16-bit activations overflow or lose their small terms, and two readings that are nearly
alike leave little but rounding behind when they are subtracted, which a norm would magnify. So the
norm widens what it reads, subtracts where there is something to subtract, and rounds once.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


def wide_dtype(x: Tensor) -> torch.dtype:
    """float32, or float64 where ``x`` is float64."""
    return torch.promote_types(x.dtype, torch.float32)


class RMSNorm(nn.Module):
    """``scale * gain * u / sqrt(mean(u^2) + eps)`` over the last axis, in at least float32.

    With a ``negative`` and its ``weight``, ``u - weight * negative`` is normed. The result has the
    wide dtype unless another is asked for. Without ``affine`` there is no gain.
    Source: Zhang and Sennrich 2019.
    """

    def __init__(self, dim: int, eps: float, affine: bool = True) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim)) if affine else None

    def forward(
        self,
        u: Float[Tensor, "*axes dim"],
        negative: Float[Tensor, "*axes dim"] | None = None,
        weight: Float[Tensor, ""] | None = None,
        *,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> Float[Tensor, "*axes dim"]:
        wide = wide_dtype(u)
        gain = u.new_ones((), dtype=wide) if self.weight is None else self.weight.to(wide)
        return _NormedDifference.apply(u, negative, weight, scale * gain, self.eps, dtype or wide)


class _NormedDifference(torch.autograd.Function):
    """``gain (u - weight negative) / rms``, which saves its inputs and computes the rest again.

    Attention keeps what it returned, so that saving the inputs of the norm costs no memory, while
    autograd would save the widened difference and its quotient by the mean square as well.
    """

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        negative: Tensor | None,
        weight: Tensor | None,
        gain: Tensor,
        eps: float,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.save_for_backward(u, negative, weight, gain)
        ctx.eps = eps
        difference = _difference(u, negative, weight)
        return (difference * _inverse_rms(difference, eps) * gain).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """With r = 1 / rms: d(u r)/du = r - u r^3 mean(u .), since dr/du_j = -r^3 u_j / dim."""
        u, negative, weight, gain = ctx.saved_tensors
        difference = _difference(u, negative, weight)
        inverse = _inverse_rms(difference, ctx.eps)
        grad = grad.to(difference.dtype)
        product = grad * difference
        learns = ctx.needs_input_grad[3]
        grad_gain = (product * inverse).sum_to_size(gain.shape) if learns else None
        along = (product * gain).mean(-1, keepdim=True) * inverse**3
        grad_difference = torch.addcmul(grad * gain * inverse, difference, along, value=-1)
        grad_u = grad_difference.to(u.dtype)
        if negative is None:
            return grad_u, None, None, grad_gain, None, None
        grad_weight = -(grad_difference * negative).sum()
        grad_negative = (-weight * grad_difference).to(negative.dtype)
        return grad_u, grad_negative, grad_weight, grad_gain, None, None


def _difference(u: Tensor, negative: Tensor | None, weight: Tensor | None) -> Tensor:
    wide = u.to(wide_dtype(u))
    if negative is None or weight is None:
        return wide
    return torch.addcmul(wide, negative.to(wide.dtype), weight, value=-1)


def _inverse_rms(u: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(u.square().mean(-1, keepdim=True) + eps)


class HeadNorm(RMSNorm):
    """RMSNorm of every head of a (batch, tokens, dim) tensor, back in the dtype it came in.

    Heads are consecutive groups of ``head_dim`` channels and share one gain.
    """

    def forward(  # type: ignore[override]
        self, tokens: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens dim"]:
        heads = tokens.unflatten(-1, (-1, self.dim))  # batch tokens heads head_dim
        return super().forward(heads, dtype=tokens.dtype).flatten(-2)


def query_key_norm(enabled: bool, head_dim: int) -> nn.Module:
    """What a layer applies to its queries (and another one to its keys) before the head split."""
    return HeadNorm(head_dim, eps=1e-6) if enabled else nn.Identity()
