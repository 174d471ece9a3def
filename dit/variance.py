"""The variance of a step back in the chain, p(previous state | x_t): learned or fixed.

The true variance lies between that of the posterior given x, right for data at a single
point, and beta, right for data that are standard normal.
"""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from dit.chain import Coefficients, Latents

LogVariance = Float[Tensor, "*broadcast"]  # a number, one per image, or one per element


class Variance(NamedTuple):
    learned: bool  # the network predicts twice the channels, and the second half is `values`
    log_variance: Callable[[Coefficients, Latents | None], LogVariance]

    def split(
        self, prediction: Float[Tensor, "batch predicted height width"], num_channels: int
    ) -> tuple[Latents, Latents | None]:
        """Predicted noise and, where the variance is learned, its ``values``.

        Raises a ValueError for a prediction whose number of channels does not fit.
        """
        expected = 2 * num_channels if self.learned else num_channels
        if prediction.shape[1] != expected:
            raise ValueError(
                f"a {'learned' if self.learned else 'fixed'} variance of latents with "
                f"{num_channels} channels needs predictions with {expected}, "
                f"found {prediction.shape[1]}"
            )
        if not self.learned:
            return prediction, None
        noise, values = prediction.chunk(2, dim=1)
        return noise, values


def learned_range(c: Coefficients, values: Latents | None) -> LogVariance:
    """Between the bounds on a logarithmic scale: values of -1 and 1 give the lower and upper one.

    Nothing keeps the values inside; outside, the variance goes beyond its bounds.
    Source: Nichol and Dhariwal 2021, equation 15, with v = (values + 1) / 2.
    """
    assert values is not None
    fraction = (values + 1) / 2
    return fraction * c.log_beta + (1 - fraction) * c.log_posterior


def fixed_large(c: Coefficients, values: Latents | None) -> LogVariance:
    """beta, except at the first state, which takes the posterior variance of the second."""
    return c.log_fixed_large


def fixed_small(c: Coefficients, values: Latents | None) -> LogVariance:
    """The variance of the posterior given x."""
    return c.log_posterior


VARIANCES = {
    "learned_range": Variance(True, learned_range),
    "fixed_large": Variance(False, fixed_large),
    "fixed_small": Variance(False, fixed_small),
}
