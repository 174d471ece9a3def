"""Where the programs lie, and what they leave behind."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

Program = Callable[..., subprocess.CompletedProcess[str]]


def logged(run_dir: Path) -> list[dict[str, Any]]:
    """The entries of a run's log."""
    return [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]


def losses(run_dir: Path) -> dict[int, float]:
    """Step to loss, as logged."""
    return {entry["step"]: entry["loss"] for entry in logged(run_dir)}
