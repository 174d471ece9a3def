"""All of a shard but its latents: read, and held against the passport."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from safetensors import SafetensorError, safe_open

from runtime.errors import UserError
from runtime.passport import Passport
from runtime.shard_notes import ShardNotes
from runtime.shards import METADATA, tags_of, value_names

STORED_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}  # safetensors' names


@dataclass(frozen=True)
class ShardIndex:
    """What a file says of its records, and where it keeps their latents."""

    tags: Int[np.ndarray, "records 2"]  # id and label
    crcs: Int[np.ndarray, "records versions"]
    starts: tuple[int, ...]  # byte of the file at which the latents of each version begin
    notes: ShardNotes
    latents_sha256: str  # of notes and latents
    sha256: str  # of the bytes before the latents

    @property
    def ids(self) -> Int[np.ndarray, " records"]:
        return self.tags[:, 0]

    @property
    def labels(self) -> Int[np.ndarray, " records"]:
        return self.tags[:, 1]

    def name(self, record: int) -> str:
        return f"record {record} (id {self.ids[record]})"


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The mapped file. Raises UserError if it is no whole safetensors file."""
    try:
        with safe_open(path, "pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is cut short or damaged: {error}") from error


def read_index(path: Path, passport: Passport) -> ShardIndex:
    """Reads all but the latents.

    Raises UserError for a file whose layout or recipe is not the passport's, or with a label that
    is not among the classes.
    """
    with opened(path) as tensors:
        _require_layout(path, tensors, passport)
        metadata = _metadata(path, tensors, passport)
        ids, labels, crcs = (tensors.get_tensor(name).numpy() for name in ("id", "label", "crc"))
    starts = _starts(path, passport)
    with path.open("rb") as file:
        sha256 = hashlib.sha256(file.read(min(starts))).hexdigest()
    notes = ShardNotes.from_json(metadata["notes"])
    index = ShardIndex(tags_of(ids, labels), crcs, starts, notes, metadata["sha256"], sha256)
    outside = np.flatnonzero((labels < 0) | (labels >= passport.num_classes))
    if len(outside):
        raise UserError(
            f"{path}: {index.name(int(outside[0]))} has label {labels[outside[0]]}, "
            f"but the labels of {passport.num_classes} classes are 0 to {passport.num_classes - 1}"
        )
    return index


def _require_layout(path: Path, tensors: Any, passport: Passport) -> None:
    names = value_names(passport)
    stored = [STORED_DTYPES[passport.dtype], *passport.stored_shape]
    expected = dict.fromkeys(names, stored) | {"label": ["I64"], "id": ["I64"]}
    expected["crc"] = ["I64", len(names)]
    slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
    found = {name: [part.get_dtype(), *part.get_shape()[1:]] for name, part in slices.items()}
    if found != expected:
        raise UserError(f"{path} holds {json.dumps(found)} instead of {json.dumps(expected)}")
    counts = {part.get_shape()[0] for part in slices.values()}
    if len(counts) > 1:
        raise UserError(f"{path} holds tensors of different lengths: {sorted(counts)}")


def _metadata(path: Path, tensors: Any, passport: Passport) -> dict[str, Any]:
    """Recipe, notes and hash, as the header states them."""
    try:
        metadata: dict[str, Any] = json.loads((tensors.metadata() or {})[METADATA])
        recipe, _ = metadata["recipe"].items(), metadata["sha256"]
        ShardNotes.from_json(metadata["notes"])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} does not say how it was made: its header is damaged") from error
    differing = [key for key, value in passport.recipe.items() if (key, value) not in recipe]
    if differing:
        key = differing[0]
        raise UserError(
            f"{path} is of another data set: its {key} is {metadata['recipe'].get(key)} "
            f"instead of {passport.recipe[key]}"
        )
    return metadata


def _starts(path: Path, passport: Passport) -> tuple[int, ...]:
    """Where the latents of each version begin. Nothing but latents follows the first of them."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    places = {name: part["data_offsets"] for name, part in header.items() if name != "__metadata__"}
    names = value_names(passport)
    starts = [places[name][0] for name in names]
    if any(end > min(starts) for name, (_, end) in places.items() if name not in names):
        raise UserError(f"{path} holds other tensors after its latents")
    return tuple(8 + length + start for start in starts)
