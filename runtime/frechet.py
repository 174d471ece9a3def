"""Frechet distance between two Gaussians,

    |m_a - m_b|^2 + tr C_a + tr C_b - 2 tr (C_a C_b)^(1/2).

The trace of the root is the nuclear norm of F_a^T F_b with C = F F^T: each covariance is
decomposed as V diag(w) V^T on its own (symmetric, so nothing complex can arise), F = V sqrt(w)
keeps the eigenvalues above round-off, and the singular values of F_a^T F_b are summed. No matrix
root of the product, which is not symmetric, and nothing added to a diagonal.

Source: Dowson and Landau 1982; as a score of images, Heusel et al. 2017 (FID), Nash et al. 2021
(sFID).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from runtime.moments import Gaussian

# The two formulas for the trace have to agree on the distance to 1e-3 of it. Where it is near
# zero, the difference of large traces leaves their round-off, hence the second allowance.
RELATIVE_AGREEMENT = 1e-3
ROUND_OFF_OF_TRACES = 1e-6


@dataclass(frozen=True)
class FrechetTerms:
    mean_term: float  # squared distance of the means
    trace_a: float
    trace_b: float
    trace_sqrt: float  # trace of the square root of the product of the covariances

    @property
    def traces(self) -> float:
        return self.trace_a + self.trace_b

    @property
    def distance(self) -> float:
        """At least 0: identical sets leave a round-off that may be negative."""
        return max(0.0, self.mean_term + self.traces - 2 * self.trace_sqrt)


def frechet_terms(a: Gaussian, b: Gaussian) -> FrechetTerms:
    """The terms of the distance, checked by a second formula.

    Raises ArithmeticError where the formulas disagree or a value is not finite, and ValueError
    where the two live in different dimensions.
    """
    if a.mean.shape != b.mean.shape:
        raise ValueError(
            f"features of {len(a.mean)} and of {len(b.mean)} dimensions do not compare"
        )
    factor_a, factor_b = _factor(a.covariance), _factor(b.covariance)
    terms = FrechetTerms(
        mean_term=float((a.mean - b.mean).square().sum()),
        trace_a=float(a.covariance.trace()),
        trace_b=float(b.covariance.trace()),
        trace_sqrt=float(torch.linalg.svdvals(factor_a.T @ factor_b).sum()),
    )
    _check(terms, _trace_sqrt_by_eigenvalues(factor_a, b.covariance))
    return terms


def _factor(covariance: Float[Tensor, "dim dim"]) -> Float[Tensor, "dim rank"]:
    """F with F F^T = covariance, without the directions that hold only round-off."""
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > _round_off(values)
    return vectors[:, kept] * values[kept].sqrt()


def _trace_sqrt_by_eigenvalues(
    factor_a: Float[Tensor, "dim rank"], covariance_b: Float[Tensor, "dim dim"]
) -> float:
    """Sum of the roots of the eigenvalues of F_a^T C_b F_a, which C_a C_b shares."""
    values = torch.linalg.eigvalsh(factor_a.T @ covariance_b @ factor_a)
    return float(values[values > _round_off(values)].sqrt().sum())


def _round_off(ascending: Float[Tensor, " values"]) -> Float[Tensor, ""]:
    largest = ascending[-1:].clamp(min=0).sum()  # of no values: 0
    return largest * len(ascending) * torch.finfo(ascending.dtype).eps


def _check(terms: FrechetTerms, second_trace_sqrt: float) -> None:
    disagreement = 2 * abs(terms.trace_sqrt - second_trace_sqrt)
    allowed = RELATIVE_AGREEMENT * terms.distance + ROUND_OFF_OF_TRACES * terms.traces
    if not disagreement <= allowed:  # also where something is not a number
        raise ArithmeticError(
            f"two formulas for the Frechet distance disagree: {terms.distance:.6g} "
            f"and {terms.distance + 2 * (terms.trace_sqrt - second_trace_sqrt):.6g}"
        )
