"""One file of a latent data set: written, opened, proven and measured.

Tensors: `moments` (or `latents`), `moments_mirrored` where there are mirrored copies, `label` and
`id` (int64), each with one row a record. The metadata hold a proof: the SHA-256 of all that and of
the recipe (autoencoder, image size, ...), so that neither a changed byte nor a shard of another
data set can pass.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from runtime.atomic import written_whole
from runtime.errors import UserError
from runtime.passport import DTYPES, Passport

PROOF = "proof"


def value_names(passport: Passport) -> list[str]:
    """Names of the tensors that hold latents."""
    return [passport.kind, f"{passport.kind}_mirrored"][: 2 if passport.mirrored_copies else 1]


def write_shard(
    path: Path,
    passport: Passport,
    values: Mapping[str, Float[Tensor, "records stored rows columns"]],
    labels: Int[Tensor, " records"],
    ids: Int[Tensor, " records"],
) -> None:
    """Writes the records whole or not at all; the values are cast to the passport's dtype."""
    dtype = DTYPES[passport.dtype]
    tensors = {name: values[name].to(dtype).contiguous() for name in value_names(passport)}
    tensors |= {"label": labels, "id": ids}
    with written_whole(path) as part:
        save_file(tensors, part, metadata={PROOF: _proof(tensors, passport)})


def _proof(tensors: Mapping[str, Tensor], passport: Passport) -> str:
    digest = hashlib.sha256(passport.recipe.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {list(tensors[name].shape)}".encode())
        digest.update(tensors[name].flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The mapped file. Raises UserError if it is no whole safetensors file."""
    try:
        with safe_open(path, "pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is cut short or damaged: {error}") from error


def is_proven(path: Path, passport: Passport) -> bool:
    """Whether the file is there, and every byte is what was written by the passport's recipe."""
    if not path.exists():
        return False
    try:
        with opened(path) as tensors:
            content = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
            proof = (tensors.metadata() or {}).get(PROOF)
            return bool(proof == _proof(content, passport))
    except UserError:
        return False


def count_records(path: Path, passport: Passport) -> int | None:
    """Records in a file whose header fits the passport; None if there is no file."""
    if not path.exists():
        return None
    stored = [STORED_DTYPES[passport.dtype], *passport.stored_shape]
    expected = dict.fromkeys(value_names(passport), stored) | {"label": ["I64"], "id": ["I64"]}
    with opened(path) as tensors:
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        found = {name: [part.get_dtype(), *part.get_shape()[1:]] for name, part in slices.items()}
        if found != expected:
            raise UserError(f"{path} holds {json.dumps(found)} instead of {json.dumps(expected)}")
        counts = {part.get_shape()[0] for part in slices.values()}
    if len(counts) > 1:
        raise UserError(f"{path} holds tensors of different lengths: {sorted(counts)}")
    return int(counts.pop())


STORED_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}  # safetensors' names


def labels_and_ids(
    path: Path, passport: Passport
) -> tuple[Int[np.ndarray, " records"], Int[np.ndarray, " records"]]:
    """Raises UserError for a label that is not among the classes."""
    with opened(path) as tensors:
        labels, ids = (tensors.get_tensor(name).numpy() for name in ("label", "id"))
    outside = np.flatnonzero((labels < 0) | (labels >= passport.num_classes))
    if len(outside):
        record = outside[0]
        raise UserError(
            f"{path}: record {record} (id {ids[record]}) has label {labels[record]}, "
            f"but the labels of {passport.num_classes} classes are 0 to {passport.num_classes - 1}"
        )
    return labels, ids


@dataclass(frozen=True)
class ShardMeasure:
    """What the passport wants to know of a shard; sums are in float64, per channel."""

    sha256: str
    num_values: int  # latents in each channel, mirrored copies included
    sums: tuple[float, ...]
    square_sums: tuple[float, ...]  # with the posterior's variance


def measure_shard(path: Path, passport: Passport) -> ShardMeasure:
    """Reads the whole file. Raises UserError with the ids of records that are not finite."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    num_values, sums, square_sums = 0, np.zeros(1), np.zeros(1)
    with opened(path) as tensors:
        ids = tensors.get_tensor("id").numpy()
        for name in value_names(passport):
            # NumPy's sums, unlike torch's, do not depend on the number of threads.
            values = tensors.get_tensor(name).double().numpy()
            bad = ids[~np.isfinite(values).all(axis=(1, 2, 3))]
            if len(bad):
                raise UserError(f"{path}: the image with id {bad[0]} has undefined {name}")
            mean, variance = split_moments(values, passport)
            num_values += mean[:, 0].size
            sums = sums + mean.sum(axis=(0, 2, 3))
            square_sums = square_sums + (mean**2 + variance).sum(axis=(0, 2, 3))
    return ShardMeasure(
        digest.hexdigest(), num_values, tuple(sums.tolist()), tuple(square_sums.tolist())
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
