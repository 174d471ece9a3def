"""Writes a latent data set shard by shard, by any number of processes, again after any kill."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from runtime.autoencoder import AutoencoderIdentity
from runtime.errors import UserError
from runtime.passport import MANIFEST, Passport, Shard, first_difference
from runtime.scaling import Scaling
from runtime.shard_notes import SkippedImage
from runtime.shard_proof import ShardMeasure, measure_shard, proven_index
from runtime.shards import write_shard

DRAFT = "draft.json"  # the passport with its blanks, until the manifest takes its place


def cut(num_images: int, shard_size: int) -> tuple[Shard, ...]:
    """The files of a data set: consecutive ids, ``shard_size`` to a file."""
    starts = range(0, num_images, shard_size)
    return tuple(
        Shard(f"shard-{number:05d}.safetensors", min(shard_size, num_images - start))
        for number, start in enumerate(starts)
    )


def plan(
    labels: Int[np.ndarray, " images"],
    class_names: Sequence[str],
    latent_shape: tuple[int, int, int],
    image_size: int,
    autoencoder: AutoencoderIdentity,
    scaling: Scaling | None,
    kind: str = "latents",
    mirrored_copies: bool = False,
    dtype: str = "float32",
    crop: str = "not stated",
    shard_size: int = 1024,
) -> Passport:
    """The passport of a data set to be, with blanks for what is measured.

    ``scaling`` None measures a mean and deviation per channel. Words are those of ``Passport``.
    """
    histogram = np.bincount(labels, minlength=len(class_names))
    return Passport(
        kind=kind,
        latent_shape=latent_shape,
        dtype=dtype,
        mirrored_copies=mirrored_copies,
        image_size=image_size,
        crop=crop,
        num_images=len(labels),
        class_names=tuple(class_names),
        label_histogram=tuple(histogram.tolist()),
        autoencoder=autoencoder,
        scaling=scaling,
        mean=None,
        std=None,
        shards=cut(len(labels), shard_size),
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
        elif folder.exists() and {path.name for path in folder.iterdir()} - {f".{DRAFT}.part"}:
            raise UserError(f"{folder} is not empty, and holds no latent data set to continue")
        else:
            draft.save(folder / DRAFT)

    @property
    def is_finished(self) -> bool:
        return (self.folder / MANIFEST).exists()

    def has(self, shard: int, whole: bool = False) -> bool:
        """Whether the shard is there, undamaged and made by this recipe of the images of its cut.

        ``whole`` asks for all of these images, none skipped.
        """
        index = proven_index(self.path(shard), self.draft)
        if index is None:
            return False
        skipped = [image.id for image in index.notes.skipped]
        ids = sorted([*index.ids.tolist(), *skipped])
        return ids == list(self.draft.cuts[shard]) and not (whole and skipped)

    def write(
        self,
        shard: int,
        values: Mapping[str, Float[Tensor, "records stored rows columns"]],
        labels: Int[Tensor, " records"],
        ids: Int[Tensor, " records"],
        skipped: Sequence[SkippedImage] = (),
    ) -> None:
        count = self.draft.shards[shard].count
        if len(ids) + len(skipped) != count:
            raise ValueError(f"shard {shard} is of {count} images, not {len(ids) + len(skipped)}")
        write_shard(self.path(shard), self.draft, values, labels, ids, skipped)

    def measure(self, shard: int) -> ShardMeasure:
        return measure_shard(self.path(shard), self.draft)

    def finish(self, measures: Sequence[ShardMeasure] | None = None) -> Passport:
        """Writes the manifest from the measures of all shards, in order; without, takes them."""
        if measures is None:
            measures = [self.measure(shard) for shard in range(len(self.draft.shards))]
        assert len(measures) == len(self.draft.shards)
        passport = completed(self.draft, measures)
        passport.save(self.folder / MANIFEST)
        (self.folder / DRAFT).unlink(missing_ok=True)
        return passport

    def path(self, shard: int) -> Path:
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
    """The passport with its blanks filled in. Raises UserError if there is no record at all."""
    plan = draft.blank()
    num_values = sum(measure.num_values for measure in measures)
    if num_values == 0:
        raise UserError(
            f"all {plan.num_images:,} images were skipped; the first: {_first(measures)}"
        )
    mean = np.sum([measure.sums for measure in measures], axis=0) / num_values
    square = np.sum([measure.square_sums for measure in measures], axis=0) / num_values
    variance = np.maximum(square - mean**2, 0)  # per channel
    scaling = draft.scaling or Scaling(
        mean=tuple(mean.tolist()), std=tuple(np.sqrt(variance).tolist())
    )
    offset = scaling.shift + np.array(scaling.mean or (0.0,))
    gain = scaling.factor / np.array(scaling.std or (1.0,))
    normalised_mean = (mean - offset) * gain
    normalised_square = variance * gain**2 + normalised_mean**2
    overall = normalised_mean.mean()
    std = float(np.sqrt(max(normalised_square.mean() - overall**2, 0)))
    cast_max, cast_rms = _cast_errors(measures, gain)
    shards = [_written(*pair) for pair in zip(plan.shards, measures, strict=True)]
    skipped = Counter(image.label for shard in shards for image in shard.skipped)
    histogram = [count - skipped[label] for label, count in enumerate(plan.label_histogram)]
    return replace(
        plan,
        num_images=sum(shard.count for shard in shards),
        label_histogram=tuple(histogram),
        scaling=scaling,
        mean=float(overall),
        std=std,
        cast_error_max=cast_max / (std or 1),
        cast_error_rms=cast_rms / (std or 1),
        shards=tuple(shards),
    )


def _first(measures: Sequence[ShardMeasure]) -> str:
    image = next(image for measure in measures for image in measure.notes.skipped)
    return f"{image.name}: {image.reason}"


def _written(shard: Shard, measure: ShardMeasure) -> Shard:
    skipped = measure.notes.skipped
    count = shard.count - len(skipped)
    return Shard(shard.file, count, measure.sha256, measure.index_sha256, skipped)


def _cast_errors(
    measures: Sequence[ShardMeasure], gain: Float[np.ndarray, " channels"]
) -> tuple[float, float]:
    """Largest and root mean square, of what a network sees."""
    num_values = sum(measure.num_values for measure in measures)
    largest = np.max([measure.notes.cast.largest for measure in measures], axis=0)
    squares = np.sum([measure.notes.cast.square_sums for measure in measures], axis=0) / num_values
    return float((largest * abs(gain)).max()), float(np.sqrt((squares * gain**2).mean()))
