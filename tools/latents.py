"""Look at a latent data set, and prove it.

python -m tools.latents describe DIR     prints the passport
python -m tools.latents verify DIR       reads every byte: hashes, counts, ids, labels, statistics
"""

import math
from pathlib import Path

from tqdm import tqdm

from runtime.errors import UserError, run
from runtime.latent_checks import OTHER_INDEX, read_passport
from runtime.latent_writer import completed
from runtime.latents import LatentDataset
from runtime.passport import Passport, Shard
from runtime.shard_proof import ShardMeasure, check_shard, measure_shard
from tools.verbs import run_verb


def main(arguments: list[str]) -> None:
    run_verb("tools.latents", VERBS, arguments, __doc__)


def describe(folder: Path) -> None:
    passport = LatentDataset(folder).passport
    print(passport)
    counts = passport.label_histogram
    print(f"{len(passport.shards)} shards; {min(counts)} to {max(counts)} images per class")


def verify(folder: Path) -> None:
    """Prints every problem; raises UserError if there is one."""
    passport = read_passport(folder)
    measures: list[ShardMeasure] = []
    problems: list[str] = []
    for shard in tqdm(passport.shards, unit="shard"):
        try:
            measures.append(checked(folder / shard.file, passport, shard))
        except UserError as error:
            problems.append(str(error))
    try:
        LatentDataset(folder)  # what the shards are together: counts, ids, classes, strangers
    except UserError as error:
        problems.append(str(error))
    if not problems:
        problems = wrong_statistics(passport, completed(passport, measures))
    for problem in problems:
        print(problem)
    if problems:
        raise UserError(f"{folder} is damaged: {problems[0]}")
    print(f"{folder}: {passport.num_images:,} images in {len(passport.shards)} shards, all sound")


def checked(path: Path, passport: Passport, shard: Shard) -> ShardMeasure:
    """The measure of a shard that is what the manifest says."""
    if not path.exists():
        raise UserError(f"{path} is gone")
    index = check_shard(path, passport)
    if len(index.tags) != shard.count:
        raise UserError(f"{path} has {len(index.tags)} records of {shard.count}")
    if index.sha256 != shard.index_sha256:
        raise UserError(f"{path}: {OTHER_INDEX}")
    measure = measure_shard(path, passport)
    if measure.sha256 != shard.sha256:
        raise UserError(f"{path} is not the file that the manifest names: its SHA-256 differs")
    return measure


def wrong_statistics(passport: Passport, measured: Passport) -> list[str]:
    return [
        f"{name} is {found:.6g}, but the manifest says {stated:.6g}"
        for name, stated, found in (
            ("mean", passport.mean, measured.mean),
            ("std", passport.std, measured.std),
        )
        if stated is None
        or found is None
        or not math.isclose(stated, found, rel_tol=1e-5, abs_tol=1e-5)
    ]


VERBS = {"describe": describe, "verify": verify}


if __name__ == "__main__":
    run(main)
