"""What a flow's prediction is compared with, and how much each time counts.

Source: Ma et al. 2024 (SiT) and the code published with it; the likelihood weighting is that of
Song et al. 2021 (maximum likelihood training of score-based diffusion models).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from sit.paths import Path, PathPoint

# (point of the path, prediction, x, noise) -> what separates the prediction from its target
RESIDUALS: dict[str, Callable[[PathPoint, Tensor, Tensor, Tensor], Tensor]] = {
    "velocity": lambda here, velocity, x, noise: velocity - (here.dalpha * x + here.dsigma * noise),
    "noise": lambda here, predicted, x, noise: predicted - noise,
    # In units of noise, sigma (score + noise / sigma): finite at the data end too.
    "score": lambda here, score, x, noise: here.sigma * score + noise,
}


def _even(path: Path, t: Tensor) -> Tensor:
    return torch.ones_like(t)


def _as_velocity(path: Path, t: Tensor) -> Tensor:
    """(g / sigma)^2: what an error of the noise amounts to as an error of the velocity."""
    return (path.score_coefficient(t) / path.sigma(t)).square()


def _as_likelihood(path: Path, t: Tensor) -> Tensor:
    """g / sigma^2, that is g for the squared error of the score: a bound on the likelihood."""
    return path.score_coefficient(t) / path.sigma(t).square()


# (path, t) -> weight of the squared residual of noise and score
WEIGHTINGS: dict[str, Callable[[Path, Tensor], Tensor]] = {
    "none": _even,
    "velocity": _as_velocity,
    "likelihood": _as_likelihood,
}
