"""The hybrid loss: predict the noise, and let a variational bound teach the variance.

Source: Nichol and Dhariwal 2021, with the bound neither rescaled nor down-weighted, as in DiT
(Peebles and Xie 2023): loss = mse + vb, where mse has no unit and vb is in bits per dimension.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from backbone.norms import wide_dtype
from dit.chain import Chain, Latents
from dit.variance import LogVariance, Variance
from process.denoiser import Denoiser

PIXEL_HALF_WIDTH = 1 / 255  # half a level of 8-bit data scaled to [-1, 1]
SMALLEST_PROBABILITY = 1e-12


@dataclass(frozen=True)
class LossParts:
    mse: Float[Tensor, " batch"]  # mean squared error of the predicted noise
    vb: Float[Tensor, " batch"] | None  # bound in bits per dimension; None for a fixed variance

    @property
    def total(self) -> Float[Tensor, " batch"]:
        return self.mse if self.vb is None else self.mse + self.vb


class Gaussian(NamedTuple):
    mean: Latents
    log_variance: LogVariance


def hybrid_loss(
    chain: Chain,
    variance: Variance,
    denoiser: Denoiser,
    x: Latents,
    y: Int[Tensor, " batch"],
    noise: Latents,
    k: Int[Tensor, " batch"],
) -> LossParts:
    """The loss of each image at its own state ``k`` of the chain, in float32 at least.

    The bound sees the predicted noise as a constant, so only the variance learns from it.
    """
    timestep, c = chain.gather(k, wide_dtype(x))
    x_t = c.noisy(x, noise)
    prediction = denoiser(x_t.to(x.dtype), timestep, y).to(x_t.dtype)
    predicted_noise, values = variance.split(prediction, num_channels=x.shape[1])
    mse = _mean_per_image((predicted_noise - noise).square())
    if not variance.learned:
        return LossParts(mse, vb=None)

    predicted_x = c.clean(x_t, predicted_noise.detach())
    model = Gaussian(c.posterior_mean(predicted_x, x_t), variance.log_variance(c, values))
    true = Gaussian(c.posterior_mean(x, x_t), c.log_posterior)
    return LossParts(mse, variational_bound(true, model, x, reaches_x=k == 0))


def variational_bound(
    true: Gaussian, model: Gaussian, x: Latents, reaches_x: Bool[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """One step's term of the bound on -log p(x), in bits per dimension.

    The divergence of the model from the true posterior, or -log p(x) itself for the step that
    ``reaches_x``.
    """
    divergence = kl_divergence(true, model)
    reconstruction = -log_likelihood_8_bit(x, model)
    nats = torch.where(reaches_x[:, None, None, None], reconstruction, divergence)
    return _mean_per_image(nats) / math.log(2)


def kl_divergence(p: Gaussian, q: Gaussian) -> Latents:
    """KL(p || q) of every element, in nats:

    ((log v_q - log v_p) + v_p / v_q + (mean_p - mean_q)^2 / v_q - 1) / 2.
    """
    log_ratio = q.log_variance - p.log_variance
    squared_distance = (p.mean - q.mean).square() * torch.exp(-q.log_variance)
    return (log_ratio + torch.exp(-log_ratio) + squared_distance - 1) / 2


def log_likelihood_8_bit(x: Latents, model: Gaussian) -> Latents:
    """Log-probability that ``model`` gives to the 8-bit level around ``x``, in nats.

    The outermost levels, |x| > 0.999, reach to infinity. Latents are neither 8-bit nor within
    [-1, 1]; the published loss nevertheless uses this term. In float32 round-off dominates it
    beyond about five standard deviations.
    Source: Ho et al. 2020, equation 13.
    """
    inverse_std = torch.exp(-model.log_variance / 2)
    above = _normal_cdf((x - model.mean + PIXEL_HALF_WIDTH) * inverse_std)
    below = _normal_cdf((x - model.mean - PIXEL_HALF_WIDTH) * inverse_std)
    probability = torch.where(x < -0.999, above, torch.where(x > 0.999, 1 - below, above - below))
    return probability.clamp(min=SMALLEST_PROBABILITY).log()


def _normal_cdf(z: Latents) -> Latents:
    """The tanh approximation that the published loss takes; its error is below 4e-4."""
    return (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) / 2


def _mean_per_image(elements: Latents) -> Float[Tensor, " batch"]:
    return elements.flatten(1).mean(1)
