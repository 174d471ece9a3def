"""Reads a folder of golden numbers, and measures how far we are from them."""

import importlib.util
import json
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch


class Golden:
    """A golden folder. What is not in it makes no cases, so that any selection works."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        if not (self.path / "settings.json").exists():
            raise FileNotFoundError(f"no settings.json in the golden folder {self.path}")

    @classmethod
    def of(cls, config: Any) -> "Golden":
        """The folder named on the command line; for ``pytest_generate_tests(metafunc)``."""
        return cls(config.getoption("--golden-dir"))

    @cached_property
    def settings(self) -> dict[str, Any]:
        return json.loads((self.path / "settings.json").read_text())

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def npz(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a file; an absent file has none."""
        if not self.has(name):
            return {}
        with np.load(self.path / name, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}

    def json(self, name: str) -> Any:
        """The content of a JSON file; an absent file is an empty list."""
        return json.loads((self.path / name).read_text()) if self.has(name) else []

    def module(self, name: str) -> ModuleType:
        """A Python file of the folder, as a module (weights and inputs are stored as recipes)."""
        path = self.path / name
        spec = importlib.util.spec_from_file_location(f"golden_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def error(ours: torch.Tensor | np.ndarray, golden: np.ndarray) -> float:
    """max|a - b| / max|b| over the finite entries; infinities and NaNs have to match."""
    a = ours.detach().cpu().numpy() if isinstance(ours, torch.Tensor) else np.asarray(ours)
    b = np.asarray(golden)
    assert a.shape == b.shape, f"shape {a.shape} instead of {b.shape}"
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(b)
    assert np.array_equal(np.where(finite, 0.0, a), np.where(finite, 0.0, b), equal_nan=True)
    if not finite.any():
        return 0.0
    largest = np.abs(b[finite]).max()
    difference = np.abs(a[finite] - b[finite]).max()
    return float(difference if largest == 0 else difference / largest)


def norm_error(ours: torch.Tensor | np.ndarray, golden: np.ndarray) -> float:
    """norm(a - b) / norm(b), the measure of the attention goldens."""
    a = ours.detach().cpu().numpy() if isinstance(ours, torch.Tensor) else np.asarray(ours)
    assert a.shape == golden.shape, f"shape {a.shape} instead of {golden.shape}"
    return float(np.linalg.norm(a.astype(np.float64) - golden) / np.linalg.norm(golden))
