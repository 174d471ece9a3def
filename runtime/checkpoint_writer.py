"""Writes checkpoints while training goes on.

The training thread stops only for as long as it takes to copy the run's tensors to the CPU. A
thread then writes the copy, flushes, renames and verifies it, and removes the checkpoints that it
supersedes. One is written at a time: the next waits for the one before.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from runtime import checkpoint as checkpoints
from runtime.errors import UserError
from runtime.run_folder import remove_folder, step_dir, superseded


@dataclass(frozen=True)
class Snapshot:
    """A run at one step, in memory that training does not touch."""

    state: checkpoints.TrainingState
    weights: dict[str, Tensor]
    average: dict[str, Tensor]
    optimizer: dict[str, Any]

    @classmethod
    def of(
        cls,
        state: checkpoints.TrainingState,
        weights: Mapping[str, Tensor],
        average: Mapping[str, Tensor],
        optimizer: Mapping[str, Any],
    ) -> "Snapshot":
        tensors = copied_to_cpu([dict(weights), dict(average), dict(optimizer)])
        return cls(state, *tensors)


def copied_to_cpu(tree: Any) -> Any:
    """The tree of dicts and lists with every tensor copied to memory of its own on the CPU."""
    copies = _copied(tree)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()  # the copies were only asked for
    return copies


def _copied(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return _copied_tensor(tree.detach())
    if isinstance(tree, Mapping):
        return {key: _copied(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_copied(value) for value in tree]
    return copy.deepcopy(tree)


def _copied_tensor(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor.clone(memory_format=torch.contiguous_format)
    # Page-locked memory, which torch keeps for the next time: the GPU fills it at full speed.
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


class CheckpointWriter:
    """Writes the checkpoints of one run folder, in the background. For one process of a run.

    ``keep_last`` and ``keep_every`` as in the config. The thread is no daemon: Python itself
    waits for it when a run ends with an error.
    """

    def __init__(self, run_dir: Path, keep_last: int | None, keep_every: int | None) -> None:
        self.run_dir = run_dir
        self.keep_last, self.keep_every = keep_last, keep_every
        self._thread: Thread | None = None
        self._failure: str | None = None

    def start(self, snapshot: Snapshot) -> None:
        """Begins to write; waits for the one before."""
        self.wait()
        self._thread = Thread(target=self._write, args=(snapshot,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Returns when all that was started is written and verified.

        Raises :class:`UserError` if that failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raises :class:`UserError` if a checkpoint could not be written; waits for nothing."""
        if self._failure is not None:
            raise UserError(self._failure)

    def _write(self, snapshot: Snapshot) -> None:
        folder = step_dir(self.run_dir, snapshot.state.step)
        try:
            write_verified(folder, snapshot)
            for old in superseded(
                self.run_dir, snapshot.state.step, self.keep_last, self.keep_every
            ):
                remove_folder(old)
        except Exception as error:  # of any kind: it is raised again in the thread that trains
            kind = type(error).__name__
            self._failure = f"saving {str(folder)!r} failed: {kind}: {error}"


def write_verified(folder: Path, snapshot: Snapshot) -> None:
    """Writes a checkpoint and reads it again; raises OSError if it is not what was written."""
    checkpoints.save(folder, snapshot.state, snapshot.weights, snapshot.average, snapshot.optimizer)
    problem = checkpoints.damage(folder)
    if problem is not None:
        raise OSError(f"it does not verify: {problem}")
