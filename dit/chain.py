"""The chain of DDPM in numbers: every coefficient of every step, in float64.

Index k = 0 ... K - 1 counts the states of a chain from the least to the most noisy one; state k is

    x_t = alpha x + sigma noise,    alpha = sqrt(alpha_bar), sigma = sqrt(1 - alpha_bar).

The state before the first is x itself. Beware that DDPM calls 1 - beta, the factor of a
single step, alpha; ours is the signal's scale, as in the interpolants of SiT.
Source: Ho et al. 2020, equations 4 and 7.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

Latents = Float[Tensor, "batch channels height width"]


class Coefficients(NamedTuple):
    """The numbers of one state, or of one state per image, or tables over all states."""

    alpha: Tensor
    sigma: Tensor
    previous_alpha: Tensor  # of the state before, 1 for the first
    previous_sigma: Tensor
    posterior_x: Tensor  # mean of q(previous state | x_t, x) = posterior_x x + posterior_x_t x_t
    posterior_x_t: Tensor
    posterior_std: Tensor  # of the same distribution
    log_beta: Tensor  # log-variances that bound the true one of p(previous state | x_t)
    log_posterior: Tensor
    log_fixed_large: Tensor

    def noisy(self, x: Latents, noise: Latents) -> Latents:
        return self.alpha * x + self.sigma * noise

    def clean(self, x_t: Latents, noise: Latents) -> Latents:
        return (x_t - self.sigma * noise) / self.alpha

    def noise(self, x_t: Latents, x: Latents) -> Latents:
        return (x_t - self.alpha * x) / self.sigma

    def posterior_mean(self, x: Latents, x_t: Latents) -> Latents:
        """Mean of the state before ``x_t``, given the clean latents."""
        return self.posterior_x * x + self.posterior_x_t * x_t


class Chain:
    """A chain of states with the cumulative products ``alpha_bar``.

    ``timesteps`` are the indices of its states in the training chain, which is what the network
    is told.
    """

    def __init__(
        self, alpha_bar: Float64[Tensor, " states"], timesteps: Int64[Tensor, " states"]
    ) -> None:
        self.alpha_bar = alpha_bar
        self.timesteps = timesteps
        self.tables = _tables(alpha_bar)
        self._copies: dict[
            tuple[torch.device, torch.dtype], tuple[Int64[Tensor, " states"], Coefficients]
        ] = {}

    def __len__(self) -> int:
        return len(self.alpha_bar)

    def respaced(self, kept: list[int]) -> "Chain":
        """The chain of the ``kept`` states alone; a step covers the gap between two of them."""
        return Chain(self.alpha_bar[kept], self.timesteps[kept])

    def at(self, k: int) -> tuple[int, Coefficients]:
        """Timestep and coefficients of state ``k``.

        The coefficients are 0-d float64 tensors: latents on any device keep their dtype when
        multiplied by them.
        """
        return int(self.timesteps[k]), Coefficients(*(table[k] for table in self.tables))

    def gather(
        self, k: Int[Tensor, " batch"], dtype: torch.dtype
    ) -> tuple[Int64[Tensor, " batch"], Coefficients]:
        """Timestep and coefficients of one state per image, on the device of ``k``."""
        timesteps, tables = self._copy(k.device, dtype)
        return timesteps[k], Coefficients(*(table[k, None, None, None] for table in tables))

    def _copy(
        self, device: torch.device, dtype: torch.dtype
    ) -> tuple[Int64[Tensor, " states"], Coefficients]:
        # Kept, because a copy per training step would make the host wait for the device.
        if (device, dtype) not in self._copies:
            tables = Coefficients(*(table.to(dtype).to(device) for table in self.tables))
            self._copies[device, dtype] = (self.timesteps.to(device), tables)
        return self._copies[device, dtype]


def _tables(alpha_bar: Float64[Tensor, " states"]) -> Coefficients:
    previous = torch.cat([alpha_bar.new_ones(1), alpha_bar[:-1]])
    beta = 1 - alpha_bar / previous
    posterior_variance = beta * (1 - previous) / (1 - alpha_bar)
    # The first posterior variance is 0, as x is then known. Its logarithm borrows the value of
    # the second state, and of beta in a chain of one state.
    substitute = posterior_variance[1:2] if len(beta) > 1 else beta
    return Coefficients(
        alpha=alpha_bar.sqrt(),
        sigma=(1 - alpha_bar).sqrt(),
        previous_alpha=previous.sqrt(),
        previous_sigma=(1 - previous).sqrt(),
        posterior_x=beta * previous.sqrt() / (1 - alpha_bar),
        posterior_x_t=(1 - previous) * (1 - beta).sqrt() / (1 - alpha_bar),
        posterior_std=posterior_variance.sqrt(),
        log_beta=beta.log(),
        log_posterior=torch.cat([substitute, posterior_variance[1:]]).log(),
        log_fixed_large=torch.cat([substitute, beta[1:]]).log(),
    )
