"""Visual-Contrast Attention with its maps in plain sight, to look at and to test against.

The layer computes the same without keeping a map.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from backbone.norms import wide_dtype


@dataclass(frozen=True)
class StageMaps:
    """The softmax maps of one stage. Without a difference there is a positive map alone."""

    positive: Float[Tensor, "batch heads queries keys"]
    negative: Float[Tensor, "batch heads queries keys"] | None = None
    weight: Float[Tensor, ""] | None = None  # lambda
    # Of stage II: the mass that one softmax over both banks gives the positive one, whether or
    # not the maps share one.
    positive_share: Float[Tensor, "batch heads queries"] | None = None

    @property
    def signed(self) -> Float[Tensor, "batch heads queries keys"]:
        """``positive - lambda negative``."""
        if self.negative is None or self.weight is None:
            return self.positive
        return self.positive - self.weight * self.negative

    def reads(
        self, values: Float[Tensor, "batch heads keys head_dim"]
    ) -> tuple[
        Float[Tensor, "batch heads queries head_dim"],
        Float[Tensor, "batch heads queries head_dim"] | None,
    ]:
        """What each bank reads in ``values``, before lambda, difference and norm."""
        return self.positive @ values, None if self.negative is None else self.negative @ values


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
    v: Float[Tensor, "batch heads tokens head_dim"]  # what stage I reads


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
    share = _positive_share(queries, positive, negative)
    if joint:
        both = _softmax_map(queries, torch.cat([positive, negative], dim=2))
        of_positive, of_negative = both.chunk(2, dim=-1)
    else:
        of_positive, of_negative = (_softmax_map(queries, bank) for bank in (positive, negative))
    return StageMaps(of_positive, of_negative, weight, share)


def _positive_share(
    queries: Float[Tensor, "batch heads queries head_dim"],
    positive: Float[Tensor, "batch heads contrast head_dim"],
    negative: Float[Tensor, "batch heads contrast head_dim"],
) -> Float[Tensor, "batch heads queries"]:
    """``sum exp z+ / (sum exp z+ + sum exp z-)``, in at least float32."""
    masses = [
        torch.logsumexp(scores.to(wide_dtype(scores)), dim=-1)
        for scores in (_scores(queries, positive), _scores(queries, negative))
    ]
    return torch.sigmoid(masses[0] - masses[1])


def _softmax_map(
    queries: Float[Tensor, "batch heads queries head_dim"],
    keys: Float[Tensor, "batch heads keys head_dim"],
) -> Float[Tensor, "batch heads queries keys"]:
    return torch.softmax(_scores(queries, keys), dim=-1)


def _scores(
    queries: Float[Tensor, "batch heads queries head_dim"],
    keys: Float[Tensor, "batch heads keys head_dim"],
) -> Float[Tensor, "batch heads queries keys"]:
    return queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5
