"""What every byte of a shard is held against, and what the passport wants to know of it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from runtime.atomic import sha256_of
from runtime.errors import UserError
from runtime.passport import Passport
from runtime.shard_index import ShardIndex, opened, read_index
from runtime.shard_notes import ShardNotes
from runtime.shards import record_bytes, record_crc, shard_content, value_names


def check_shard(path: Path, passport: Passport) -> ShardIndex:
    """Reads every record. Raises UserError with the first that is not as it was written."""
    index = read_index(path, passport)
    digest = hashlib.sha256(index.notes.to_bytes())
    with opened(path) as tensors:
        for version, name in enumerate(value_names(passport)):
            rows = record_bytes(tensors.get_tensor(name))
            digest.update(rows.data)
            found = [record_crc(*record) for record in zip(index.tags, rows, strict=True)]
            damaged = np.flatnonzero(index.crcs[:, version] != found)
            if len(damaged):
                more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
                raise UserError(
                    f"{path}: {name} of {index.name(int(damaged[0]))} are damaged{more}"
                )
    if digest.hexdigest() != index.latents_sha256:
        raise UserError(f"{path} is damaged: the SHA-256 of its notes and latents differs")
    return index


def proven_index(path: Path, passport: Passport) -> ShardIndex | None:
    """The index of a file that is what ``write_shard`` makes of its records, to the last byte.

    None for any other, or none. Checksums need no look of their own: the bytes include them.
    """
    try:
        index = read_index(path, passport)
        with opened(path) as tensors:
            latents = {name: tensors.get_tensor(name) for name in value_names(passport)}
            labels, ids = tensors.get_tensor("label"), tensors.get_tensor("id")
            content = shard_content(passport, latents, labels, ids, index.notes)
            return index if path.read_bytes() == content else None
    except UserError:
        return None


def is_proven(path: Path, passport: Passport) -> bool:
    return proven_index(path, passport) is not None


@dataclass(frozen=True)
class ShardMeasure:
    """What the passport wants to know of a shard; sums are in float64, per channel."""

    sha256: str
    index_sha256: str
    notes: ShardNotes
    num_values: int  # latents in each channel, mirrored copies included
    sums: tuple[float, ...]
    square_sums: tuple[float, ...]  # with the posterior's variance


def measure_shard(path: Path, passport: Passport) -> ShardMeasure:
    """Reads the whole file. Raises UserError with the ids of records that are not finite."""
    index = read_index(path, passport)
    num_values, sums, square_sums = 0, np.zeros(1), np.zeros(1)
    with opened(path) as tensors:
        for name in value_names(passport):
            # NumPy's sums, unlike torch's, do not depend on the number of threads.
            values = tensors.get_tensor(name).double().numpy()
            bad = index.ids[~np.isfinite(values).all(axis=(1, 2, 3))]
            if len(bad):
                raise UserError(f"{path}: the image with id {bad[0]} has undefined {name}")
            mean, variance = split_moments(values, passport)
            num_values += mean[:, 0].size
            sums = sums + mean.sum(axis=(0, 2, 3))
            square_sums = square_sums + (mean**2 + variance).sum(axis=(0, 2, 3))
    return ShardMeasure(
        sha256=sha256_of(path),
        index_sha256=index.sha256,
        notes=index.notes,
        num_values=num_values,
        sums=tuple(sums.tolist()),
        square_sums=tuple(square_sums.tolist()),
    )


def split_moments(
    values: Float[np.ndarray, "records stored rows columns"], passport: Passport
) -> tuple[
    Float[np.ndarray, "records channels rows columns"],
    Float[np.ndarray, "records channels rows columns"],
]:
    """Mean and variance; latents without a posterior have none."""
    if passport.kind == "latents":
        return values, np.zeros_like(values)
    mean, log_variance = np.split(values, 2, axis=1)
    return mean, np.exp(log_variance)
