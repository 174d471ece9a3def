"""Gaussian diffusion in discrete time, the process of DiT.

Timestep t = 0 ... T - 1 is how noisy an image is: x_t = alpha x + sigma noise, from nearly clean
to nearly pure noise. The network predicts the noise and, in its second half, the variance.
Sources: Ho et al. 2020 (DDPM); Nichol and Dhariwal 2021; Peebles and Xie 2023 (DiT).
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dit.chain import Chain, Latents
from dit.loss import LossParts, hybrid_loss
from dit.samplers import DiffusionSamplerConfig, build_sampler
from dit.schedule import SCHEDULES, alpha_bars
from dit.variance import VARIANCES
from process.denoiser import Denoiser, StepNoise
from process.process import Process
from process.settings import check_fields

__all__ = ["DiffusionConfig", "DiffusionSamplerConfig", "GaussianDiffusion"]


@dataclass(frozen=True)
class DiffusionConfig:
    schedule: str = field(default="linear", metadata={"choices": tuple(SCHEDULES)})
    num_timesteps: int = field(
        default=1000,
        metadata={"min": 1, "help": "states of the training chain; betas scale with 1000 / this"},
    )
    variance: str = field(
        default="learned_range",
        metadata={
            "choices": tuple(VARIANCES),
            "help": "learned_range needs a network with learned variance, the others one without",
        },
    )

    def __post_init__(self) -> None:
        check_fields(self)


DEFAULT_SAMPLER = DiffusionSamplerConfig()


class GaussianDiffusion(Process):
    """Raises a ValueError for a chain that is too short for its schedule or its sampler."""

    def __init__(
        self, config: DiffusionConfig, sampler: DiffusionSamplerConfig = DEFAULT_SAMPLER
    ) -> None:
        timesteps = torch.arange(config.num_timesteps)
        self.chain = Chain(alpha_bars(config.schedule, config.num_timesteps), timesteps)
        self.variance = VARIANCES[config.variance]
        self.sampler = build_sampler(sampler, self.chain, self.variance)

    def loss(
        self,
        denoiser: Denoiser,
        x: Latents,
        y: Int[Tensor, " batch"],
        noise: Latents,
        u: Float[Tensor, " batch"],
    ) -> Float[Tensor, " batch"]:
        """Squared error of the noise plus, for a learned variance, the bound in bits per dimension.

        The timestep is floor(u T).
        """
        return self.loss_parts(denoiser, x, y, noise, u).total

    def loss_parts(
        self,
        denoiser: Denoiser,
        x: Latents,
        y: Int[Tensor, " batch"],
        noise: Latents,
        u: Float[Tensor, " batch"],
    ) -> LossParts:
        """The two terms of the loss, each per image."""
        # A number just below 1 in float64 is 1 in float32.
        timestep = (u * len(self.chain)).long().clamp(max=len(self.chain) - 1)
        return hybrid_loss(self.chain, self.variance, denoiser, x, y, noise, timestep)

    @torch.no_grad()
    def sample(
        self,
        denoiser: Denoiser,
        noise: Latents,
        y: Int[Tensor, " batch"],
        step_noise: StepNoise,
    ) -> Latents:
        """Latents from ``noise``, in its dtype.

        ``step_noise(i)`` counts the steps from 0; it is called neither for the last one nor where
        DDIM draws nothing.
        """
        return self.sampler(denoiser, noise, y, step_noise)
