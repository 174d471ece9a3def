"""Files that are read here and there, a few of them kept open."""

import os
from collections import OrderedDict
from pathlib import Path

LIMIT = 128  # far below the 256 that the meanest system allows a process


class OpenFiles:
    """Reads pieces of files, and keeps those open that were read last.

    A piece is read at its place, without a position that processes could share after a fork, and
    without mapping the file: a mapped file that is cut short kills its reader, and counts as the
    reader's memory.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._descriptors: OrderedDict[Path, int] = OrderedDict()

    def read_into(self, buffer: memoryview, path: Path, start: int) -> int:
        """Fills the buffer from byte ``start`` on; returns the bytes there were. Raises OSError."""
        return os.preadv(self._descriptor(path), [buffer], start)

    def _descriptor(self, path: Path) -> int:
        if path not in self._descriptors:
            if len(self._descriptors) >= self._limit:
                _, oldest = self._descriptors.popitem(last=False)
                os.close(oldest)
            self._descriptors[path] = os.open(path, os.O_RDONLY)
        self._descriptors.move_to_end(path)
        return self._descriptors[path]

    def __del__(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def __reduce__(self) -> tuple[type["OpenFiles"], tuple[int]]:
        return OpenFiles, (self._limit,)
