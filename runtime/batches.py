"""Training batches, as a pure function of (seed, step, slot).

The image in global batch slot j of optimizer step k stands at position k B + j of an endless
stream: one epoch after the other, each in an order of its own. Posterior draw, mirror, noise, time
and label drop belong to (seed, k, j) too. So a batch does not depend on the number of processes,
the micro-batch, the loader's workers or restarts, and there is nothing to save but the step.

Everything is prepared in the loader's workers, on the CPU and in float32.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from runtime.errors import UserError
from runtime.latents import LatentDataset
from runtime.seeding import Purpose, normal, permutation, uniform


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
        """The images in these slots of a step."""
        images = [self._image(step, slot) for slot in slots]
        latents = torch.stack([latents for latents, _ in images])
        noise = [self._normal(Purpose.NOISE, step, slot) for slot in slots]
        return Batch(
            x=self.dataset.scaling.normalise(latents),
            y=torch.tensor([label for _, label in images]),
            noise=torch.stack(noise),
            u=self._uniforms(Purpose.TIME, step, slots),
            u_drop=self._uniforms(Purpose.LABEL_DROP, step, slots),
        )

    def index(self, step: int, slot: int) -> int:
        """Which record of the data set the image of that slot is."""
        epoch, place = divmod(step * self.global_batch_size + slot, len(self.dataset))
        return int(_order(self.seed, epoch, len(self.dataset))[place])

    def _image(self, step: int, slot: int) -> tuple[Float[Tensor, "channels height width"], int]:
        mirrored = self.mirror and uniform(self.seed, Purpose.MIRROR, step, slot) < 0.5
        record = self.dataset.record(self.index(step, slot), mirrored)
        latents = record.values.float()
        if self.dataset.passport.kind == "moments":
            latents = posterior_sample(latents, self._normal(Purpose.POSTERIOR, step, slot))
        return latents, record.label

    def _normal(
        self, purpose: Purpose, step: int, slot: int
    ) -> Float[Tensor, "channels height width"]:
        return normal(self.seed, purpose, step, slot, self.dataset.passport.latent_shape)

    def _uniforms(self, purpose: Purpose, step: int, slots: range) -> Float[Tensor, " batch"]:
        return torch.tensor([uniform(self.seed, purpose, step, slot) for slot in slots])


@lru_cache(maxsize=2)  # a batch may reach over the end of an epoch
def _order(seed: int, epoch: int, num_records: int) -> Int[np.ndarray, " records"]:
    return permutation(seed, epoch, num_records)


def posterior_sample(
    moments: Float[Tensor, "moments height width"], draw: Float[Tensor, "channels height width"]
) -> Float[Tensor, "channels height width"]:
    """``mean + exp(log_variance / 2) draw``."""
    mean, log_variance = moments.chunk(2)
    return mean + (log_variance / 2).exp() * draw


class MicroBatches(Dataset[Batch]):
    """The micro-batches of one process, numbered from its first step on."""

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

    def __getitem__(self, number: int) -> Batch:
        step, part = divmod(number, len(self.parts))
        return self.stream.batch(self.steps[step], self.parts[part])


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
) -> DataLoader[Batch]:
    """The micro-batches of one process in order, of steps ``first_step`` to ``num_steps - 1``.

    Each process has an equal share of consecutive slots, cut into micro-batches; the last one of
    a step is smaller if their size does not divide the share.
    """
    stream = TrainingStream(dataset, seed, global_batch_size, mirror)
    slots = stream.slots(num_processes, process_index)
    micro_batches = MicroBatches(stream, slots, micro_batch_size, range(first_step, num_steps))
    return DataLoader(
        micro_batches, batch_size=None, num_workers=num_workers, pin_memory=pin_memory
    )


LEAST_SPREAD, GREATEST_SPREAD = 0.5, 2.0


def measure(dataset: LatentDataset, seed: int, num_images: int = 256) -> tuple[float, float]:
    """Mean and standard deviation of the first latents that a network will see."""
    num_images = min(num_images, len(dataset))
    stream = TrainingStream(dataset, seed, num_images, mirror=False)
    x = stream.batch(0, range(num_images)).x.double()
    return float(x.mean()), float(x.std())


def spread_warning(std: float) -> str | None:
    """What to tell a user whose latents are spread too little or too much, if they are."""
    if LEAST_SPREAD <= std <= GREATEST_SPREAD:
        return None
    return (
        f"the latents have a standard deviation of {std:.3g}, outside {LEAST_SPREAD} to "
        f"{GREATEST_SPREAD}: they may be scaled twice, or not at all"
    )
