"""Latents per second that the training loader prepares, where the time goes, and its memory.

    python -m benchmarks.loader key=value ...

Speed is measured for each number of workers in turn, round after round, with the files in the page
cache and a consumer that takes no time. The floor is what drawing the normal numbers of a latent
costs by itself: its posterior draw and its noise. Leaves ``results.json`` in ``output_dir``.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import torch

from benchmarks.measure import Case, time_in_turn
from benchmarks.report import Table, machine, write_results
from runtime.autoencoder import AutoencoderIdentity
from runtime.batches import Batch, TrainingStream, posterior_sample, training_loader
from runtime.config import read_options
from runtime.errors import run
from runtime.latent_writer import LatentWriter, plan
from runtime.latents import LatentDataset
from runtime.passport import DTYPES
from runtime.scaling import Scaling
from runtime.seeding import Purpose, generator, normals, uniforms

CPU = torch.device("cpu")


@dataclass(frozen=True)
class LoaderBenchmarkConfig:
    latents_dir: str | None = field(
        default=None, metadata={"help": "encoded latents to read; else some are made up"}
    )
    num_images: int = field(default=4096, metadata={"min": 1, "help": "that are made up"})
    latent_channels: int = field(default=4, metadata={"min": 1, "help": "of these"})
    latent_side: int = field(default=32, metadata={"min": 1, "help": "of these"})
    dtype: str = field(
        default="float16", metadata={"choices": tuple(DTYPES), "help": "of these, as stored"}
    )
    num_workers: tuple[int, ...] = field(default=(0, 1, 2), metadata={"min": 0})
    batch: int = field(default=256, metadata={"min": 1, "help": "latents per batch"})
    batches: int = field(default=40, metadata={"min": 1, "help": "that are timed at a time"})
    rounds: int = field(default=5, metadata={"min": 1})
    memory_batches: int = field(
        default=20_000, metadata={"min": 0, "help": "over which memory is watched"}
    )
    memory_batch: int = field(default=32, metadata={"min": 1, "help": "latents in each of them"})
    output_dir: str = field(default="runs/benchmarks/loader")


@dataclass(frozen=True)
class Speed:
    num_workers: int
    latents_per_second: float  # median
    of_rounds: list[float]


@dataclass(frozen=True)
class Part:
    """One piece of the work on a batch, by itself, in the main process."""

    name: str
    microseconds: float  # per latent
    share: float  # of the whole batch


@dataclass(frozen=True)
class Memory:
    """Resident bytes."""

    batches: int  # so many have been read
    main: int
    workers: int  # the largest of them


def main(arguments: list[str]) -> None:
    config = read_options(LoaderBenchmarkConfig, arguments)
    print(machine("cpu"), flush=True)
    results: list[Speed | Part | Memory] = []
    with _latents(config) as folder:
        dataset = LatentDataset(folder)
        print(dataset.passport, flush=True)
        results += _speeds(config, dataset)
        results += _parts(config, dataset)
        results += _memory(config, dataset)
    path = Path(config.output_dir) / "results.json"
    write_results(path, config, "cpu", results)
    print(path)


@contextmanager
def _latents(config: LoaderBenchmarkConfig) -> Iterator[Path]:
    """The folder to read; one of made-up latents is removed in the end."""
    if config.latents_dir is not None:
        yield Path(config.latents_dir)
        return
    with tempfile.TemporaryDirectory() as folder:
        make_up_latents(config, Path(folder) / "latents")
        yield Path(folder) / "latents"


def make_up_latents(config: LoaderBenchmarkConfig, folder: Path) -> None:
    """Moments with mirrored copies, as encoding with the default settings stores them."""
    shape = (config.latent_channels, config.latent_side, config.latent_side)
    labels = torch.zeros(config.num_images, dtype=torch.int64)
    draft = plan(
        labels.numpy(),
        ("made up",),
        latent_shape=shape,
        image_size=8 * config.latent_side,
        autoencoder=AutoencoderIdentity("none", None, "0" * 64),
        scaling=Scaling(),
        kind="moments",
        mirrored_copies=True,
        dtype=config.dtype,
        crop="none: made up",
    )
    writer = LatentWriter(folder, draft)
    for number, ids in enumerate(draft.cuts):
        mean = normals(0, Purpose.NOISE, number, range(len(ids)), shape)
        moments = torch.cat([mean, torch.full_like(mean, -6.0)], dim=1)
        values = {"moments": moments, "moments_mirrored": moments.flip(-1)}
        writer.write(number, values, labels[: len(ids)], torch.arange(ids.start, ids.stop))
    writer.finish()


# --- speed ------------------------------------------------------------------------------------


def _speeds(config: LoaderBenchmarkConfig, dataset: LatentDataset) -> list[Speed]:
    rounds = [
        {number: _latents_per_second(config, dataset, number) for number in config.num_workers}
        for _ in range(config.rounds)
    ]
    table = Table("Speed", ["workers", "latents per second", "rounds"])
    speeds = []
    for number in config.num_workers:
        found = [of_round[number] for of_round in rounds]
        speeds.append(Speed(number, statistics.median(found), found))
        spread = f"{min(found):,.0f} to {max(found):,.0f}"
        table.row(number, f"{speeds[-1].latents_per_second:,.0f}", spread)
    return speeds


def _latents_per_second(
    config: LoaderBenchmarkConfig, dataset: LatentDataset, num_workers: int
) -> float:
    warm_up = 4 * max(1, num_workers)  # batches, until nothing is left of what was read ahead
    batches = _batches(dataset, config.batch, warm_up + config.batches, num_workers)
    for _ in islice(batches, warm_up):
        pass
    start = time.perf_counter()
    count = sum(len(batch.x) for batch in batches)
    return count / (time.perf_counter() - start)


def _batches(
    dataset: LatentDataset, batch: int, num_steps: int, num_workers: int
) -> Iterator[Batch]:
    return training_loader(
        dataset,
        seed=0,
        global_batch_size=batch,
        num_processes=1,
        process_index=0,
        micro_batch_size=batch,
        first_step=0,
        num_steps=num_steps,
        mirror=dataset.passport.mirrored_copies,
        num_workers=num_workers,
    )


# --- where the time goes ----------------------------------------------------------------------


def _parts(config: LoaderBenchmarkConfig, dataset: LatentDataset) -> list[Part]:
    slots, shape = range(config.batch), dataset.passport.latent_shape
    stream = TrainingStream(dataset, 0, config.batch, mirror=dataset.passport.mirrored_copies)
    indices, mirrored = stream.indices(0, slots), np.arange(config.batch) % 2 == 1
    mirrored &= dataset.passport.mirrored_copies
    stored = dataset.read(indices, mirrored)
    latents, draw = stored.float(), normals(0, Purpose.POSTERIOR, 0, slots, shape)
    cases: dict[str, Case] = {
        "whole batch": partial(stream.batch, 0, slots),
        "read and prove": partial(dataset.read, indices, mirrored),
        "to float32": stored.float,
        "normal draws, first": partial(normals, 0, Purpose.NOISE, 0, slots, shape),
        "uniform draws, one of 3": partial(uniforms, 0, Purpose.TIME, 0, slots),
        "normalise": partial(dataset.scaling.normalise, draw),
        "floor of normal draws": partial(
            generator(0, Purpose.NOISE).standard_normal, (config.batch, *shape), dtype=np.float32
        ),
    }
    if dataset.passport.kind == "moments":
        cases["normal draws, second"] = partial(normals, 0, Purpose.POSTERIOR, 0, slots, shape)
        cases["posterior"] = partial(posterior_sample, latents, draw)
    timings = time_in_turn(cases, rounds=4 * config.rounds, max_seconds=60.0, device=CPU)
    table = Table("Where the time of one process goes", ["part", "us per latent", "share"])
    parts = []
    for name, timing in timings.items():
        parts.append(Part(name, 1e6 * timing.seconds / config.batch, timing.ratio))
        table.row(name, f"{parts[-1].microseconds:.1f}", f"{timing.ratio:.3f}")
    return parts


# --- memory -----------------------------------------------------------------------------------


def _memory(config: LoaderBenchmarkConfig, dataset: LatentDataset) -> list[Memory]:
    """At the start, when everything runs, in the middle and at the end."""
    total, workers = config.memory_batches, max(config.num_workers)
    looks = {max(1, total // 100), total // 2, total} if total else set()
    table = Table(
        f"Memory with {workers} workers", ["batches", "main process, MB", "largest worker, MB"]
    )
    seen = []
    for number, _ in enumerate(_batches(dataset, config.memory_batch, total, workers), start=1):
        if number in looks:
            seen.append(_resident(number))
            table.row(f"{number:,}", f"{seen[-1].main / 1e6:.1f}", f"{seen[-1].workers / 1e6:.1f}")
    return seen


def _resident(batches: int) -> Memory:
    process = psutil.Process()
    workers = [child.memory_info().rss for child in process.children()]
    return Memory(batches, process.memory_info().rss, max(workers, default=0))


if __name__ == "__main__":
    run(main)
