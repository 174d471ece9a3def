"""Where the files of a run lie."""

import json
import re
from pathlib import Path
from typing import Any

from runtime.atomic import written_whole

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
    return sorted(folders, key=lambda folder: int(folder.name.removeprefix("step-")), reverse=True)


def write_text(path: Path, text: str) -> None:
    with written_whole(path) as beside:
        beside.write_text(text)


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")
