"""The images to be scored, with what their maker says about them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtime.errors import UserError
from runtime.image_sets import ImageSet, open_images

PARTS = ("images", "samples.npz")  # of a folder that sample.py made


@dataclass(frozen=True)
class SampleSet:
    path: Path
    images: ImageSet
    settings: dict[str, Any]  # all that the images depend on; empty where nobody says


def open_samples(path: Path) -> SampleSet:
    """A folder of sample.py (or its ``images`` or ``samples.npz``), an ``.npz``, a folder or a zip.

    Raises UserError where the images are not as many as their settings say.
    """
    home = path.parent if path.name in PARTS else path
    images = open_images(str(home / "images" if _is_sample_folder(path) else path))
    if not (home / "settings.json").is_file():
        return SampleSet(path, images, {})
    settings = _read_json(home / "settings.json")
    expected = settings.get("num_images", len(images))
    if len(images) != expected:
        raise UserError(
            f"{path} holds {len(images)} images, but its settings.json says {expected}: "
            "sample.py, started again, makes those that are missing"
        )
    if (home / "labels.json").is_file():
        images.labels = np.array(_read_json(home / "labels.json")["labels"], dtype=np.int64)
    return SampleSet(path, images, settings)


def _is_sample_folder(path: Path) -> bool:
    return (path / "settings.json").is_file() and (path / "images").is_dir()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}") from error
