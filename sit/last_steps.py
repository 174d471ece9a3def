"""The last step of an SDE: from where its noise ends to the data, without new noise.

The score is infinite at t = 1 and the noise of a last step would stay in the image. So the
stochastic steps end ``size`` short of the end, and one network call leads there.

Source: Ma et al. 2024 (SiT) and the code published with it.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from sit.conversions import Prediction

Latents = Float[Tensor, "batch channels height width"]
PerImage = Float[Tensor, "batch 1 1 1"]
LastStep = Callable[[Tensor, Prediction, Tensor, float], Tensor]


def mean(x_t: Latents, prediction: Prediction, diffusion: PerImage, size: float) -> Latents:
    """The SDE's step with its noise left out."""
    drift = prediction.read_as("velocity") + diffusion * prediction.read_as("score")
    return x_t + size * drift


def tweedie(x_t: Latents, prediction: Prediction, diffusion: PerImage, size: float) -> Latents:
    """The expected data given x_t, (x_t + sigma^2 score) / alpha."""
    return prediction.read_as("data")


def euler(x_t: Latents, prediction: Prediction, diffusion: PerImage, size: float) -> Latents:
    """A step along the probability flow."""
    return x_t + size * prediction.read_as("velocity")


LAST_STEPS: dict[str, LastStep | None] = {
    "none": None,
    "mean": mean,
    "tweedie": tweedie,
    "euler": euler,
}
