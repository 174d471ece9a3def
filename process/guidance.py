"""Classifier-free guidance: dropped labels in training, two predictions in sampling.

Source: Ho and Salimans 2022. Our ``scale`` is their 1 + w: 1 is no guidance.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from process.denoiser import Denoiser
from process.settings import check_fields


def drop_labels(
    y: Int[Tensor, " batch"], u: Float[Tensor, " batch"], probability: float, null_label: int
) -> Int[Tensor, " batch"]:
    """The labels, or the null label where ``u``, uniform in [0, 1), is below ``probability``."""
    return torch.where(u < probability, torch.full_like(y, null_label), y)


@dataclass(frozen=True)
class GuidanceConfig:
    scale: float = field(default=1.0, metadata={"min": 0, "help": "1 is no guidance"})
    guided_channels: int | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "first channels that are guided; null guides all; "
            "3 gives the published DiT and SiT numbers",
        },
    )
    interval: tuple[float, float] | None = field(
        default=None,
        metadata={
            "help": "guide only where low <= time <= high, in the process's own time "
            "(DiT: timestep, SiT: t); null guides everywhere"
        },
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.interval is not None and self.interval[0] > self.interval[1]:
            raise ValueError(f"interval = {self.interval} has to be [low, high]")


class GuidedDenoiser:
    """Moves a prediction away from the unconditional one: ``null + scale (conditional - null)``.

    Guided are the first ``guided_channels`` of the latent channels; the others, and a variance
    half, stay those of the conditional prediction. The network runs once per call where no image
    is guided, else once on a doubled batch.
    """

    def __init__(self, denoiser: Denoiser, config: GuidanceConfig, null_label: int) -> None:
        self.denoiser = denoiser
        self.config = config
        self.null_label = null_label

    def __call__(
        self,
        x_t: Float[Tensor, "batch channels height width"],
        t: Shaped[Tensor, " batch"],
        y: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch predicted height width"]:
        guided_images = self._guided_images(t)
        if not guided_images.any():
            return self.denoiser(x_t, t, y)
        both = self.denoiser(
            torch.cat([x_t, x_t]),
            torch.cat([t, t]),
            torch.cat([y, torch.full_like(y, self.null_label)]),
        )
        conditional, null = both.chunk(2)
        channels = self._num_guided_channels(x_t)
        guided = null[:, :channels] + self.config.scale * (conditional - null)[:, :channels]
        guided = torch.where(guided_images[:, None, None, None], guided, conditional[:, :channels])
        return torch.cat([guided, conditional[:, channels:]], dim=1)

    def _guided_images(self, t: Shaped[Tensor, " batch"]) -> Shaped[Tensor, " batch"]:
        # Built on the CPU where it depends on no time, so that a GPU need not be waited for.
        if self.config.scale == 1:
            return torch.zeros(len(t), dtype=torch.bool)
        if self.config.interval is None:
            return torch.ones(len(t), dtype=torch.bool)
        low, high = self.config.interval
        return (low <= t) & (t <= high)

    def _num_guided_channels(self, x_t: Float[Tensor, "batch channels height width"]) -> int:
        channels = (
            x_t.shape[1] if self.config.guided_channels is None else self.config.guided_channels
        )
        if channels > x_t.shape[1]:
            raise ValueError(
                f"guided_channels = {channels}, but the latents have {x_t.shape[1]} channels"
            )
        return channels
