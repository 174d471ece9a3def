"""Visual-Contrast Attention with its maps in plain sight, to look at and to test against.

The layer computes the same without keeping a map.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class StageMaps:
    """The softmax maps of one stage. Without a difference there is a positive map alone."""

    positive: Float[Tensor, "batch heads queries keys"]
    negative: Float[Tensor, "batch heads queries keys"] | None = None
    weight: Float[Tensor, ""] | None = None  # lambda

    @property
    def signed(self) -> Float[Tensor, "batch heads queries keys"]:
        """``positive - lambda negative``."""
        if self.negative is None or self.weight is None:
            return self.positive
        return self.positive - self.weight * self.negative


@dataclass(frozen=True)
class ContrastMaps:
    """What one call computes on its way, stage by stage."""

    positive: Float[Tensor, "batch heads contrast head_dim"]  # contrast tokens
    negative: Float[Tensor, "batch heads contrast head_dim"] | None
    stage1: StageMaps  # contrast tokens look at all tokens
    values: Float[Tensor, "batch heads contrast head_dim"]  # their reading, normed
    stage2: StageMaps  # all tokens look at the contrast tokens
    read: Float[Tensor, "batch heads tokens head_dim"]  # their reading, normed
    output: Float[Tensor, "batch tokens dim"]


def gather_maps(
    positive: Float[Tensor, "batch heads contrast head_dim"],
    negative: Float[Tensor, "batch heads contrast head_dim"] | None,
    keys: Float[Tensor, "batch heads tokens head_dim"],
    weight: Float[Tensor, ""] | None,
) -> StageMaps:
    """Stage I; ``weight`` is None where it takes no difference."""
    if negative is None or weight is None:
        return StageMaps(_softmax_map(positive, keys))
    return StageMaps(_softmax_map(positive, keys), _softmax_map(negative, keys), weight)


def spread_maps(
    queries: Float[Tensor, "batch heads tokens head_dim"],
    positive: Float[Tensor, "batch heads contrast head_dim"],
    negative: Float[Tensor, "batch heads contrast head_dim"] | None,
    weight: Float[Tensor, ""] | None,
    joint: bool,
) -> StageMaps:
    """Stage II; ``joint`` maps share one softmax, so that both rows together have sum 1."""
    if negative is None or weight is None:
        return StageMaps(_softmax_map(queries, positive))
    if joint:
        both = _softmax_map(queries, torch.cat([positive, negative], dim=2))
        of_positive, of_negative = both.chunk(2, dim=-1)
        return StageMaps(of_positive, of_negative, weight)
    return StageMaps(_softmax_map(queries, positive), _softmax_map(queries, negative), weight)


def _softmax_map(
    queries: Float[Tensor, "batch heads queries head_dim"],
    keys: Float[Tensor, "batch heads keys head_dim"],
) -> Float[Tensor, "batch heads queries keys"]:
    scores = queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5
    return torch.softmax(scores, dim=-1)
