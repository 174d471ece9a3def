"""Images in files: a folder, or a zip of it read in place.

An image's class is the folder that directly holds it; classes are numbered in alphabetical order
(by code point), images in the order of class, then path. So ``train/cat/1.png`` and
``test/cat/1.png`` are of one class; name ``FOLDER/train`` (or ``FILE.zip/train``) to take one of
them alone. Files are taken by their extension, decoded by their content. What begins with a dot,
and ``__MACOSX``, is hidden.
"""

import io
import os
import stat
import zipfile
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from runtime.errors import UserError
from runtime.image_source import FORMATS, ImageSource

EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


class ImageFiles(ImageSource):
    """Image files with paths relative to a root."""

    def __init__(self, listed: list[str], root: str) -> None:
        """``listed`` holds the paths of all files and, with a / at the end, of folders."""
        images = [path for path in listed if path.lower().endswith(EXTENSIONS)]
        if not images:
            raise UserError(f"no images in {root} (files that end in {', '.join(EXTENSIONS)})")
        _refuse_empty_classes(listed, images, root)
        parents = {path: _parent(path).rstrip("/").rpartition("/")[2] for path in images}
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
        content = self._content(self.names[index])
        if not content:
            raise ValueError("the file is empty")
        return Image.open(io.BytesIO(content), formats=FORMATS)

    @abstractmethod
    def _content(self, path: str) -> bytes: ...


def _refuse_empty_classes(listed: list[str], images: list[str], root: str) -> None:
    """A folder with neither images nor folders in it would be left out of the classes."""
    folders = {_parent(path) for path in listed} | {p for p in listed if p.endswith("/")}
    inner = {_parent(folder) for folder in folders}
    empty = folders - inner - {_parent(path) for path in images} - {""}
    if empty:
        raise UserError(f"the folder {root}/{min(empty).rstrip('/')} holds no images")


def _parent(path: str) -> str:
    """The folder that holds a file or folder: "a/b/" for "a/b/1.png" and for "a/b/c/"."""
    before, slash, _ = path.rstrip("/").rpartition("/")
    return before + slash


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))


class FolderImages(ImageFiles):
    """A folder of class folders; links are followed. A class folder without images is refused."""

    def __init__(self, root: Path) -> None:
        self.root = root
        super().__init__(list(_walk(str(root), "", ())), root.absolute().as_posix())

    def _content(self, path: str) -> bytes:
        file = self.root / path
        if not stat.S_ISREG(file.stat().st_mode):  # reading a pipe would wait for ever
            raise ValueError("it is no regular file")
        return file.read_bytes()


def _walk(folder: str, prefix: str, above: tuple[str, ...]) -> Iterator[str]:
    """Files below a folder and, with a / at the end, folders; ``above`` are those that hold it."""
    place = os.path.realpath(folder)
    if place in above:
        raise UserError(f"{folder} is a link to a folder that holds it")
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if not _is_hidden(entry.name)]
    for entry in shown:
        if entry.is_dir():
            yield f"{prefix}{entry.name}/"
            yield from _walk(entry.path, f"{prefix}{entry.name}/", (*above, place))
        else:
            yield prefix + entry.name


class ZipImages(ImageFiles):
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
        shown = [path for path in paths if path and not any(map(_is_hidden, path.split("/")))]
        super().__init__(shown, f"{archive.with_suffix('').as_posix()}/{self.inside}".rstrip("/"))

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
