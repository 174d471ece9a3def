"""What a process asks of a network: a prediction from noisy latents, time and label."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int, Shaped
from torch import Tensor

StepNoise = Callable[[int], Tensor]
"""Standard normal noise of sampling step ``i``, for the images of the batch at hand."""


@runtime_checkable
class Denoiser(Protocol):
    """A network, or a wrapper around one.

    ``t`` is the process's own time: an integer timestep for DiT, a real number in [0, 1]
    for SiT. A prediction has as many channels as ``x_t``, or twice as many where the second
    half describes a variance.
    """

    def __call__(
        self,
        x_t: Float[Tensor, "batch channels height width"],
        t: Shaped[Tensor, " batch"],
        y: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch predicted height width"]: ...


class CountingDenoiser:
    """Counts network evaluations: calls times images, guidance's second half included."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.denoiser = denoiser
        self.num_evaluations = 0

    def __call__(
        self,
        x_t: Float[Tensor, "batch channels height width"],
        t: Shaped[Tensor, " batch"],
        y: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch predicted height width"]:
        self.num_evaluations += len(x_t)
        return self.denoiser(x_t, t, y)
