"""A process whose answer is known: data that are Gaussian, with the exact denoiser in place."""

import pytest
import torch
from torch import Tensor

from dit.diffusion import GaussianDiffusion
from dit.variance import LogVariance


class ExactDenoiser:
    """Predicts noise, and the variance where it is learned, for data N(mean, std^2) per element.

    With x_t = alpha x + sigma noise the marginal variance is V = alpha^2 std^2 + sigma^2, and

        E[noise | x_t] = sigma (x_t - alpha mean) / V,    Var[x | x_t] = std^2 sigma^2 / V.

    Computes in float64 and rounds once, to the dtype of its input.
    """

    mean, std = 0.4, 0.5

    def __init__(self, process: GaussianDiffusion) -> None:
        self.chain = process.sampler.chain
        self.learned = process.variance.learned

    def __call__(self, x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        k = torch.searchsorted(self.chain.timesteps, t)
        assert torch.equal(self.chain.timesteps[k], t)
        _, c = self.chain.gather(k, torch.float64)
        marginal_variance = c.alpha.square() * self.std**2 + c.sigma.square()
        noise = c.sigma * (x_t.double() - c.alpha * self.mean) / marginal_variance
        if not self.learned:
            return noise.to(x_t.dtype)
        variance_of_x = self.std**2 * c.sigma.square() / marginal_variance
        step_variance = c.posterior_std.square() + c.posterior_x.square() * variance_of_x
        values = _values_for(step_variance.log(), c.log_posterior, c.log_beta).expand_as(noise)
        return torch.cat([noise, values], dim=1).to(x_t.dtype)


def _values_for(log_variance: LogVariance, low: LogVariance, high: LogVariance) -> Tensor:
    return 2 * (log_variance - low) / (high - low).clamp(min=1e-12) - 1


@pytest.fixture
def exact_denoiser() -> type[ExactDenoiser]:
    """Call it with the process that will sample."""
    return ExactDenoiser
