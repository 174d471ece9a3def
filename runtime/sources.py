"""Where images come from: a folder, a zip read in place, or the bundled digits.

An image's class is the folder that directly holds it; classes are numbered in alphabetical order,
images in the order of class, then path. So ``train/cat/1.png`` and ``test/cat/1.png`` are of one
class; name ``FOLDER/train`` (or ``FILE.zip/train``) to take one of them alone.
"""

import io
import os
import zipfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import Int
from PIL import Image

from runtime.errors import UserError
from runtime.images import to_rgb

EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


class ImageSource(ABC):
    """Numbered images with their names and labels. May be sent to other processes."""

    names: Sequence[str]
    class_names: Sequence[str]
    labels: Int[np.ndarray, " images"]

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> Image.Image:
        """The image in RGB and in its own size. Raises UserError with its name if it is damaged."""
        try:
            return to_rgb(self._open(index))
        except Exception as error:  # what a decoder raises on a damaged file knows no bounds
            raise UserError(f"cannot read the image {self.names[index]}: {error}") from error

    @abstractmethod
    def _open(self, index: int) -> Image.Image: ...


def open_source(name: str) -> ImageSource:
    """``digits``, ``digits/train``, ``digits/held_out``, a folder, a zip, or a folder in a zip."""
    if name == "digits" or name.startswith("digits/"):
        return Digits(name.partition("/")[2])
    path = Path(name)
    if path.is_dir():
        return FolderImages(path)
    for archive in (path, *path.parents):
        if archive.is_file():
            return ZipImages(archive, path.relative_to(archive).as_posix())
    raise UserError(f"no images at {name!r}: there is no such folder or zip (or name `digits`)")


class _Files(ImageSource):
    """Image files with paths relative to a root."""

    def __init__(self, paths: list[str], root: str) -> None:
        images = [path for path in paths if _is_image(path)]
        if not images:
            raise UserError(f"no images in {root} (files that end in {', '.join(EXTENSIONS)})")
        parents = {path: PurePosixPath(path).parent.name for path in images}
        if "" in parents.values():
            loose = [path for path in images if not parents[path]]
            if len(loose) < len(images):
                raise UserError(
                    f"{root} holds images beside its class folders, for example {min(loose)}"
                )
            parents = dict.fromkeys(images, PurePosixPath(root).name)  # a single class
        self.names = sorted(images, key=lambda path: (parents[path], path))
        self.class_names = sorted(set(parents.values()))
        numbers = {name: number for number, name in enumerate(self.class_names)}
        self.labels = np.array([numbers[parents[path]] for path in self.names], dtype=np.int64)

    def _open(self, index: int) -> Image.Image:
        return Image.open(io.BytesIO(self._content(self.names[index])))

    @abstractmethod
    def _content(self, path: str) -> bytes: ...


def _is_image(path: str) -> bool:
    parts = PurePosixPath(path).parts
    hidden = any(part.startswith((".", "__MACOSX")) for part in parts)
    return not hidden and path.lower().endswith(EXTENSIONS)


class FolderImages(_Files):
    """A folder of class folders. A class folder without images is refused, not left out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        paths: list[str] = []
        for folder, subfolders, files in os.walk(root, followlinks=True):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            inside = [os.path.join(folder, name) for name in files]
            if not subfolders and not any(_is_image(name) for name in files):
                raise UserError(f"the folder {folder} holds no images")
            paths += [Path(path).relative_to(root).as_posix() for path in inside]
        super().__init__(paths, root.absolute().as_posix())

    def _content(self, path: str) -> bytes:
        return (self.root / path).read_bytes()


class ZipImages(_Files):
    """Such a folder inside a zip, read in place; ``inside`` is the folder in it to start from."""

    def __init__(self, archive: Path, inside: str = ".") -> None:
        self.archive = archive
        self.inside = "" if inside == "." else f"{inside}/"
        self._handle: tuple[int, zipfile.ZipFile] | None = None
        try:
            listed = self._zip.namelist()
        except (OSError, zipfile.BadZipFile) as error:
            raise UserError(f"{archive} is no folder and no readable zip: {error}") from error
        twice = [name for name, count in Counter(listed).items() if count > 1]
        if twice:
            raise UserError(f"{archive} holds {twice[0]} more than once")
        start = len(self.inside)
        paths = [name[start:] for name in listed if name.startswith(self.inside)]
        super().__init__(paths, f"{archive.with_suffix('').as_posix()}/{self.inside}".rstrip("/"))

    @property
    def _zip(self) -> zipfile.ZipFile:
        # A handle keeps a position in the file, which processes must not share.
        if self._handle is None or self._handle[0] != os.getpid():
            self._handle = (os.getpid(), zipfile.ZipFile(self.archive))
        return self._handle[1]

    def _content(self, path: str) -> bytes:
        return self._zip.read(self.inside + path)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_handle": None}


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
