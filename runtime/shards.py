"""One file of a latent data set: what it holds, and its writer.

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
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, Shaped, UInt8
from safetensors.torch import save
from torch import Tensor

from runtime.atomic import written_whole
from runtime.passport import DTYPES, Passport
from runtime.shard_notes import ShardNotes, SkippedImage, cast_error

METADATA = "passport"  # key of the header; one only, since safetensors keeps no order of several

Latents = Mapping[str, Shaped[Tensor, "records stored rows columns"]]  # by the tensor's name


def value_names(passport: Passport) -> list[str]:
    """Names of the tensors that hold latents, one for each version of a record."""
    return [passport.kind, f"{passport.kind}_mirrored"][: 2 if passport.mirrored_copies else 1]


def record_crc(tag: Int[np.ndarray, "2"], latents: UInt8[np.ndarray, " bytes"]) -> int:
    """Of one version of a record; ``tag`` is its id and label."""
    return zlib.crc32(latents.data, zlib.crc32(tag.data))


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
