"""Every random number of a run, as a pure function of where it is used.

A draw belongs to (seed, purpose, k, j): training draws to the image in global batch slot j at
optimizer step k, sampling draws to image j (and sampling step k). So no number depends on the
count of processes, the batch size, workers or restarts, and there is no random state to save.

The generator is Philox, keyed by the seed, with the place as its counter. torch's
CPU generator keeps 32 bits of its seed: among 50,000 hashed seeds two would collide with a chance
of one in four.
"""

from enum import IntEnum

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


class Purpose(IntEnum):
    """What a draw is for. The numbers are part of a run's identity: never reuse or reorder them."""

    NOISE = 1
    TIME = 2
    LABEL_DROP = 3
    MIRROR = 4
    POSTERIOR = 5
    SAMPLING_START = 6
    SAMPLING_STEP = 7
    SAMPLING_LABEL = 8
    DATA_ORDER = 9
    INITIALISATION = 10


def generator(seed: int, purpose: Purpose, k: int = 0, j: int = 0) -> np.random.Generator:
    """The generator of one place; 0 <= seed < 2^128."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, int(purpose), k, j]))


def normal(
    seed: int, purpose: Purpose, k: int, j: int, shape: tuple[int, ...]
) -> Float[Tensor, "..."]:
    """Standard normal numbers of one place, float32 on the CPU."""
    return torch.from_numpy(generator(seed, purpose, k, j).standard_normal(shape, dtype=np.float32))


def uniform(seed: int, purpose: Purpose, k: int, j: int) -> float:
    """One number in [0, 1) of one place, with float32's resolution."""
    return float(generator(seed, purpose, k, j).random(dtype=np.float32))


def permutation(seed: int, epoch: int, num_records: int) -> Int[np.ndarray, " records"]:
    """The order in which an epoch visits the records of a data set."""
    return generator(seed, Purpose.DATA_ORDER, epoch).permutation(num_records)
