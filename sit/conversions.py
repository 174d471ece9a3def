"""What a prediction says: velocity, score and noise are one statement about x_t.

    x_t      = alpha  x + sigma  noise
    velocity = alpha' x + sigma' noise            score = -noise / sigma

Any of the three, together with x_t, determines the data and the noise that x_t is mixed from, and
these determine the other two. So every conversion passes through the pair (x, noise).

Source: Ma et al. 2024 (SiT), appendix; the score is the gradient of the log-density of x_t.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from process.denoiser import Denoiser
from sit.paths import Path

Latents = Float[Tensor, "batch channels height width"]
Times = Float[Tensor, "batch 1 1 1"]


def convert(
    path: Path, predicted: Latents, source: str, target: str, x_t: Latents, t: Times
) -> Latents:
    """The ``source`` that was predicted at (x_t, t), as a ``target``.

    Not finite where the ``source`` does not determine the ``target``: noise and score leave the
    velocity open at alpha = 0, velocity and noise leave the score open at sigma = 0.
    """
    if source == target:
        return predicted
    x, noise = UNMIX[source](path, predicted, x_t, t)
    return MIX[target](path, x, noise, t)


def _unmix_velocity(
    path: Path, velocity: Latents, x_t: Latents, t: Times
) -> tuple[Latents, Latents]:
    determinant = path.wronskian(t)
    x = (path.sigma(t) * velocity - path.dsigma(t) * x_t) / determinant
    noise = (path.dalpha(t) * x_t - path.alpha(t) * velocity) / determinant
    return x, noise


def _unmix_noise(path: Path, noise: Latents, x_t: Latents, t: Times) -> tuple[Latents, Latents]:
    return (x_t - path.sigma(t) * noise) / path.alpha(t), noise


def _unmix_score(path: Path, score: Latents, x_t: Latents, t: Times) -> tuple[Latents, Latents]:
    return _unmix_noise(path, -path.sigma(t) * score, x_t, t)


def _mix_velocity(path: Path, x: Latents, noise: Latents, t: Times) -> Latents:
    return path.dalpha(t) * x + path.dsigma(t) * noise


def _mix_score(path: Path, x: Latents, noise: Latents, t: Times) -> Latents:
    return -noise / path.sigma(t)


UNMIX = {"velocity": _unmix_velocity, "noise": _unmix_noise, "score": _unmix_score}
MIX = {
    "velocity": _mix_velocity,
    "score": _mix_score,
    "noise": lambda path, x, noise, t: noise,
    "data": lambda path, x, noise, t: x,
}


@dataclass(frozen=True)
class Prediction:
    """What a network said about x_t at t, to be read as whatever is needed."""

    path: Path
    source: str  # "velocity", "noise" or "score"
    value: Latents
    x_t: Latents
    t: Times

    def read_as(self, target: str) -> Latents:
        """The prediction as "velocity", "score", "noise" or "data"."""
        return convert(self.path, self.value, self.source, target, self.x_t, self.t)


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
        # The prediction is about the x_t that the network saw, with its rounding.
        return Prediction(
            self.path, self.prediction, value.to(x_t), seen.to(x_t), t[:, None, None, None]
        )
