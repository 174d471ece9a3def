"""Heads in pairs whose attention maps are subtracted: the core of differential attention.

The channels are cut into 2 ``num_pairs`` slices of width d for queries and keys; slices 2j and
2j + 1 belong to pair j, which owns one slice of width 2d of the values.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from backbone.contrast import LambdaWeights
from backbone.norms import RMSNorm, wide_dtype
from backbone.site import AttentionSite
from backbone.tokens import merge_heads, split_heads


def choose_num_pairs(num_pairs: int | None, site: AttentionSite) -> int:
    """``num_pairs``, checked; for None half the heads, so that d is the width of a head.

    Raises ValueError where the heads are odd in number and none is given, and where 2
    ``num_pairs`` slices do not divide the channels.
    """
    if num_pairs is None:
        if site.num_heads % 2:
            raise ValueError(
                f"num_heads {site.num_heads} is odd and forms no pairs: give num_pairs "
                f"(num_pairs = {site.num_heads} halves the head width)"
            )
        return site.num_heads // 2
    if num_pairs < 1 or site.dim % (2 * num_pairs):
        raise ValueError(f"dim {site.dim} is not divisible into num_pairs {num_pairs} x 2 slices")
    return num_pairs


class PairedAttention(nn.Module):
    """``(1 - lambda_init) RMSNorm(softmax(q1 k1^T) v - lambda softmax(q2 k2^T) v)`` per pair.

    Scores are scaled by d^-1/2; lambda is one number for all pairs, the gain of the norm (length
    2d) is shared by them. Without ``norm`` the difference is returned as it is, unscaled.
    """

    def __init__(
        self,
        num_pairs: int,
        slice_dim: int,
        block_index: int,
        *,
        lambda_std: float,
        eps: float,
        norm: bool = True,
    ) -> None:
        super().__init__()
        self.num_pairs = num_pairs
        self.lambda_weights = LambdaWeights(slice_dim, block_index, lambda_std)
        self.norm = RMSNorm(2 * slice_dim, eps) if norm else None

    def forward(
        self,
        queries: Float[Tensor, "batch queries dim"],
        keys: Float[Tensor, "batch keys dim"],
        values: Float[Tensor, "batch keys dim"],
    ) -> Float[Tensor, "batch queries dim"]:
        q = split_heads(queries, 2 * self.num_pairs)  # batch slices queries slice_dim
        k = split_heads(keys, 2 * self.num_pairs)
        v = split_heads(values, self.num_pairs)  # batch pairs keys 2*slice_dim
        first = _attend(q[:, 0::2], k[:, 0::2], v)
        second = _attend(q[:, 1::2], k[:, 1::2], v)
        weight = self.lambda_weights()
        if self.norm is None:
            wide = wide_dtype(v)
            return merge_heads((first.to(wide) - weight * second.to(wide)).to(v.dtype))
        scale = 1 - self.lambda_weights.start
        return merge_heads(self.norm(first, second, weight, scale=scale, dtype=v.dtype))


def _attend(
    q: Float[Tensor, "batch pairs queries slice_dim"],
    k: Float[Tensor, "batch pairs keys slice_dim"],
    v: Float[Tensor, "batch pairs keys value_dim"],
) -> Float[Tensor, "batch pairs queries value_dim"]:
    """Softmax attention by one fused call, for values wider than queries."""
    # Most fused kernels take equal widths only, and torch would fall back to keeping the map.
    # Appended zeros change no score.
    width, missing = q.shape[-1], v.shape[-1] - q.shape[-1]
    q, k = F.pad(q, (0, missing)), F.pad(k, (0, missing))
    return F.scaled_dot_product_attention(q, k, v, scale=width**-0.5)
