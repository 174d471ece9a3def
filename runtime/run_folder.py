"""Where the files of a run lie, and which of its checkpoints stay.

A checkpoint that is being written, and one that is being removed, has a hidden name: no moment
shows half a folder under the name of a whole one.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from runtime.atomic import wait_for_disk, written_whole

_STEP_FOLDER = re.compile(r"step-(\d{7,})")


def checkpoints_dir(run_dir: Path) -> Path:
    return run_dir / "checkpoints"


def step_dir(run_dir: Path, step: int) -> Path:
    return checkpoints_dir(run_dir) / f"step-{step:07d}"


def saved_steps(run_dir: Path) -> list[Path]:
    """The checkpoint folders of a run, newest first; whether they are whole is another question."""
    if not checkpoints_dir(run_dir).is_dir():
        return []
    folders = [f for f in checkpoints_dir(run_dir).iterdir() if _STEP_FOLDER.fullmatch(f.name)]
    return sorted(folders, key=step_of, reverse=True)


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def superseded(
    run_dir: Path, newest: int, keep_last: int | None, keep_every: int | None
) -> list[Path]:
    """The checkpoint folders that may go once the one of step ``newest`` has verified.

    The last ``keep_last`` stay (None: all of them), and those of a multiple of ``keep_every``
    steps. A folder that somebody gave a name of its own is none of ours.
    """
    if keep_last is None:
        return []
    older = [folder for folder in saved_steps(run_dir) if step_of(folder) <= newest][keep_last:]
    return [f for f in older if keep_every is None or step_of(f) % keep_every]


def partial_of(folder: Path) -> Path:
    """Where a checkpoint lies while it is written."""
    return folder.with_name(f".{folder.name}.partial")


def remove_folder(folder: Path) -> None:
    """Hides a checkpoint folder, then removes it."""
    hidden = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    os.rename(folder, hidden)
    wait_for_disk(folder.parent)
    shutil.rmtree(hidden)


def remove_leftovers(run_dir: Path) -> None:
    """Removes what a killed run left behind while it wrote or removed a checkpoint."""
    for ending in ("partial", "removed"):
        for folder in checkpoints_dir(run_dir).glob(f".*.{ending}"):
            shutil.rmtree(folder)


def write_text(path: Path, text: str) -> None:
    with written_whole(path) as beside:
        beside.write_text(text)


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")
