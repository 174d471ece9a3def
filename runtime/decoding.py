"""Image files to squares of pixels, batch by batch, in the loader's processes."""

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from runtime.errors import UserError
from runtime.image_source import BadImageError, ImageSource


@dataclass
class DecodedBatch:
    """Errors are told, not raised: a worker's traceback would bury their one line."""

    pixels: UInt8[Tensor, "batch size size 3"]  # black where an image is bad
    bad: dict[int, str] = field(default_factory=dict)  # damaged images by number: the reason
    failure: str | None = None  # something that is no image's own fault


class DecodedBatches(Dataset[DecodedBatch]):
    def __init__(self, source: ImageSource, image_size: int, batches: list[range]) -> None:
        self.source = source
        self.image_size = image_size
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> DecodedBatch:
        indices = self.batches[number]
        size = self.image_size
        batch = DecodedBatch(torch.zeros(len(indices), size, size, 3, dtype=torch.uint8))
        for place, index in enumerate(indices):
            try:
                image = np.array(self.source.square(index, size))
                batch.pixels[place] = torch.from_numpy(image)
            except BadImageError as error:
                batch.bad[index] = error.reason
            except UserError as error:
                batch.failure = str(error)
                break
        return batch


def decoding_loader(
    source: ImageSource, image_size: int, batches: list[range], num_workers: int
) -> DataLoader[DecodedBatch]:
    """The batches in their order, decoded ahead of their use."""
    images = DecodedBatches(source, image_size, batches)
    return DataLoader(images, batch_size=None, num_workers=min(num_workers, len(batches)))
