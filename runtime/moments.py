"""Mean and covariance of features, in float64, from any batches in any order.

A batch's mean and scatter (the sum of outer products of centred rows) join those of the rows
before by

    mean    = mean_a + (n_b / n) (mean_b - mean_a)
    scatter = scatter_a + scatter_b + (n_a n_b / n) (mean_b - mean_a)(mean_b - mean_a)^T,

which never subtracts large sums, so a common offset of the features costs no digits. The same
formula joins the moments of several processes. Source: Chan, Golub and LeVeque 1983.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Gaussian:
    """What Frechet distances know of a set of features; float64."""

    mean: Float[Tensor, " dim"]
    covariance: Float[Tensor, "dim dim"]  # denominator n - 1
    num_images: int | None  # None: whoever stored the statistics did not say

    def __post_init__(self) -> None:
        if not (torch.isfinite(self.mean).all() and torch.isfinite(self.covariance).all()):
            raise ValueError("the mean or the covariance has a value that is not finite")


class Moments:
    """Running mean and scatter of rows."""

    ROWS_AT_ONCE = 4096  # the float64 copy of one block is all the extra memory

    def __init__(
        self, count: int, mean: Float[Tensor, " dim"], scatter: Float[Tensor, "dim dim"]
    ) -> None:
        self.count = count
        self.mean = mean
        self.scatter = scatter

    @classmethod
    def none(cls, dim: int) -> "Moments":
        """Those of no rows at all."""
        zeros = torch.zeros(dim, dtype=torch.float64)
        return cls(0, zeros, torch.outer(zeros, zeros))

    @classmethod
    def of(cls, rows: Float[Tensor, "rows dim"]) -> "Moments":
        moments = cls.none(rows.shape[1])
        moments.update(rows)
        return moments

    def update(self, rows: Float[Tensor, "rows dim"]) -> None:
        if rows.shape[1] != len(self.mean):
            raise ValueError(f"features have {rows.shape[1]} columns instead of {len(self.mean)}")
        for block in rows.split(self.ROWS_AT_ONCE):
            block = block.double().cpu()
            if not torch.isfinite(block).all():
                raise ValueError("a feature is not finite")
            mean = block.mean(dim=0)
            centred = block - mean
            self._join(len(block), mean, centred.T @ centred)

    def merge(self, other: "Moments") -> None:
        """Adds the rows that ``other`` has seen."""
        self._join(other.count, other.mean, other.scatter)

    def gaussian(self) -> Gaussian:
        if self.count < 2:
            raise ValueError(f"a covariance needs at least 2 images; there are {self.count}")
        return Gaussian(self.mean, self.scatter / (self.count - 1), self.count)

    def _join(
        self, count: int, mean: Float[Tensor, " dim"], scatter: Float[Tensor, "dim dim"]
    ) -> None:
        if count == 0:
            return
        total = self.count + count
        step = mean - self.mean
        self.mean = self.mean + step * (count / total)
        self.scatter = (
            self.scatter + scatter + torch.outer(step, step) * (self.count * count / total)
        )
        self.count = total


class BlockedMoments:
    """Moments of many small batches: collects rows, so that each update is of a whole block."""

    def __init__(self, dim: int) -> None:
        self.moments = Moments.none(dim)
        self.waiting: list[Float[Tensor, "rows dim"]] = []

    def update(self, rows: Float[Tensor, "rows dim"]) -> None:
        self.waiting.append(rows.cpu())
        if sum(map(len, self.waiting)) >= Moments.ROWS_AT_ONCE:
            self.total()

    def total(self) -> Moments:
        """Of all rows so far."""
        if self.waiting:
            self.moments.update(torch.cat(self.waiting))
            self.waiting = []
        return self.moments
