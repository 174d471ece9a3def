"""What only encoding knows of a shard, and its file keeps: images left out, error of the cast."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor


@dataclass(frozen=True)
class SkippedImage:
    """An image that could not be read, and has no record."""

    id: int  # its number in the source
    label: int
    name: str
    reason: str


@dataclass(frozen=True)
class CastError:
    """How far latents moved when they were cast to the stored dtype: by channel, not scaled."""

    largest: tuple[float, ...]
    square_sums: tuple[float, ...]


@dataclass(frozen=True)
class ShardNotes:
    cast: CastError
    skipped: tuple[SkippedImage, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_bytes(self) -> bytes:
        """What the shard's hash is taken of."""
        return json.dumps(self.to_json(), sort_keys=True).encode()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ShardNotes":
        cast = CastError(**{key: tuple(channels) for key, channels in values["cast"].items()})
        return cls(cast, skipped_from_json(values["skipped"]))


def skipped_from_json(images: Sequence[Mapping[str, Any]]) -> tuple[SkippedImage, ...]:
    return tuple(SkippedImage(**image) for image in images)


def cast_error(
    exact: Sequence[Float[Tensor, "records stored rows columns"]],
    stored: Sequence[Shaped[Tensor, "records stored rows columns"]],
    num_channels: int,
) -> CastError:
    """Of all versions together, over the first ``num_channels``: the latents' means."""
    largest, square_sums = np.zeros(num_channels), np.zeros(num_channels)
    for before, after in zip(exact, stored, strict=True):
        if before.dtype == after.dtype:
            continue
        parts = [values[:, :num_channels].to(torch.float32).numpy() for values in (before, after)]
        moved = np.abs(parts[1] - parts[0])
        largest = np.maximum(largest, moved.max(axis=(0, 2, 3), initial=0))
        # NumPy's sums, unlike torch's, do not depend on the number of threads.
        square_sums += np.square(moved, dtype=np.float64).sum(axis=(0, 2, 3))
    return CastError(tuple(largest.tolist()), tuple(square_sums.tolist()))
