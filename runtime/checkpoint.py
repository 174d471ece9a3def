"""Checkpoints: a folder that is whole or is not there.

    step-0050000/  model.safetensors  ema.safetensors  optimizer.pt  state.json  manifest.json

Everything is written beside, flushed and renamed; the manifest, written last, holds size and
SHA-256 of the other files, and a folder counts only when they agree. Nothing needs unpickling:
safetensors, JSON, and an optimizer file that loads with ``weights_only=True``.

While a run goes on, :mod:`runtime.checkpoint_writer` calls ``save`` in a thread of its own.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from runtime.atomic import sha256_of, wait_for_disk
from runtime.config_schema import build
from runtime.config_text import parse_yaml
from runtime.errors import UserError
from runtime.run_folder import partial_of, remove_folder, saved_steps, write_json
from runtime.training_config import TrainConfig, sections_of

CONTENT = ("model.safetensors", "ema.safetensors", "optimizer.pt", "state.json")
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class TrainingState:
    """All of a run that is not a tensor. There is no random state: draws depend on the step."""

    step: int  # optimizer steps done
    images_seen: int
    epoch: float
    ema_updates: int
    config: str  # YAML text
    passport: dict[str, Any]  # of the latents: what sample.py needs to know about them
    versions: dict[str, str]
    loss_scaler: dict[str, float | int] = field(default_factory=dict)  # of fp16
    format_version: int = 1
    interval: dict[str, float | int] = field(
        default_factory=dict
    )  # the log interval that is under way

    def train_config(self) -> TrainConfig:
        tree = parse_yaml(self.config, "the checkpoint's config")
        return build(TrainConfig, tree, sections_of(tree))


@dataclass(frozen=True)
class Checkpoint:
    """A folder whose manifest has been verified, or is about to be."""

    path: Path
    state: TrainingState

    def weights(self, kind: str) -> dict[str, Tensor]:
        """State dict on the CPU; ``kind`` is ``ema`` or ``raw``."""
        name = {"ema": "ema.safetensors", "raw": "model.safetensors"}[kind]
        return safetensors.torch.load_file(self.path / name)

    def optimizer(self) -> dict[str, Any]:
        return torch.load(self.path / "optimizer.pt", map_location="cpu", weights_only=True)

    @property
    def identity(self) -> str:
        """Hash of the manifest, and so of every byte of the checkpoint."""
        return sha256_of(self.path / MANIFEST)


def save(
    folder: Path,
    state: TrainingState,
    weights: dict[str, Tensor],
    average: dict[str, Tensor],
    optimizer: dict[str, Any],
) -> None:
    """Writes a checkpoint folder. Call it on one process, and let the others wait.

    Nothing may change the tensors before it returns.
    """
    beside = partial_of(folder)
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    safetensors.torch.save_file(_own_memory(weights), beside / "model.safetensors")
    safetensors.torch.save_file(_own_memory(average), beside / "ema.safetensors")
    torch.save(optimizer, beside / "optimizer.pt")
    write_json(beside / "state.json", asdict(state))
    for name in CONTENT:
        wait_for_disk(beside / name)
    write_json(beside / MANIFEST, {name: _fingerprint(beside / name) for name in CONTENT})
    if folder.exists():  # only an incomplete or an equal one can be in the way
        remove_folder(folder)
    os.rename(beside, folder)
    wait_for_disk(folder.parent)


def load(path: Path) -> Checkpoint:
    """A checkpoint from a step folder, or the newest whole one of a run folder.

    A step folder that is not whole is an error, which names every part: nothing stands in for it.
    """
    if is_step_folder(path):
        problem = damage(path)
        if problem:
            raise UserError(f"checkpoint {str(path)!r} is not whole: {problem}")
        return read_verified(path)
    if not path.is_dir():
        raise UserError(f"no checkpoint or run folder {str(path)!r}")
    newest = newest_whole(path)
    if newest is None:
        raise UserError(f"no checkpoint in {str(path)!r} (looked for checkpoints/step-*)")
    return newest


def is_step_folder(path: Path) -> bool:
    return (path / MANIFEST).exists() or path.name.startswith("step-")


def newest_whole(run_dir: Path) -> Checkpoint | None:
    """The newest checkpoint of a run that verifies, None for a run without any.

    Damaged ones are passed over with a warning. Where all are damaged that is an error: nobody
    wants a run to begin again in silence.
    """
    problems: list[str] = []
    for folder in saved_steps(run_dir):
        problem = damage(folder)
        if problem is None:
            for passed_over in problems:
                print(f"warning: passing over {passed_over}", flush=True)
            return read_verified(folder)
        problems.append(f"{folder}: {problem}")
    if problems:
        raise UserError(f"no whole checkpoint in {str(run_dir)!r}: {'; '.join(problems)}")
    return None


def damage(folder: Path) -> str | None:
    """What is missing or altered, every part of it; None for a whole checkpoint."""
    problems = [problem for name in CONTENT if (problem := _missing(folder / name))]
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        parts = {name: (manifest[name]["bytes"], manifest[name]["sha256"]) for name in CONTENT}
    except FileNotFoundError:
        return ", ".join([f"{MANIFEST} is missing", *problems])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return ", ".join([f"{MANIFEST} is unreadable ({error})", *problems])
    found = (_altered(folder / name, *expected) for name, expected in parts.items())
    return ", ".join(problem for problem in found if problem) or None


def _missing(path: Path) -> str | None:
    return None if path.is_file() else f"{path.name} is missing"


def _altered(path: Path, num_bytes: int, sha256: str) -> str | None:
    if not path.is_file():
        return _missing(path)
    size = path.stat().st_size
    if size != num_bytes:
        return f"{path.name} has {size} bytes instead of {num_bytes}"
    return None if sha256_of(path) == sha256 else f"{path.name} differs from its SHA-256"


def read_verified(folder: Path) -> Checkpoint:
    """A checkpoint whose bytes need no second check: another process has just made it."""
    values = json.loads((folder / "state.json").read_text())
    if values.get("format_version") != TrainingState.format_version:
        raise UserError(
            f"{folder} has format version {values.get('format_version')}, but this program reads "
            f"{TrainingState.format_version}"
        )
    return Checkpoint(folder, TrainingState(**values))


def _own_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _fingerprint(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
