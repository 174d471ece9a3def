"""One pass of a feature network over a set of images, shared out over the processes of a run."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor
from tqdm import tqdm

from runtime.errors import UserError
from runtime.features import FeatureExtractor, FeatureSet, Wanted
from runtime.image_sets import ImageSet
from runtime.moments import BlockedMoments, Moments

READERS = 4  # threads that decode images while the network works
LOOK_AHEAD = 2  # batches


@dataclass(frozen=True)
class Extraction:
    features: FeatureSet
    num_images: int
    sizes: list[tuple[int, int]]  # (height, width) that occur
    sha256: str  # of the set of images: the same in whatever order and file they are stored


def extract(
    extractor: FeatureExtractor,
    images: ImageSet,
    wanted: Wanted,
    batch_size: int,
    accelerator: Accelerator,
    title: str,
) -> Extraction:
    """What ``wanted`` asks for, of all images, on every process. All processes have to call it.

    Each process reads one range of images; none is read twice or padded.
    """
    share = share_of(len(images), accelerator.process_index, accelerator.num_processes)
    seen = _Seen(len(share), wanted, extractor.dims)
    is_quiet = not accelerator.is_main_process
    try:
        with tqdm(total=len(share), desc=title, unit="image", disable=is_quiet) as bar:
            for batch in _batches(images, share, batch_size):
                seen.add(batch, extractor.features(batch))
                bar.update(len(batch))
        gaussians = {
            tap: merged(accelerator, moments.total()).gaussian()
            for tap, moments in seen.moments.items()
        }
    except ValueError as error:  # a feature that is not finite, or fewer than two images
        raise UserError(f"{title}: {error}") from error
    rows = {tap: gather_rows(accelerator, rows) for tap, rows in seen.rows.items()}
    labels = None if images.labels is None else torch.from_numpy(np.array(images.labels))
    sizes = gather_rows(accelerator, seen.sizes).unique(dim=0).tolist()
    return Extraction(
        FeatureSet(gaussians, rows, labels),
        len(images),
        [(height, width) for height, width in sizes],
        _digest_of_set(gather_rows(accelerator, seen.digests)),
    )


class _Seen:
    """One process's share of the images, as far as the network has seen it."""

    def __init__(self, num_images: int, wanted: Wanted, dims: dict[str, int]) -> None:
        self.count = 0
        self.moments = {tap: BlockedMoments(dims[tap]) for tap in sorted(wanted.gaussians)}
        self.rows = {tap: torch.empty(num_images, dims[tap]) for tap in sorted(wanted.rows)}
        self.sizes = torch.empty(num_images, 2, dtype=torch.int64)
        self.digests = torch.empty(num_images, hashlib.sha256().digest_size, dtype=torch.uint8)

    def add(
        self,
        images: UInt8[Tensor, "batch height width 3"],
        features: dict[str, Float[Tensor, "batch _"]],
    ) -> None:
        new = slice(self.count, self.count + len(images))
        for tap, moments in self.moments.items():
            moments.update(features[tap])
        for tap, rows in self.rows.items():
            rows[new] = features[tap]
        self.sizes[new] = torch.tensor(images.shape[1:3])
        digests = [bytearray(_digest(image)) for image in images.numpy()]
        self.digests[new] = torch.stack([torch.frombuffer(d, dtype=torch.uint8) for d in digests])
        self.count += len(images)


def share_of(num_images: int, process_index: int, num_processes: int) -> range:
    """The range of images of one process; the ranges cover all images once."""
    return range(
        process_index * num_images // num_processes,
        (process_index + 1) * num_images // num_processes,
    )


def gather_rows(
    accelerator: Accelerator, rows: Shaped[Tensor, "rows _"]
) -> Shaped[Tensor, "all _"]:
    """The rows of all processes in the order of their shares, on the CPU. A collective call."""
    if accelerator.num_processes == 1:
        return rows
    device = accelerator.device
    counts = accelerator.gather(torch.tensor([len(rows)], device=device)).tolist()
    padded = accelerator.pad_across_processes(rows.to(device), dim=0)
    parts = accelerator.gather(padded).cpu().chunk(accelerator.num_processes)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def merged(accelerator: Accelerator, moments: Moments) -> Moments:
    """The moments of all processes together. A collective call."""
    if accelerator.num_processes == 1:
        return moments
    mine = (torch.tensor(moments.count), moments.mean, moments.scatter)
    counts, means, scatters = (
        accelerator.gather(part[None].to(accelerator.device)).cpu() for part in mine
    )
    total = Moments.none(len(moments.mean))
    for count, mean, scatter in zip(counts.tolist(), means, scatters, strict=True):
        total.merge(Moments(count, mean, scatter))
    return total


def _batches(
    images: ImageSet, share: range, batch_size: int
) -> Iterator[UInt8[Tensor, "batch height width 3"]]:
    """Batches of neighbours of one size, decoded ahead of their use."""
    with ThreadPoolExecutor(READERS) as readers:
        ahead = LOOK_AHEAD * batch_size
        waiting = [readers.submit(images.read, index) for index in share[:ahead]]
        for start in range(0, len(share), batch_size):
            next_up = share[start + ahead : start + ahead + batch_size]
            waiting += [readers.submit(images.read, index) for index in next_up]
            batch = [future.result() for future in waiting[:batch_size]]
            del waiting[:batch_size]
            for _, same_size in groupby(batch, key=np.shape):
                yield torch.from_numpy(np.stack(list(same_size)))


def _digest(image: UInt8[np.ndarray, "height width 3"]) -> bytes:
    return hashlib.sha256(repr(image.shape).encode() + image.tobytes()).digest()


def _digest_of_set(digests: UInt8[Tensor, "images bytes"]) -> str:
    ordered = sorted(row.tobytes() for row in digests.numpy())
    return hashlib.sha256(b"".join(ordered)).hexdigest()
