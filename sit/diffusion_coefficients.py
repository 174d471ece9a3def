"""How much noise the stochastic sampler stirs in: the diffusion coefficient D(t).

    dx_t = (velocity + D score) dt + sqrt(2 D) dW

has the same densities at every time for any D(t) >= 0, so D is a free choice of the sampler; D = 0
is the ODE. (Written with w = 2 D, drift and noise are velocity + w/2 score and sqrt(w) dW.)

Source: Ma et al. 2024 (SiT) and the code published with it.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from process.settings import choose
from sit.paths import Path

Times = Float[Tensor, "*times"]
Coefficient = Callable[[Path, Tensor, float], Tensor]


def diffusion_coefficient(
    name: str, path: Path, t: Float[Tensor, "*times"], norm: float
) -> Float[Tensor, "*times"]:
    """D(t) >= 0 of the coefficient called ``name``.

    ``norm`` is a factor, except in "decreasing": there it scales the cosine, so D(0) = 1 only for
    norm = 1, and D(1) = 0 likewise.
    """
    return choose(DIFFUSION_COEFFICIENTS, "diffusion", name)(path, t, norm)


def _constant(path: Path, t: Tensor, norm: float) -> Tensor:
    return torch.full_like(t, norm)


def _sbdm(path: Path, t: Tensor, norm: float) -> Tensor:
    """That of the diffusion whose probability flow this is; infinite where alpha is 0."""
    return norm * path.score_coefficient(t)


def _sigma(path: Path, t: Tensor, norm: float) -> Tensor:
    return norm * path.sigma(t)


def _linear(path: Path, t: Tensor, norm: float) -> Tensor:
    return norm * (1 - t)


def _decreasing(path: Path, t: Tensor, norm: float) -> Tensor:
    return (norm * torch.cos(math.pi * t) + 1).square() / 4


def _increasing_decreasing(path: Path, t: Tensor, norm: float) -> Tensor:
    return norm * torch.sin(math.pi * t).square()


DIFFUSION_COEFFICIENTS: dict[str, Coefficient] = {
    "constant": _constant,
    "sbdm": _sbdm,
    "sigma": _sigma,
    "linear": _linear,
    "decreasing": _decreasing,
    "increasing_decreasing": _increasing_decreasing,
}
