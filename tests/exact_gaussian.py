"""A network that knows its data: the exact prediction for a Gaussian, in closed form."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sit.paths import PATHS, PathPoint


@dataclass(frozen=True)
class ExactGaussian:
    """For data N(mean, std^2) per element, x_t is N(alpha mean, V), V = alpha^2 std^2 + sigma^2.

    velocity = alpha' mean + (V' / 2) / V (x_t - alpha mean),  score = -(x_t - alpha mean) / V.
    Computes in float32 at least and rounds once, to the dtype of its input.
    """

    path: str
    prediction: str
    mean: float = 0.4
    std: float = 0.5

    def __call__(self, x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        here = PATHS[self.path].at(t[:, None, None, None])
        centred = x_t.to(t.dtype) - here.alpha * self.mean
        variance = self._variance(here)
        if self.prediction == "score":
            predicted = -centred / variance
        elif self.prediction == "noise":
            predicted = here.sigma * centred / variance
        else:
            # On the VP path, alpha^2 + sigma^2 = 1 makes sigma sigma' finite where sigma' is not.
            alpha_dalpha = here.alpha * here.dalpha
            sigma_dsigma = -alpha_dalpha if self.path == "vp" else here.sigma * here.dsigma
            half_dvariance = alpha_dalpha * self.std**2 + sigma_dsigma
            predicted = here.dalpha * self.mean + half_dvariance / variance * centred
        return predicted.to(x_t.dtype)

    def solution(self, x_t: Tensor, start: float, end: float) -> Tensor:
        """Where the probability flow carries ``x_t`` from one time to another."""
        path = PATHS[self.path]
        here, there = path.at(x_t.new_tensor(start)), path.at(x_t.new_tensor(end))
        stretch = torch.sqrt(self._variance(there) / self._variance(here))
        return there.alpha * self.mean + stretch * (x_t - here.alpha * self.mean)

    def _variance(self, here: PathPoint) -> Tensor:
        return here.alpha.square() * self.std**2 + here.sigma.square()
