"""Training batches, as a pure function of (seed, step, slot).

The image in global batch slot j of optimizer step k stands at position k B + j of an endless
stream: one epoch after the other, each in an order of its own. Posterior draw, mirror, noise, time
and label drop belong to (seed, k, j) too. So a batch does not depend on the number of processes,
the micro-batch, the loader's workers or restarts, and there is nothing to save but the step.

Everything is prepared in the loader's workers, on the CPU and in float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from runtime.errors import UserError
from runtime.latents import LatentDataset
from runtime.seeding import Purpose, normals, permutation, uniforms

CHUNK = 32  # images at a time, so that what lies between file and batch stays in the cache


class Batch(NamedTuple):
    """What a training step needs, every random number included."""

    x: Float[Tensor, "batch channels height width"]  # clean latents, normalised
    y: Int[Tensor, " batch"]
    noise: Float[Tensor, "batch channels height width"]
    u: Float[Tensor, " batch"]  # in [0, 1), becomes the process's time
    u_drop: Float[Tensor, " batch"]  # in [0, 1), decides whether the label is dropped

    def to(self, device: torch.device) -> "Batch":
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))


@dataclass(frozen=True)
class TrainingStream:
    """All training images of a run, in order."""

    dataset: LatentDataset
    seed: int
    global_batch_size: int  # images per optimizer step, all processes together
    mirror: bool  # take the mirrored copy of every second image, by chance

    def __post_init__(self) -> None:
        if self.mirror and not self.dataset.passport.mirrored_copies:
            raise UserError(
                f"mirror=true, but {self.dataset.folder} has no mirrored copies; "
                "encode with mirrored_copies=true, or set mirror=false"
            )

    def slots(self, num_processes: int, process_index: int) -> range:
        """The slots of each global batch that a process trains on."""
        size, available = self.global_batch_size, len(self.dataset)
        if size % num_processes:
            raise UserError(
                f"global_batch_size {size} is not divisible by the {num_processes} processes"
            )
        if available < size:
            raise UserError(
                f"{self.dataset.folder} has {available} images, fewer than global_batch_size "
                f"{size} ({num_processes} processes)"
            )
        share = size // num_processes
        return range(process_index * share, (process_index + 1) * share)

    def batch(self, step: int, slots: range) -> Batch:
        """The images in these slots of a step. Raises UserError for a damaged record."""
        x = torch.empty(len(slots), *self.dataset.passport.latent_shape)
        for start in range(0, len(slots), CHUNK):
            x[start : start + CHUNK] = self._latents(step, slots[start : start + CHUNK])
        return Batch(
            x=x,
            y=torch.from_numpy(self.dataset.labels[self.indices(step, slots)]),
            noise=self._normals(Purpose.NOISE, step, slots),
            u=uniforms(self.seed, Purpose.TIME, step, slots),
            u_drop=uniforms(self.seed, Purpose.LABEL_DROP, step, slots),
        )

    def indices(self, step: int, slots: range) -> Int[np.ndarray, " batch"]:
        """Which records of the data set the images of these slots are."""
        num_records = len(self.dataset)
        places = (divmod(step * self.global_batch_size + slot, num_records) for slot in slots)
        return np.array([_order(self.seed, epoch, num_records)[place] for epoch, place in places])

    def _latents(self, step: int, slots: range) -> Float[Tensor, "batch channels height width"]:
        """Drawn and normalised."""
        latents = self.dataset.read(self.indices(step, slots), self._mirrored(step, slots)).float()
        if self.dataset.passport.kind == "moments":
            latents = posterior_sample(latents, self._normals(Purpose.POSTERIOR, step, slots))
        return self.dataset.scaling.normalise(latents)

    def _mirrored(self, step: int, slots: range) -> Bool[np.ndarray, " batch"]:
        if not self.mirror:
            return np.zeros(len(slots), bool)
        return uniforms(self.seed, Purpose.MIRROR, step, slots).numpy() < 0.5

    def _normals(
        self, purpose: Purpose, step: int, slots: range
    ) -> Float[Tensor, "batch channels height width"]:
        return normals(self.seed, purpose, step, slots, self.dataset.passport.latent_shape)


@lru_cache(maxsize=2)  # a batch may reach over the end of an epoch
def _order(seed: int, epoch: int, num_records: int) -> Int[np.ndarray, " records"]:
    return permutation(seed, epoch, num_records)


def posterior_sample(
    moments: Float[Tensor, "batch moments height width"],
    draw: Float[Tensor, "batch channels height width"],
) -> Float[Tensor, "batch channels height width"]:
    """``mean + exp(log_variance / 2) draw``."""
    mean, log_variance = moments.chunk(2, dim=1)
    return (log_variance / 2).exp_().mul_(draw).add_(mean)


class MicroBatches(Dataset[Batch | str]):
    """The micro-batches of one process, numbered from its first step on, or what is wrong with one.

    An error is returned, not raised: a worker's traceback would bury its one line.
    """

    def __init__(
        self, stream: TrainingStream, slots: range, micro_batch_size: int, steps: range
    ) -> None:
        self.stream = stream
        self.steps = steps
        self.parts = [
            slots[start : start + micro_batch_size]
            for start in range(0, len(slots), micro_batch_size)
        ]

    def __len__(self) -> int:
        return len(self.steps) * len(self.parts)

    def __getitem__(self, number: int) -> Batch | str:
        step, part = divmod(number, len(self.parts))
        try:
            return self.stream.batch(self.steps[step], self.parts[part])
        except UserError as error:
            return str(error)


def training_loader(
    dataset: LatentDataset,
    *,
    seed: int,
    global_batch_size: int,
    num_processes: int,
    process_index: int,
    micro_batch_size: int,
    first_step: int,
    num_steps: int,
    mirror: bool,
    num_workers: int,
    pin_memory: bool = False,
) -> Iterator[Batch]:
    """The micro-batches of one process in order, of steps ``first_step`` to ``num_steps - 1``.

    Each process has an equal share of consecutive slots, cut into micro-batches; the last one of
    a step is smaller if their size does not divide the share. Raises UserError, on the way too: a
    record is checked when it is read.
    """
    stream = TrainingStream(dataset, seed, global_batch_size, mirror)
    slots = stream.slots(num_processes, process_index)
    micro_batches = MicroBatches(stream, slots, micro_batch_size, range(first_step, num_steps))
    return _sound(
        DataLoader(micro_batches, batch_size=None, num_workers=num_workers, pin_memory=pin_memory)
    )


def _sound(batches: DataLoader[Batch | str]) -> Iterator[Batch]:
    for batch in batches:
        if isinstance(batch, str):
            raise UserError(batch)
        yield batch
