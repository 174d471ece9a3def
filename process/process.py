"""A generative process: how data become noise, what a network learns, how noise becomes data."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor

from process.denoiser import Denoiser, StepNoise


class Process(ABC):
    """Loss and sampler of one process.

    All randomness is passed in; a process draws nothing. It knows no guidance, no averaged
    weights, no device and no file.
    """

    @abstractmethod
    def loss(
        self,
        denoiser: Denoiser,
        x: Float[Tensor, "batch channels height width"],
        y: Int[Tensor, " batch"],
        noise: Float[Tensor, "batch channels height width"],
        u: Float[Tensor, " batch"],
    ) -> Float[Tensor, " batch"]:
        """One loss per image; ``u``, uniform in [0, 1), becomes the process's time."""

    @abstractmethod
    def sample(
        self,
        denoiser: Denoiser,
        noise: Float[Tensor, "batch channels height width"],
        y: Int[Tensor, " batch"],
        step_noise: StepNoise,
    ) -> Float[Tensor, "batch channels height width"]:
        """Clean latents from ``noise``. Deterministic samplers never call ``step_noise``."""
