"""Small latent data sets, written shard by shard as the encoder does."""

from pathlib import Path

import torch

from runtime.autoencoder import AutoencoderIdentity
from runtime.latent_writer import LatentWriter, cut
from runtime.passport import Passport
from runtime.scaling import Scaling

LATENT_SHAPE = (2, 3, 4)  # not square, so that rows and columns cannot be confused
CLASS_NAMES = ("ant", "bee", "cat")
NUM_IMAGES, SHARD_SIZE = 10, 4


def draft(**changes: object) -> Passport:
    labels = torch.arange(NUM_IMAGES) % len(CLASS_NAMES)
    settings: dict[str, object] = {
        "kind": "moments",
        "latent_shape": LATENT_SHAPE,
        "dtype": "float32",
        "mirrored_copies": True,
        "image_size": 32,
        "crop": "centre",
        "num_images": NUM_IMAGES,
        "class_names": CLASS_NAMES,
        "label_histogram": tuple(torch.bincount(labels).tolist()),
        "autoencoder": AutoencoderIdentity("some/autoencoder", None, "0" * 64),
        "scaling": Scaling(factor=0.5, shift=0.25),
        "mean": None,
        "std": None,
        "shards": cut(NUM_IMAGES, SHARD_SIZE),
    }
    return Passport(**{**settings, **changes})


def values_of(index: int, passport: Passport, log_variance: float) -> torch.Tensor:
    """The record of an image; its mean is ``mean_of(index)``."""
    mean = mean_of(index, passport)
    if passport.kind == "latents":
        return mean
    return torch.cat([mean, torch.full_like(mean, log_variance)])


def mean_of(index: int, passport: Passport) -> torch.Tensor:
    generator = torch.Generator().manual_seed(index)
    return 2 * torch.randn(passport.latent_shape, generator=generator)


def write_latents(folder: Path, log_variance: float, **changes: object) -> Path:
    passport = draft(**changes)
    writer = LatentWriter(folder, passport)
    for shard, ids in enumerate(passport.cuts):
        records = torch.stack([values_of(i, passport, log_variance) for i in ids])
        writer.write(
            shard,
            {passport.kind: records, f"{passport.kind}_mirrored": records.flip(-1)},
            torch.tensor([i % len(CLASS_NAMES) for i in ids]),
            torch.tensor(list(ids)),
        )
    writer.finish([writer.measure(shard) for shard in range(len(passport.shards))])
    return folder
