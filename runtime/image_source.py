"""Numbered images with names and labels, whatever holds them, read one by one in RGB."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int
from PIL import Image, UnidentifiedImageError

from runtime.errors import UserError
from runtime.images import center_crop, to_rgb

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # Pillow's names


class BadImageError(UserError):
    """An image whose content is damaged, by name and reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"cannot read the image {name}: {reason}")
        self.name = name
        self.reason = reason


class ImageSource(ABC):
    """Numbered images with their names and labels. May be sent to other processes."""

    names: Sequence[str]
    class_names: Sequence[str]
    labels: Int[np.ndarray, " images"]

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> Image.Image:
        """The image in RGB and in its own size.

        Raises BadImageError if it is damaged, UserError with its name if it cannot be had at all.
        """
        return self._read(index, to_rgb)

    def square(self, index: int, size: int) -> Image.Image:
        """The same, cropped to a square of ``size`` pixels."""
        return self._read(index, lambda image: center_crop(to_rgb(image), size))

    @property
    def sha256(self) -> str:
        """Of the names and labels of all images, in order; not of their content."""
        digest = hashlib.sha256(json.dumps(list(self.class_names)).encode())
        for name, label in zip(self.names, self.labels.tolist(), strict=True):
            digest.update(json.dumps([name, label]).encode())
        return digest.hexdigest()

    def _read(self, index: int, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
        try:
            return convert(self._open(index))
        except Exception as error:  # what a decoder raises on a damaged file knows no bounds
            name, reason = self.names[index], _reason(error)
            if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
                raise UserError(f"cannot read the image {name}: {reason}") from error
            raise BadImageError(name, reason) from error

    @abstractmethod
    def _open(self, index: int) -> Image.Image: ...


def _reason(error: Exception) -> str:
    """In words that are the same in every run: without folders and addresses in memory."""
    if isinstance(error, UnidentifiedImageError):
        return f"its content is no whole image in one of {', '.join(FORMATS)}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
