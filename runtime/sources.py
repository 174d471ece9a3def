"""Where images come from, by the name that a user gives."""

from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from runtime.errors import UserError
from runtime.hub_images import HubConfig, HubImages
from runtime.image_files import FolderImages, ZipImages
from runtime.image_source import ImageSource

HUB = "hf:"


def open_source(name: str, hub: HubConfig | None = None) -> ImageSource:
    """``digits``, ``digits/train``, ``digits/held_out``, a folder, a zip, a folder in a zip, or
    ``hf:`` and a Hugging Face data set.
    """
    if name == "digits" or name.startswith("digits/"):
        return Digits(name.partition("/")[2])
    if name.startswith(HUB):
        return HubImages(name.removeprefix(HUB), hub or HubConfig())
    path = Path(name)
    if path.is_dir():
        return FolderImages(path)
    for archive in (path, *path.parents):
        if archive.is_file():
            return ZipImages(archive, path.relative_to(archive).as_posix())
    raise UserError(f"no images at {name!r}: there is no such folder or zip (or name `digits`)")


HELD_OUT_EVERY = 6  # of the digits, each sixth is held out: 25 to 37 of each class


class Digits(ImageSource):
    """The 1,797 handwritten digits that come with scikit-learn, 8 x 8 gray levels 0..16.

    ``split`` is ``train`` (1,498 images), ``held_out`` (every sixth, 299) or empty for all.
    Source: Alpaydin and Kaynak 1998, UCI machine learning repository, its test part.
    """

    class_names = tuple(str(digit) for digit in range(10))

    def __init__(self, split: str = "") -> None:
        held_out = np.arange(len(self._bundle[1])) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        splits = {"": held_out | True, "train": ~held_out, "held_out": held_out}
        if split not in splits:
            raise UserError(f"unknown part {split!r} of the digits; there are: train, held_out")
        self._indices = np.flatnonzero(splits[split])
        self.names = [f"digits/{index:04d}" for index in self._indices]
        self.labels = self._bundle[1][self._indices].astype(np.int64)

    @cached_property
    def _bundle(self) -> tuple[np.ndarray, np.ndarray]:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise UserError("the digits need scikit-learn: pip install scikit-learn") from error
        bundle = load_digits()
        return bundle.images, bundle.target

    def _open(self, index: int) -> Image.Image:
        levels = self._bundle[0][self._indices[index]]
        return Image.fromarray(np.floor(levels * 255 / 16 + 0.5).astype(np.uint8))
