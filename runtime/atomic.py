"""Files that exist whole or not at all, and the hash that tells one from another."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path, flush: bool = True) -> Iterator[Path]:
    """A path beside ``path`` to write to, which takes its place when the block ends without error.

    ``flush`` waits until the disk has the content, so that not even a power cut leaves half a
    file under the final name; leave it out for files by the thousand that are made again at will.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        if flush:
            wait_for_disk(part)
        os.replace(part, path)
        if flush:
            wait_for_disk(path.parent)
    finally:
        part.unlink(missing_ok=True)


def wait_for_disk(path: Path) -> None:
    """Returns when a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
