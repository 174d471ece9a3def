"""How far all processes are, without any of them waiting for another."""

import time
from pathlib import Path

from tqdm import tqdm

LOOK_EVERY = 1.0  # seconds between two looks at the folder


class EncodingProgress:
    """A bar over the images of all processes: images/s and time left, both by the mean so far.

    It counts the main process's own images one batch at a time, those of the others by the shards
    that appear in the folder, where ``others`` gives their images. Silent on other processes.
    """

    def __init__(self, num_images: int, others: dict[Path, int], silent: bool) -> None:
        self._bar = tqdm(total=num_images, unit="image", smoothing=0, disable=silent)
        self._others = {} if silent else {path: (_stamp(path), n) for path, n in others.items()}
        self._looked = time.monotonic()

    def __call__(self, count: int) -> None:
        """Tells of so many images more."""
        if time.monotonic() - self._looked > LOOK_EVERY:
            count += self.finished_by_others()
        self._bar.update(count)

    def finished_by_others(self) -> int:
        """Images in shards that were written since the last look."""
        self._looked = time.monotonic()
        finished = [path for path, (stamp, _) in self._others.items() if _stamp(path) != stamp]
        return sum(self._others.pop(path)[1] for path in finished)

    def __enter__(self) -> "EncodingProgress":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave it when all processes are done: then all images are."""
        if kind is None:
            self._bar.update(sum(count for _, count in self._others.values()))
        self._bar.close()


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes when a file is written, or replaced."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns
