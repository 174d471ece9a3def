"""From noise back to latents, one state of the chain after the other: DDPM and DDIM.

Both draw each state from a Gaussian around a mixture of x_t and the clean latents predicted
from it, and differ in that Gaussian only. Coefficients are float64; latents are at least float32
on the way, whatever dtype the network takes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from backbone.norms import wide_dtype
from dit.chain import Chain, Coefficients, Latents
from dit.variance import LogVariance, Variance
from process.denoiser import Denoiser, StepNoise


class Transition(NamedTuple):
    """The Gaussian from which the state before x_t is drawn."""

    mean: Latents
    std: Float[Tensor, "*broadcast"] | None  # None: the mean itself, nothing is drawn


@dataclass(frozen=True)
class MarkovSampler:
    """Walks ``chain`` from its noisiest state to the clean latents, which are the last mean."""

    chain: Chain
    variance: Variance
    transition: Callable[[Coefficients, Latents, Latents, LogVariance], Transition]
    clip: float | None  # predicted clean latents are cut to [-clip, clip]; None does not clip

    def __call__(
        self, denoiser: Denoiser, noise: Latents, y: Int[Tensor, " batch"], step_noise: StepNoise
    ) -> Latents:
        x_t = noise.to(wide_dtype(noise))
        for i, k in enumerate(reversed(range(len(self.chain)))):
            timestep, c = self.chain.at(k)
            t = torch.full((len(x_t),), timestep, device=x_t.device)
            prediction = denoiser(x_t.to(noise.dtype), t, y).to(x_t.dtype)
            mean, std = self.step(c, x_t, prediction)
            x_t = mean if std is None or k == 0 else mean + std * step_noise(i).to(x_t)
        return x_t.to(noise.dtype)

    def step(
        self,
        c: Coefficients,
        x_t: Latents,
        prediction: Float[Tensor, "batch predicted height width"],
    ) -> Transition:
        """The distribution of the state before ``x_t``, given what the network predicts there."""
        predicted_noise, values = self.variance.split(prediction, num_channels=x_t.shape[1])
        predicted_x = c.clean(x_t, predicted_noise)
        if self.clip is not None:
            predicted_x = predicted_x.clamp(-self.clip, self.clip)
        return self.transition(c, x_t, predicted_x, self.variance.log_variance(c, values))


def ancestral_transition(
    c: Coefficients, x_t: Latents, predicted_x: Latents, log_variance: LogVariance
) -> Transition:
    """The posterior given the predicted clean latents, with the variance of the process.

    Source: Ho et al. 2020 (DDPM), algorithm 2.
    """
    return Transition(c.posterior_mean(predicted_x, x_t), torch.exp(log_variance / 2))


@dataclass(frozen=True)
class ImplicitTransition:
    """Keeps the noise that the predicted clean latents leave in ``x_t``, but for a part that is
    replaced by fresh noise: none for eta = 0, as much as DDPM with the small variance for eta = 1.

    Source: Song et al. 2021 (DDIM), equations 12 and 16; their sigma is our ``std``.
    """

    eta: float

    def __call__(
        self, c: Coefficients, x_t: Latents, predicted_x: Latents, log_variance: LogVariance
    ) -> Transition:
        std = self.eta * c.posterior_std
        kept = (c.previous_sigma.square() - std.square()).sqrt()
        mean = c.previous_alpha * predicted_x + kept * c.noise(x_t, predicted_x)
        return Transition(mean, std if self.eta > 0 else None)
