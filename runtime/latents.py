"""The latent data set: a folder of shards and the passport that describes them.

    manifest.json             the passport
    shard-00000.safetensors   records, see ``runtime/shards.py``

``id`` is the number of the image in its source. Shards are cut by that number, and the manifest is
written last: a folder with a manifest is whole.
"""

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from runtime.errors import UserError
from runtime.latent_checks import advice, read_passport, read_proven_indices
from runtime.open_files import OpenFiles
from runtime.passport import DTYPES
from runtime.scaling import Scaling
from runtime.shards import record_crc


@dataclass(frozen=True)
class Record:
    values: Shaped[Tensor, "stored rows columns"]  # moments or latents, as stored
    label: int
    id: int


class LatentDataset:
    """A finished latent data set, read by record.

    Opening it proves all but the latents, in seconds: the manifest by its own hash, and by the
    manifest each shard's header, ids, labels and checksums. The latents of a record are proven
    whenever they are read. ``python -m tools.latents verify`` proves all of them at once. Raises
    UserError. It may be sent to other processes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.passport = read_passport(folder)
        indices = read_proven_indices(folder, self.passport)
        self._tags = np.concatenate([index.tags for index in indices])
        self._crcs = np.concatenate([index.crcs for index in indices]).astype(np.uint32)
        self._latents_start = [index.starts for index in indices]  # bytes, by shard and version
        self._paths = [folder / shard.file for shard in self.passport.shards]
        self._first = [cut.start for cut in self.passport.cuts]  # record of each shard
        self._dtype = DTYPES[self.passport.dtype]
        self._record_bytes = int(np.prod(self.passport.stored_shape)) * self._dtype.itemsize
        self._files = OpenFiles()

    def __len__(self) -> int:
        return self.passport.num_images

    @property
    def ids(self) -> Int[np.ndarray, " images"]:
        return self._tags[:, 0]

    @property
    def labels(self) -> Int[np.ndarray, " images"]:
        return self._tags[:, 1]

    @property
    def scaling(self) -> Scaling:
        assert self.passport.scaling is not None
        return self.passport.scaling

    def read(
        self, indices: Int[np.ndarray, " batch"], mirrored: Bool[np.ndarray, " batch"]
    ) -> Shaped[Tensor, "batch stored rows columns"]:
        """Moments or latents of these records as stored; ``mirrored`` takes the mirrored copy.

        Raises UserError for a record that is not as it was written.
        """
        rows = np.empty((len(indices), self._record_bytes), np.uint8)
        for row, index, version in zip(rows, indices.tolist(), mirrored.tolist(), strict=True):
            self._read_into(row, index, int(version))
        values = torch.from_numpy(rows).view(self._dtype)
        return values.unflatten(1, self.passport.stored_shape)

    def record(self, index: int, mirrored: bool = False) -> Record:
        """The record at that place."""
        values = self.read(np.array([index]), np.array([mirrored]))[0]
        return Record(values, int(self.labels[index]), int(self.ids[index]))

    def _read_into(self, row: np.ndarray, index: int, version: int) -> None:
        shard = bisect_right(self._first, index) - 1
        place = index - self._first[shard]
        path = self._paths[shard]
        start = self._latents_start[shard][version] + place * self._record_bytes
        try:
            whole = self._files.read_into(row.data, path, start) == self._record_bytes
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error}") from error
        if not whole or record_crc(self._tags[index], row) != self._crcs[index, version]:
            copy = "the mirrored copy of " if version else ""
            raise UserError(
                f"{path}: {copy}record {place} (id {self.ids[index]}) is damaged; "
                + advice(self.folder)
            )
