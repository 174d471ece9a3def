"""Writes a latent data set shard by shard, by any number of processes, again after any kill."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from runtime.errors import UserError
from runtime.passport import MANIFEST, Passport, Shard, first_difference
from runtime.scaling import Scaling
from runtime.shards import ShardMeasure, is_proven, measure_shard, write_shard

DRAFT = "draft.json"  # the passport with its blanks, until the manifest takes its place


def cut(num_images: int, shard_size: int) -> tuple[Shard, ...]:
    """The files of a data set: consecutive ids, ``shard_size`` to a file."""
    starts = range(0, num_images, shard_size)
    return tuple(
        Shard(f"shard-{number:05d}.safetensors", min(shard_size, num_images - start))
        for number, start in enumerate(starts)
    )


class LatentWriter:
    """The folder of a data set in the making.

    Opening it refuses a folder of another data set. Shards that are there and prove themselves
    are kept. One process opens it before the others.
    """

    def __init__(self, folder: Path, draft: Passport) -> None:
        self.folder = folder
        self.draft = draft
        finished = folder / MANIFEST
        if finished.exists():
            self._refuse_another(finished, Passport.load(finished).blank())
        elif (folder / DRAFT).exists():
            self._refuse_another(folder / DRAFT, Passport.load(folder / DRAFT))
        elif folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty, and holds no latent data set to continue")
        else:
            draft.save(folder / DRAFT)

    @property
    def is_finished(self) -> bool:
        return (self.folder / MANIFEST).exists()

    def has(self, shard: int) -> bool:
        """Whether the shard is there, undamaged and made by this recipe."""
        return is_proven(self._path(shard), self.draft)

    def write(
        self,
        shard: int,
        values: Mapping[str, Float[Tensor, "records stored rows columns"]],
        labels: Int[Tensor, " records"],
        ids: Int[Tensor, " records"],
    ) -> None:
        assert len(labels) == len(ids) == self.draft.shards[shard].count
        write_shard(self._path(shard), self.draft, values, labels, ids)

    def measure(self, shard: int) -> ShardMeasure:
        return measure_shard(self._path(shard), self.draft)

    def finish(self, measures: Sequence[ShardMeasure]) -> Passport:
        """Writes the manifest from the measures of all shards, in order."""
        assert len(measures) == len(self.draft.shards)
        passport = completed(self.draft, measures)
        passport.save(self.folder / MANIFEST)
        (self.folder / DRAFT).unlink(missing_ok=True)
        return passport

    def _path(self, shard: int) -> Path:
        return self.folder / self.draft.shards[shard].file

    def _refuse_another(self, path: Path, theirs: Passport) -> None:
        measured = theirs.scaling is not None and theirs.scaling.mode == "per_channel"
        if self.draft.scaling is None and measured:
            theirs = replace(theirs, scaling=None)
        difference = first_difference(self.draft, theirs)
        if difference is not None:
            raise UserError(
                f"{path} is of another data set: {difference}; name another latents_dir"
            )


def completed(draft: Passport, measures: Sequence[ShardMeasure]) -> Passport:
    """The passport with its blanks filled in."""
    num_values = sum(measure.num_values for measure in measures)
    mean = np.sum([measure.sums for measure in measures], axis=0) / num_values
    square = np.sum([measure.square_sums for measure in measures], axis=0) / num_values
    variance = square - mean**2  # per channel
    scaling = draft.scaling or Scaling(
        mean=tuple(mean.tolist()), std=tuple(np.sqrt(variance).tolist())
    )
    offset = scaling.shift + np.array(scaling.mean or (0.0,))
    gain = scaling.factor / np.array(scaling.std or (1.0,))
    normalised_mean = (mean - offset) * gain
    normalised_square = variance * gain**2 + normalised_mean**2
    overall = normalised_mean.mean()
    shards = zip(draft.shards, measures, strict=True)
    return replace(
        draft,
        scaling=scaling,
        mean=float(overall),
        std=float(np.sqrt(normalised_square.mean() - overall**2)),
        shards=tuple(replace(shard, sha256=measure.sha256) for shard, measure in shards),
    )
