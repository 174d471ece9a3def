"""The latent data set: a folder of shards and the passport that describes them.

    manifest.json             the passport
    shard-00000.safetensors   records, see ``runtime/shards.py``

``id`` is the number of the image in its source. Shards are cut by that number, and the manifest is
written last: a folder with a manifest is whole.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from safetensors import safe_open
from torch import Tensor

from runtime.errors import UserError
from runtime.passport import MANIFEST, Passport
from runtime.scaling import Scaling
from runtime.shards import count_records, labels_and_ids


@dataclass(frozen=True)
class Record:
    values: Float[Tensor, "stored rows columns"]  # moments or latents, as stored
    label: int
    id: int


class LatentDataset:
    """A finished latent data set, read by slice from mapped files.

    Opening it holds the passport against the shards' headers, sizes, ids and labels, which takes
    seconds; ``python -m tools.latents verify`` reads every byte. Raises UserError. It may be sent
    to other processes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.passport = _read_passport(folder)
        _check_counts(folder, self.passport)
        self.labels, self.ids = _read_labels_and_ids(folder, self.passport)
        self._starts = np.cumsum([0] + [shard.count for shard in self.passport.shards])
        self._opened: dict[int, Any] = {}

    def __len__(self) -> int:
        return self.passport.num_images

    @property
    def scaling(self) -> Scaling:
        assert self.passport.scaling is not None
        return self.passport.scaling

    def record(self, index: int, mirrored: bool = False) -> Record:
        """The record at that place; ``mirrored`` takes the latents of the mirrored image."""
        assert 0 <= index < len(self)
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        name = f"{self.passport.kind}_mirrored" if mirrored else self.passport.kind
        row = index - int(self._starts[shard])
        values = self._tensors(shard).get_slice(name)[row]
        return Record(values, int(self.labels[index]), int(self.ids[index]))

    def _tensors(self, shard: int) -> Any:
        if shard not in self._opened:
            path = self.folder / self.passport.shards[shard].file
            self._opened[shard] = safe_open(path, "pt")
        return self._opened[shard]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}


def _read_passport(folder: Path) -> Passport:
    if not folder.is_dir():
        raise UserError(f"no latent data set at {folder}: no such folder; see encode_latents.py")
    if not (folder / MANIFEST).exists():
        raise UserError(
            f"{folder} has no {MANIFEST}: it is no latent data set, or its encoding has not ended"
        )
    passport = Passport.load(folder / MANIFEST)
    if passport.scaling is None or passport.num_images == 0:
        raise UserError(f"{folder / MANIFEST} is that of a data set without scaling or images")
    return passport


def _check_counts(folder: Path, passport: Passport) -> None:
    counts = [count_records(folder / shard.file, passport) for shard in passport.shards]
    expected, found = passport.num_images, sum(count or 0 for count in counts)
    wrong = [
        f"{shard.file} has {'gone' if count is None else f'{count} of {shard.count}'}"
        for shard, count in zip(passport.shards, counts, strict=True)
        if count != shard.count
    ]
    if wrong or found != expected:
        raise UserError(
            f"{folder}: {expected} images expected, {found} found, {expected - found} missing; "
            + "; ".join(wrong[:4])
        )


def _read_labels_and_ids(
    folder: Path, passport: Passport
) -> tuple[Int[np.ndarray, " images"], Int[np.ndarray, " images"]]:
    parts = [labels_and_ids(folder / shard.file, passport) for shard in passport.shards]
    labels = np.concatenate([part[0] for part in parts])
    ids = np.concatenate([part[1] for part in parts])
    distinct, counts = np.unique(ids, return_counts=True)
    if len(distinct) < len(ids):
        raise UserError(f"{folder} has the image with id {distinct[counts > 1][0]} more than once")
    histogram = np.bincount(labels, minlength=passport.num_classes)
    differing = np.flatnonzero(histogram != np.array(passport.label_histogram))
    if len(differing):
        label = differing[0]
        raise UserError(
            f"{folder} has {histogram[label]} images with label {label}, "
            f"but its {MANIFEST} says {passport.label_histogram[label]}"
        )
    return labels, ids
