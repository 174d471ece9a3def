"""Every random number of a run, as a pure function of where it is used.

A draw belongs to (seed, purpose, k, j): training draws to the image in global batch slot j at
optimizer step k, sampling draws to image j (and sampling step k). So no number depends on the
count of processes, the batch size, workers or restarts, and there is no random state to save.

The generator is Philox, keyed by the seed, with the place as its counter. torch's
CPU generator keeps 32 bits of its seed: among 50,000 hashed seeds two would collide with a chance
of one in four.
"""

import threading
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
    """A generator of one place; 0 <= seed < 2^128, 0 <= k, j < 2^64."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, int(purpose), k, j]))


def normal(
    seed: int, purpose: Purpose, k: int, j: int, shape: tuple[int, ...]
) -> Float[Tensor, "..."]:
    """Standard normal numbers of one place, float32 on the CPU."""
    return normals(seed, purpose, k, range(j, j + 1), shape)[0]


def normals(
    seed: int, purpose: Purpose, k: int, slots: range, shape: tuple[int, ...]
) -> Float[Tensor, "slots ..."]:
    """``normal`` of several j, in one tensor."""
    draws = np.empty((len(slots), *shape), np.float32)
    for j, draw in zip(slots, draws, strict=True):
        _moved_to(seed, purpose, k, j).standard_normal(dtype=np.float32, out=draw)
    return torch.from_numpy(draws)


def uniform(seed: int, purpose: Purpose, k: int, j: int) -> float:
    """One number in [0, 1) of one place, with float32's resolution."""
    return float(_moved_to(seed, purpose, k, j).random(dtype=np.float32))


def uniforms(seed: int, purpose: Purpose, k: int, slots: range) -> Float[Tensor, " slots"]:
    """``uniform`` of several j."""
    return torch.tensor([uniform(seed, purpose, k, j) for j in slots], dtype=torch.float32)


def permutation(seed: int, epoch: int, num_records: int) -> Int[np.ndarray, " records"]:
    """The order in which an epoch visits the records of a data set."""
    return generator(seed, Purpose.DATA_ORDER, epoch).permutation(num_records)


_thread = threading.local()


def _moved_to(seed: int, purpose: Purpose, k: int, j: int) -> np.random.Generator:
    """This thread's generator, moved to a place: numbers as from ``generator``, much sooner.

    Making a Philox asks the operating system for entropy, whatever its key.
    """
    if not hasattr(_thread, "generator"):
        _thread.generator = np.random.Generator(np.random.Philox(key=0))
    _thread.generator.bit_generator.state = {
        "bit_generator": "Philox",
        "state": {
            "counter": (0, int(purpose), k, j),
            "key": (seed % 2**64, seed >> 64),
        },
        "buffer": (0, 0, 0, 0),
        "buffer_pos": 4,  # of 4: nothing is left in the buffer
        "has_uint32": 0,
        "uinteger": 0,
    }
    return _thread.generator
