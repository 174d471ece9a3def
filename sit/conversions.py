"""What a prediction says: velocity, score and noise are one statement about x_t.

    x_t      = alpha  x + sigma  noise
    velocity = alpha' x + sigma' noise            score = -noise / sigma

Any of the three, together with x_t, determines the data and the noise that x_t is mixed from, and
these determine the other two. So every conversion passes through the pair (x, noise).

Source: Ma et al. 2024 (SiT), appendix; the score is the gradient of the log-density of x_t.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from process.denoiser import Denoiser
from sit.paths import Path, PathPoint

Latents = Float[Tensor, "batch channels height width"]


def convert(here: PathPoint, predicted: Latents, source: str, target: str, x_t: Latents) -> Latents:
    """The ``source`` that was predicted for ``x_t`` at a point of the path, as a ``target``.

    Not finite where the ``source`` does not determine the ``target``: noise and score leave the
    velocity open at alpha = 0, velocity and noise leave the score open at sigma = 0.
    """
    if source == target:
        return predicted
    x, noise = UNMIX[source](here, predicted, x_t)
    return MIX[target](here, x, noise)


def _unmix_velocity(here: PathPoint, velocity: Tensor, x_t: Tensor) -> tuple[Tensor, Tensor]:
    x = (here.sigma * velocity - here.dsigma * x_t) / here.wronskian
    noise = (here.dalpha * x_t - here.alpha * velocity) / here.wronskian
    return x, noise


def _unmix_noise(here: PathPoint, noise: Tensor, x_t: Tensor) -> tuple[Tensor, Tensor]:
    return (x_t - here.sigma * noise) / here.alpha, noise


def _unmix_score(here: PathPoint, score: Tensor, x_t: Tensor) -> tuple[Tensor, Tensor]:
    return _unmix_noise(here, -here.sigma * score, x_t)


UNMIX = {"velocity": _unmix_velocity, "noise": _unmix_noise, "score": _unmix_score}
MIX: dict[str, Callable[[PathPoint, Tensor, Tensor], Tensor]] = {
    "velocity": lambda here, x, noise: here.dalpha * x + here.dsigma * noise,
    "score": lambda here, x, noise: -noise / here.sigma,
    "noise": lambda here, x, noise: noise,
    "data": lambda here, x, noise: x,
}


@dataclass(frozen=True)
class Prediction:
    """What a network said about x_t at t, to be read as whatever is needed."""

    here: PathPoint
    source: str  # "velocity", "noise" or "score"
    value: Latents
    x_t: Latents

    def read_as(self, target: str) -> Latents:
        """The prediction as "velocity", "score", "noise" or "data"."""
        return convert(self.here, self.value, self.source, target, self.x_t)


class FlowField:
    """A network whose predictions can be read as velocity, score, noise or data: one call each.

    The network sees x_t in ``dtype``; t and all else stay in the dtype of the state that is asked
    about, float32 at least.
    """

    def __init__(self, denoiser: Denoiser, path: Path, prediction: str, dtype: torch.dtype) -> None:
        self.denoiser = denoiser
        self.path = path
        self.prediction = prediction
        self.dtype = dtype

    def __call__(
        self, x_t: Latents, t: Float[Tensor, " batch"], y: Int[Tensor, " batch"]
    ) -> Prediction:
        """One network call. A ValueError if it returns another number of channels than x_t has."""
        seen = x_t.to(self.dtype)
        value = self.denoiser(seen, t, y)
        if value.shape != x_t.shape:
            raise ValueError(
                f"a flow has one prediction per latent channel: {x_t.shape[1]} channels, not "
                f"{value.shape[1]} (learned_variance has no use here)"
            )
        here = self.path.at(t[:, None, None, None])
        # The prediction is about the x_t that the network saw, with its rounding.
        return Prediction(here, self.prediction, value.to(x_t), seen.to(x_t))
