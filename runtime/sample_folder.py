"""The folder of a sample set: numbered PNGs, their labels, and the settings that made them.

    settings.json  images/000000.png ...  labels.json  samples.npz  grid.png

A folder holds one run's images: the settings are written first, and a run with other settings is
refused. Started again, a run makes only the images that are missing. Nothing in the folder
differs between two runs of the same settings.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from runtime.errors import UserError
from runtime.images import save_grid, save_npz, save_png
from runtime.run_folder import write_json

NPZ_BATCH = 64  # images in memory while samples.npz is written


class SampleFolder:
    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.settings = settings

    def open(self) -> None:
        """Makes the folder its settings' own. Call it on one process before any image is saved."""
        stated = self.path / "settings.json"
        if not stated.exists():
            if any((self.path / "images").glob("*.png")):
                raise UserError(f"{str(self.path)!r} holds images of unknown settings")
            write_json(stated, self.settings)
            return
        found = json.loads(stated.read_text())
        ours = json.loads(json.dumps(self.settings))
        differing = [key for key in ours if found.get(key) != ours[key]]
        if differing:
            key = differing[0]
            raise UserError(
                f"{str(self.path)!r} holds images of another run ({key} was "
                f"{json.dumps(found.get(key))}, is {json.dumps(ours[key])}); "
                "choose another output_dir"
            )

    def missing(self, num_images: int) -> list[int]:
        """Indices of the images that are not there yet."""
        return [index for index in range(num_images) if not _has_content(self._png(index))]

    def save(self, index: int, image: UInt8[np.ndarray, "height width 3"]) -> None:
        save_png(image, self._png(index))

    def finish(self, labels: list[int], class_names: list[str], npz: bool) -> None:
        """Labels and ``samples.npz``, once all images are there."""
        write_json(self.path / "labels.json", {"labels": labels, "class_names": class_names})
        if npz:
            height, width, channels = self._read(0).shape
            save_npz(
                self._batches(len(labels)),
                self.path / "samples.npz",
                (len(labels), height, width, channels),
            )

    def draw_grid(
        self, labels: list[int], class_names: list[str], columns: int, max_rows: int
    ) -> None:
        """``grid.png``: a row per class, its first images from left to right."""
        rows = {label: [i for i, y in enumerate(labels) if y == label] for label in set(labels)}
        whole = {y: indices[:columns] for y, indices in rows.items() if len(indices) >= columns}
        shown = sorted(whole)[:max_rows]
        if not shown:  # too few images for one row of any class
            save_grid(
                self._stack(list(range(min(len(labels), columns)))), self.path / "grid.png", columns
            )
            return
        images = self._stack([index for y in shown for index in whole[y]])
        save_grid(images, self.path / "grid.png", columns, [class_names[y] for y in shown])

    def _png(self, index: int) -> Path:
        return self.path / "images" / f"{index:06d}.png"

    def _read(self, index: int) -> UInt8[np.ndarray, "height width 3"]:
        return np.asarray(Image.open(self._png(index)))

    def _stack(self, indices: list[int]) -> UInt8[np.ndarray, "batch height width 3"]:
        return np.stack([self._read(index) for index in indices])

    def _batches(self, num_images: int) -> Iterator[UInt8[np.ndarray, "batch height width 3"]]:
        for start in range(0, num_images, NPZ_BATCH):
            yield self._stack(list(range(start, min(start + NPZ_BATCH, num_images))))


def _has_content(path: Path) -> bool:
    """Files of a machine that lost its power may be empty."""
    return path.exists() and path.stat().st_size > 0
