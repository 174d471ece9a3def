"""What a flow's prediction is compared with, and how much each time counts.

Source: Ma et al. 2024 (SiT) and the code published with it; the likelihood weighting is that of
Song et al. 2021 (maximum likelihood training of score-based diffusion models).
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from sit.paths import Path

Latents = Float[Tensor, "batch channels height width"]
Times = Float[Tensor, "batch 1 1 1"]
PerImage = Float[Tensor, " batch"]


def _velocity(path: Path, velocity: Latents, x: Latents, noise: Latents, t: Times) -> Latents:
    return velocity - (path.dalpha(t) * x + path.dsigma(t) * noise)


def _noise(path: Path, predicted: Latents, x: Latents, noise: Latents, t: Times) -> Latents:
    return predicted - noise


def _score(path: Path, score: Latents, x: Latents, noise: Latents, t: Times) -> Latents:
    """In units of noise, sigma (score + noise / sigma): finite at the data end too."""
    return path.sigma(t) * score + noise


RESIDUALS: dict[str, Callable[[Path, Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "velocity": _velocity,
    "noise": _noise,
    "score": _score,
}


def _even(path: Path, t: PerImage) -> PerImage:
    return torch.ones_like(t)


def _as_velocity(path: Path, t: PerImage) -> PerImage:
    """(g / sigma)^2: what an error of the noise amounts to as an error of the velocity."""
    return (path.score_coefficient(t) / path.sigma(t)).square()


def _as_likelihood(path: Path, t: PerImage) -> PerImage:
    """g / sigma^2: g times the squared error of the score, a bound on the log-likelihood."""
    return path.score_coefficient(t) / path.sigma(t).square()


WEIGHTINGS: dict[str, Callable[[Path, Tensor], Tensor]] = {
    "none": _even,
    "velocity": _as_velocity,
    "likelihood": _as_likelihood,
}
