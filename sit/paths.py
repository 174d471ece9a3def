"""Interpolant paths: how data and noise are mixed, from noise at t = 0 to data at t = 1.

    x_t      = alpha(t)  x + sigma(t)  noise
    velocity = alpha'(t) x + sigma'(t) noise

A path is the four functions of time in these two lines. Whatever else the flow needs follows from
them: targets, conversions between predictions, diffusion coefficients.

Source: Ma et al. 2024 (SiT); their x_* is our x, their epsilon our noise, their t our 1 - t.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


class Path(ABC):
    """The mixture of data and noise at every time. All methods act on each time by itself."""

    train_margin: float = 1e-3  # distance that training keeps from an end it cannot use

    @abstractmethod
    def alpha(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        """Scale of the data, growing to 1 at t = 1."""

    @abstractmethod
    def dalpha(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        """d alpha / dt, positive."""

    @abstractmethod
    def sigma(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        """Scale of the noise, falling to exactly 0 at t = 1; never negative."""

    @abstractmethod
    def dsigma(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        """d sigma / dt, not positive."""

    def score_coefficient(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        """g in velocity = (alpha' / alpha) x_t + g score; infinite where alpha is 0."""
        here = self.at(t)
        return here.sigma * here.wronskian / here.alpha

    def at(self, t: Float[Tensor, "*times"]) -> "PathPoint":
        """All four functions at once."""
        return PathPoint(self.alpha(t), self.dalpha(t), self.sigma(t), self.dsigma(t))

    def usable_interval(
        self, margin: float, divides_by_alpha: bool, divides_by_sigma: bool
    ) -> tuple[float, float]:
        """Times at which everything is finite, ``margin`` away from an end where it is not.

        alpha is 0 at t = 0 and sigma is 0 at t = 1: who divides by one stays away from that end.
        """
        return margin if divides_by_alpha else 0.0, 1 - margin if divides_by_sigma else 1.0


@dataclass(frozen=True)
class PathPoint:
    """The four functions at given times: what a conversion at these times has to know."""

    alpha: Tensor
    dalpha: Tensor
    sigma: Tensor
    dsigma: Tensor

    @property
    def wronskian(self) -> Tensor:
        """alpha' sigma - alpha sigma', the determinant of (x, noise) -> (velocity, x_t).

        Positive, a sum of two terms that are not negative: nothing cancels.
        """
        return self.dalpha * self.sigma - self.alpha * self.dsigma


class LinearPath(Path):
    """alpha = t, sigma = 1 - t: straight lines from noise to data."""

    def alpha(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        return t

    def dalpha(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        return torch.ones_like(t)

    def sigma(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        return 1 - t

    def dsigma(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        return -torch.ones_like(t)


class GVPPath(Path):
    """alpha = sin(pi t / 2), sigma = cos(pi t / 2): the variance of x_t stays 1 if the data's is.

    The cosine is taken as the sine of the distance from t = 1. In float32, cos(pi / 2) is negative.
    """

    def alpha(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        return torch.sin(math.pi / 2 * t)

    def dalpha(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        return math.pi / 2 * self.sigma(t)

    def sigma(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        return torch.sin(math.pi / 2 * (1 - t))

    def dsigma(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        return -math.pi / 2 * self.alpha(t)


class VPPath(Path):
    """The variance-preserving diffusion of DDPM: alpha^2 + sigma^2 = 1.

    With beta growing linearly from 0.1 at the data to 20 at the noise,

        log alpha = -1/2 integral of beta from t to 1.

    alpha(0) is 0.0066, so that no end divides by alpha; sigma' is infinite at t = 1, so that every
    use stays away from that end. Source: Song et al. 2021 (score SDE); their t is our 1 - t.
    """

    train_margin = 1e-5
    beta_at_data = 0.1
    beta_at_noise = 20.0

    def alpha(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        return torch.exp(self._log_alpha(t))

    def dalpha(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        return self.score_coefficient(t) * self.alpha(t)

    def sigma(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        # 1 - alpha^2 would cancel near t = 1, where alpha is 1 but for the last digits.
        return torch.sqrt(-torch.expm1(2 * self._log_alpha(t)))

    def dsigma(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        return self.at(t).dsigma

    def at(self, t: Float[Tensor, "*times"]) -> PathPoint:
        # sigma' is made of the other three, so that all four together cost hardly more than it.
        alpha, sigma = self.alpha(t), self.sigma(t)
        dalpha = self.score_coefficient(t) * alpha
        return PathPoint(alpha, dalpha, sigma, -alpha * dalpha / sigma)

    def score_coefficient(self, t: Float[Tensor, "*times"]) -> Float[Tensor, "*times"]:
        # beta / 2, which alpha' / alpha is too; the general form is 0 times infinity at t = 1.
        return (self.beta_at_data + (1 - t) * (self.beta_at_noise - self.beta_at_data)) / 2

    def usable_interval(
        self, margin: float, divides_by_alpha: bool, divides_by_sigma: bool
    ) -> tuple[float, float]:
        return 0.0, 1 - margin

    def _log_alpha(self, t: Tensor) -> Tensor:
        slope = self.beta_at_noise - self.beta_at_data
        return -(1 - t).square() * slope / 4 - (1 - t) * self.beta_at_data / 2


PATHS: dict[str, Path] = {"linear": LinearPath(), "gvp": GVPPath(), "vp": VPPath()}
