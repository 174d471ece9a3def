"""What a folder of latents is held against before anything is read from it."""

from collections import Counter
from pathlib import Path

import numpy as np

from runtime.errors import UserError
from runtime.passport import MANIFEST, Passport
from runtime.shard_index import ShardIndex, read_index

OTHER_INDEX = f"header, labels, ids or checksums are not those that {MANIFEST} names"


def read_passport(folder: Path) -> Passport:
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


def read_proven_indices(folder: Path, passport: Passport) -> list[ShardIndex]:
    """Of all shards, in order: they are there, made by the passport's recipe, and nothing but the
    latents in them can differ from what was written. Raises UserError, by the most telling reason.
    """
    _refuse_strangers(folder, passport)
    indices = _read_indices(folder, passport)
    _require_distinct_ids(folder, passport, indices)
    for shard, index in zip(passport.shards, indices, strict=True):
        if index.sha256 != shard.index_sha256:
            raise UserError(f"{folder / shard.file}: {OTHER_INDEX}; {advice(folder)}")
    _require_histogram(folder, passport, indices)
    return indices


def advice(folder: Path) -> str:
    """What to do about damage."""
    return (
        f"python -m tools.latents verify {folder} names all damage, encode_latents.py run again "
        "replaces damaged shards"
    )


def _refuse_strangers(folder: Path, passport: Passport) -> None:
    named = {shard.file for shard in passport.shards}
    strangers = sorted({path.name for path in folder.glob("*.safetensors")} - named)
    if strangers:
        raise UserError(
            f"{folder / strangers[0]} is no part of the data set: {MANIFEST} does not name it"
        )


def _read_indices(folder: Path, passport: Passport) -> list[ShardIndex]:
    paths = [folder / shard.file for shard in passport.shards]
    indices = [read_index(path, passport) if path.exists() else None for path in paths]
    counts = [None if index is None else len(index.tags) for index in indices]
    expected, found = passport.num_images, sum(count or 0 for count in counts)
    wrong = [
        f"{shard.file} {'is gone' if count is None else f'has {count} of {shard.count}'}"
        for shard, count in zip(passport.shards, counts, strict=True)
        if count != shard.count
    ]
    if wrong or found != expected:
        raise UserError(
            f"{folder}: {expected} images expected, {found} found, {expected - found} missing; "
            + "; ".join(wrong[:4])
        )
    return [index for index in indices if index is not None]


def _require_distinct_ids(folder: Path, passport: Passport, indices: list[ShardIndex]) -> None:
    ids = np.concatenate([index.ids for index in indices])
    distinct, counts = np.unique(ids, return_counts=True)
    if len(distinct) < len(ids):
        twice = distinct[counts > 1][0]
        homes = zip(passport.shards, indices, strict=True)
        files = Counter({shard.file: int((index.ids == twice).sum()) for shard, index in homes})
        named = " and ".join(files.elements())
        raise UserError(f"{folder} has the image with id {twice} more than once: in {named}")


def _require_histogram(folder: Path, passport: Passport, indices: list[ShardIndex]) -> None:
    labels = np.concatenate([index.labels for index in indices])
    histogram = np.bincount(labels, minlength=passport.num_classes)
    differing = np.flatnonzero(histogram != np.array(passport.label_histogram))
    if len(differing):
        label = differing[0]
        raise UserError(
            f"{folder} has {histogram[label]} images with label {label}, "
            f"but its {MANIFEST} says {passport.label_histogram[label]}"
        )
