"""The scaling between an autoencoder's latents and what a network sees."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Scaling:
    """``normalised = (latents - shift - mean) * factor / std``.

    Scalar mode has a factor and a shift, per-channel mode also a mean and a standard deviation
    for each channel. The names and values are those of an autoencoder's config (scaling_factor,
    shift_factor, latents_mean, latents_std).
    """

    factor: float = 1.0
    shift: float = 0.0
    mean: tuple[float, ...] = ()  # per channel; empty in scalar mode
    std: tuple[float, ...] = ()  # likewise

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ValueError(f"{len(self.mean)} means, but {len(self.std)} standard deviations")
        if self.factor == 0 or not all(std > 0 for std in self.std):
            raise ValueError(f"a scaling needs a factor and deviations above 0: {self}")

    @property
    def mode(self) -> str:
        return "per_channel" if self.mean else "scalar"

    def __str__(self) -> str:
        per_channel = (
            f", mean {self.mean} and deviation {self.std} per channel" if self.mean else ""
        )
        return f"{self.mode}: factor {self.factor}, shift {self.shift}{per_channel}"

    def normalise(
        self, latents: Float[Tensor, "*batch channels height width"]
    ) -> Float[Tensor, "*batch channels height width"]:
        """What a network sees."""
        offset, gain = self._offset_and_gain(latents)
        return (latents - offset) * gain

    def denormalise(
        self, latents: Float[Tensor, "*batch channels height width"]
    ) -> Float[Tensor, "*batch channels height width"]:
        """What a decoder takes."""
        offset, gain = self._offset_and_gain(latents)
        return latents / gain + offset

    def _offset_and_gain(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        num_channels = latents.shape[-3]
        if self.mean and len(self.mean) != num_channels:
            raise ValueError(f"a scaling of {len(self.mean)} channels for {num_channels} channels")
        mean = torch.tensor(self.mean or (0.0,), dtype=torch.float64)
        std = torch.tensor(self.std or (1.0,), dtype=torch.float64)
        offset, gain = self.shift + mean, self.factor / std
        return (
            offset.to(latents)[:, None, None],
            gain.to(latents)[:, None, None],
        )

    def to_json(self) -> dict[str, Any]:
        return {"mode": self.mode, **asdict(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Scaling":
        return cls(values["factor"], values["shift"], tuple(values["mean"]), tuple(values["std"]))
