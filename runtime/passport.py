"""What a latent data set says of itself: ``manifest.json``, format version 2.

Nothing in it differs between two encodings of the same images: no date, host or speed. It ends
with a hash of its own content, so that no number in it changes unnoticed.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from runtime.atomic import written_whole
from runtime.autoencoder import AutoencoderIdentity
from runtime.errors import UserError
from runtime.scaling import Scaling
from runtime.shard_notes import SkippedImage, skipped_from_json

MANIFEST = "manifest.json"
FORMAT_VERSION = 2
KINDS = ("moments", "latents")  # mean and log-variance, or the mean alone
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Shard:
    """One file of records."""

    file: str
    count: int
    sha256: str = ""  # of the file; empty until it is written
    index_sha256: str = ""  # of all of it but the latents, which has a CRC of each of them
    skipped: tuple[SkippedImage, ...] = ()  # images without a record; `count` is of the others

    @property
    def num_images(self) -> int:
        """Images of the source that this file stands for."""
        return self.count + len(self.skipped)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Shard":
        return cls(**{**values, "skipped": skipped_from_json(values["skipped"])})


@dataclass(frozen=True)
class Passport:
    """Everything that a reader of the latents has to know.

    A data set in the making has the same passport with blanks: what is measured at the end.
    """

    kind: str  # one of KINDS
    latent_shape: tuple[int, int, int]  # channels, rows, columns
    dtype: str  # one of DTYPES
    mirrored_copies: bool  # whether each record also holds its mirrored image, encoded
    image_size: int  # pixels
    crop: str  # rule by which images became squares of that size
    num_images: int  # records; skipped images are none
    class_names: tuple[str, ...]  # in the order of their labels
    label_histogram: tuple[int, ...]  # images of each class
    autoencoder: AutoencoderIdentity
    scaling: Scaling | None  # None until measured
    mean: float | None  # of what a network will see: drawn from the posterior, normalised
    std: float | None
    shards: tuple[Shard, ...]
    precision: str = "fp32"  # that the autoencoder computed in
    images_sha256: str = ""  # of the names and labels of all images of the source, in order
    # What the cast to `dtype` moved a latent by, in standard deviations of what a network sees.
    cast_error_max: float | None = None
    cast_error_rms: float | None = None
    format_version: int = FORMAT_VERSION

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def stored_shape(self) -> tuple[int, int, int]:
        channels, rows, columns = self.latent_shape
        return (2 * channels if self.kind == "moments" else channels), rows, columns

    @property
    def skipped(self) -> list[SkippedImage]:
        return [image for shard in self.shards for image in shard.skipped]

    @property
    def recipe(self) -> dict[str, Any]:
        """What makes an image's record; every shard carries it."""
        return {
            "format_version": self.format_version,
            "kind": self.kind,
            "latent_shape": list(self.latent_shape),
            "dtype": self.dtype,
            "precision": self.precision,
            "mirrored_copies": self.mirrored_copies,
            "image_size": self.image_size,
            "crop": self.crop,
            "autoencoder": self.autoencoder.sha256,
            "images_sha256": self.images_sha256,
        }

    def __str__(self) -> str:
        mirrored = ", with mirrored copies" if self.mirrored_copies else ""
        measured = (
            "not measured" if self.std is None else f"mean {self.mean:.4f}, std {self.std:.4f}"
        )
        more = f" ({len(self.skipped):,} more skipped)" if self.skipped else ""
        counts = f"{self.num_images:,} images{more} of {self.num_classes} classes"
        lines = [
            f"{counts}, {self.image_size} px",
            f"{self.kind} {' x '.join(map(str, self.stored_shape))} in {self.dtype}{mirrored}",
            f"autoencoder {self.autoencoder}",
            f"scaling {self.scaling or 'not measured'}",
            f"a network sees {measured}",
        ]
        if self.cast_error_max is not None:
            lines.append(
                f"the cast to {self.dtype} moved latents by {self.cast_error_rms:.1e} of that std "
                f"(root mean square), at most {self.cast_error_max:.1e}"
            )
        return "\n".join(lines)

    @property
    def cuts(self) -> list[range]:
        """The places of each shard's records in the data set."""
        ends = list(accumulate(shard.count for shard in self.shards))
        return [range(end - shard.count, end) for shard, end in zip(self.shards, ends, strict=True)]

    def blank(self) -> "Passport":
        """The passport as it was before anything was measured."""
        histogram = list(self.label_histogram)
        for image in self.skipped:
            histogram[image.label] += 1
        return replace(
            self,
            num_images=self.num_images + len(self.skipped),
            label_histogram=tuple(histogram),
            mean=None,
            std=None,
            cast_error_max=None,
            cast_error_rms=None,
            shards=tuple(Shard(shard.file, shard.num_images) for shard in self.shards),
        )

    def for_sampling(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that sampling needs no data set: all but the shards."""
        return {key: value for key, value in self.to_json().items() if key != "shards"}

    def to_json(self) -> dict[str, Any]:
        scaling = None if self.scaling is None else self.scaling.to_json()
        version = {"format_version": self.format_version}
        return version | asdict(self) | {"num_classes": self.num_classes, "scaling": scaling}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Passport":
        """Raises ValueError for a passport that says too little, or that is of another version."""
        version = values.get("format_version")
        if version != FORMAT_VERSION:
            raise ValueError(
                f"format version {version}, but this program reads {FORMAT_VERSION}; encode again"
            )
        missing = [field.name for field in fields(cls) if field.name not in values]
        if missing:
            raise ValueError(f"no {', '.join(missing)}")
        known = {field.name: values[field.name] for field in fields(cls)}
        scaling = known["scaling"]
        for key in ("latent_shape", "class_names", "label_histogram"):
            known[key] = tuple(known[key])
        known["autoencoder"] = AutoencoderIdentity(**known["autoencoder"])
        known["scaling"] = None if scaling is None else Scaling.from_json(scaling)
        known["shards"] = tuple(map(Shard.from_json, known["shards"]))
        return cls(**known)

    def save(self, path: Path) -> None:
        values = json.loads(json.dumps(self.to_json()))
        text = json.dumps(values | {"sha256": _sha256(values)}, indent=1)
        with written_whole(path) as part:
            part.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Passport":
        """Raises UserError for a file that says too little, or not what was written."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            stated = values.pop("sha256", None)
            passport = cls.from_json(values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is no passport of a latent data set: {error}") from error
        if stated != _sha256(values):
            raise UserError(
                f"{path} was changed after it was written: its SHA-256 differs; "
                "take it back from a copy, or encode into another folder"
            )
        return passport


def _sha256(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def first_difference(ours: Passport, theirs: Passport) -> str | None:
    """The first thing that two passports say differently, in words."""
    for field in fields(Passport):
        mine, other = getattr(ours, field.name), getattr(theirs, field.name)
        if mine != other:
            shown = (_short(str(value)) for value in (mine, other))
            return f"{field.name} is {' instead of '.join(shown)}"
    return None


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
