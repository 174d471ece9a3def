"""One file of a latent data set: written, read and proven.

Tensors, one row a record: `moments` (or `latents`), `moments_mirrored` where there are mirrored
copies, `label`, `id` and `crc` (int64). `crc` has a CRC-32 for each stored version of a record,
over its id, its label and the bytes of its latents, so that a reader proves what it reads and
nothing else. The latents come last in the file; what stands before them is the index. The header
holds the recipe (autoencoder, image size, ...), the notes of ``runtime/shard_notes.py``, and a
SHA-256 of notes and latents.
"""

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Shaped, UInt8
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from runtime.atomic import written_whole
from runtime.errors import UserError
from runtime.passport import DTYPES, Passport
from runtime.shard_notes import ShardNotes, SkippedImage, cast_error

METADATA = "passport"  # key of the header; one only, since safetensors keeps no order of several
STORED_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}  # safetensors' names

Latents = Mapping[str, Shaped[Tensor, "records stored rows columns"]]  # by the tensor's name


def value_names(passport: Passport) -> list[str]:
    """Names of the tensors that hold latents, one for each version of a record."""
    return [passport.kind, f"{passport.kind}_mirrored"][: 2 if passport.mirrored_copies else 1]


def record_crc(tag: Int[np.ndarray, "2"], latents: UInt8[np.ndarray, " bytes"]) -> int:
    """Of one version of a record; ``tag`` is its id and label."""
    return zlib.crc32(latents.data, zlib.crc32(tag.data))


# --- writing ----------------------------------------------------------------------------------


def write_shard(
    path: Path,
    passport: Passport,
    values: Latents,
    labels: Int[Tensor, " records"],
    ids: Int[Tensor, " records"],
    skipped: Sequence[SkippedImage] = (),
) -> None:
    """Writes the records whole or not at all; the values are cast to the passport's dtype."""
    dtype = DTYPES[passport.dtype]
    latents = {name: values[name].to(dtype).contiguous() for name in value_names(passport)}
    exact = [values[name] for name in latents]
    cast = cast_error(exact, list(latents.values()), passport.latent_shape[0])
    notes = ShardNotes(cast, tuple(skipped))
    with written_whole(path) as part:
        part.write_bytes(shard_content(passport, latents, labels, ids, notes))


def shard_content(
    passport: Passport,
    latents: Latents,
    labels: Int[Tensor, " records"],
    ids: Int[Tensor, " records"],
    notes: ShardNotes,
) -> bytes:
    """The whole file, a function of recipe, records and notes."""
    versions = [record_bytes(tensor) for tensor in latents.values()]
    digest = hashlib.sha256(notes.to_bytes())
    for rows in versions:
        digest.update(rows.data)
    index = {"label": labels, "id": ids, "crc": torch.from_numpy(_crcs(labels, ids, versions))}
    metadata = {
        "recipe": passport.recipe,
        "notes": notes.to_json(),
        "sha256": digest.hexdigest(),
    }
    return save({**latents, **index}, {METADATA: json.dumps(metadata)})


def _crcs(
    labels: Int[Tensor, " records"],
    ids: Int[Tensor, " records"],
    versions: list[UInt8[np.ndarray, "records bytes"]],
) -> Int[np.ndarray, "records versions"]:
    tags = tags_of(ids.numpy(), labels.numpy())
    crcs = [[record_crc(*record) for record in zip(tags, rows, strict=True)] for rows in versions]
    return np.array(crcs, dtype=np.int64).T.copy()


def tags_of(
    ids: Int[np.ndarray, " records"], labels: Int[np.ndarray, " records"]
) -> Int[np.ndarray, "records 2"]:
    return np.stack([ids, labels], axis=1).astype("<i8")


def record_bytes(
    latents: Shaped[Tensor, "records stored rows columns"],
) -> UInt8[np.ndarray, "records _"]:
    """The bytes of each record."""
    rows: np.ndarray = latents.flatten(1).view(torch.uint8).numpy()
    return rows


# --- reading ----------------------------------------------------------------------------------


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
