"""Kernel distance (KID): an unbiased squared maximum mean discrepancy of two sets of features.

Averaged over random subsets of both sets; may be slightly negative where the sets agree.
Source: Binkowski et al. 2018, with the subsets of torch-fidelity.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpy import ndarray

Kernel = Callable[
    [Float[ndarray, "rows dim"], Float[ndarray, "columns dim"]], Float[ndarray, "rows columns"]
]


def polynomial_kernel(
    x: Float[ndarray, "rows dim"], y: Float[ndarray, "columns dim"]
) -> Float[ndarray, "rows columns"]:
    """(x.y / dim + 1)^3, the kernel of KID."""
    return (x @ y.T / x.shape[1] + 1) ** 3


def gaussian_kernel(sigma: float) -> Kernel:
    """exp(-|x - y|^2 / (2 sigma^2))."""

    def kernel(
        x: Float[ndarray, "rows dim"], y: Float[ndarray, "columns dim"]
    ) -> Float[ndarray, "rows columns"]:
        squares = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)
        return np.exp((2 * x @ y.T - squares) / (2 * sigma**2))

    return kernel


def kernel_distance(
    sample: Float[ndarray, "samples dim"],
    reference: Float[ndarray, "references dim"],
    subset_size: int,
    num_subsets: int = 100,
    kernel: Kernel = polynomial_kernel,
    seed: int = 2020,
) -> tuple[float, float]:
    """Mean and population spread over random subsets, in float64.

    The subsets come from ``RandomState(seed)``, the sample's before the reference's. Raises
    ValueError where a subset does not fit into a set.
    """
    smaller = min(len(sample), len(reference))
    if not 2 <= subset_size <= smaller:
        raise ValueError(f"a subset has between 2 and {smaller} images, not {subset_size}")
    random = np.random.RandomState(seed)
    distances = []
    for _ in range(num_subsets):
        of_sample = random.choice(len(sample), subset_size, replace=False)
        of_reference = random.choice(len(reference), subset_size, replace=False)
        distances.append(discrepancy(sample[of_sample], reference[of_reference], kernel))
    return float(np.mean(distances)), float(np.std(distances))


def discrepancy(
    x: Float[ndarray, "rows dim"],
    y: Float[ndarray, "columns dim"],
    kernel: Kernel = polynomial_kernel,
) -> float:
    """E k(x, x') + E k(y, y') - 2 E k(x, y) over pairs of different members, in float64."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    return (
        _off_diagonal_mean(kernel(x, x))
        + _off_diagonal_mean(kernel(y, y))
        - 2 * float(kernel(x, y).mean())
    )


def _off_diagonal_mean(square: Float[ndarray, "n n"]) -> float:
    n = len(square)
    return float((square.sum() - square.trace()) / (n * (n - 1)))
