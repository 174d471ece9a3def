"""Images to be scored: a folder, a zip or an ``.npz``, one after another in 8 bits."""

import zipfile
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, UInt8

from runtime.errors import UserError
from runtime.image_source import ImageSource
from runtime.sources import open_source

LOSSY = (".jpg", ".jpeg", ".webp")

Labels = Int[np.ndarray, " images"] | None  # None: unknown


@runtime_checkable
class ImageSet(Protocol):
    labels: Labels
    num_lossy: int  # images from files that do not keep every pixel

    def __len__(self) -> int: ...

    def read(self, index: int) -> UInt8[np.ndarray, "height width 3"]: ...


class SourceImages:
    """The images of a folder, a zip or the digits; a size crops them as the encoder does."""

    def __init__(self, source: ImageSource, image_size: int | None = None) -> None:
        self.source = source
        self.image_size = image_size
        self.labels: Labels = source.labels if len(source.class_names) > 1 else None
        self.num_lossy = sum(name.lower().endswith(LOSSY) for name in source.names)

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> UInt8[np.ndarray, "height width 3"]:
        if self.image_size is None:
            return np.array(self.source.read(index))
        return np.array(self.source.square(index, self.image_size))


class NpzImages:
    """``arr_0`` (N, H, W, 3) uint8 of an ``.npz``; labels, where there are any, in ``arr_1``."""

    num_lossy = 0

    def __init__(self, path: Path) -> None:
        self.images = read_array(path, "arr_0")
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.images.shape[3] != 3:
            raise UserError(
                f"{path}: arr_0 is {self.images.dtype} of shape {self.images.shape}, "
                "not uint8 of shape (N, H, W, 3)"
            )
        if not len(self.images):
            raise UserError(f"{path}: arr_0 holds no images")
        self.labels: Labels = read_array(path, "arr_1") if "arr_1" in keys_of(path) else None

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> UInt8[np.ndarray, "height width 3"]:
        return np.array(self.images[index])


class EvenlySpaced:
    """``count`` of the images, spread evenly over all of them."""

    def __init__(self, images: ImageSet, count: int) -> None:
        self.images = images
        self.indices = [i * len(images) // count for i in range(count)]
        self.labels: Labels = None if images.labels is None else images.labels[self.indices]
        self.num_lossy = images.num_lossy

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> UInt8[np.ndarray, "height width 3"]:
        return self.images.read(self.indices[index])


def open_images(name: str, image_size: int | None = None) -> ImageSet:
    """An ``.npz``, a folder, a zip or ``digits``; ``image_size`` crops all but an ``.npz``."""
    if name.endswith(".npz"):
        return NpzImages(Path(name))
    return SourceImages(open_source(name), image_size)


def keys_of(path: Path) -> list[str]:
    """Names of the arrays of an ``.npz``."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is no readable .npz file: {error}") from error


def read_array(path: Path, key: str) -> np.ndarray:
    """One array of an ``.npz``: mapped from the disk where it is stored uncompressed."""
    keys = keys_of(path)
    if key not in keys:
        raise UserError(f"{path} has no array {key!r}; it has: {', '.join(keys)}")
    try:
        mapped = _map(path, f"{key}.npy")
        if mapped is not None:
            return mapped
        with np.load(path, allow_pickle=False) as arrays:
            return arrays[key]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: cannot read the array {key!r}: {error}") from error


def _map(path: Path, member: str) -> np.ndarray | None:
    """50,000 images of 256 x 256 take 10 GB, which no process needs in memory at once."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
        if info.compress_type != zipfile.ZIP_STORED:
            return None
        with archive.open(member) as array:
            version = np.lib.format.read_magic(array)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }.get(version)
            if read_header is None:
                return None
            shape, fortran_order, dtype = read_header(array)
            header_size = array.tell()
    if dtype.hasobject or 0 in shape or shape == ():
        return None
    return np.memmap(
        path, dtype, "r", _start_of(path, info) + header_size, shape, "F" if fortran_order else "C"
    )


def _start_of(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a stored member's bytes begin: behind its local header, which ends in two texts."""
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        name_length = int.from_bytes(file.read(2), "little")
        extra_length = int.from_bytes(file.read(2), "little")
    return info.header_offset + 30 + name_length + extra_length
