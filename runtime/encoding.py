"""Encoding: images to records of latents, the same whatever the number of processes.

Shards are cut by the number of an image in its source, batches by their place in a shard. One
process encodes a whole shard; images are decoded in the loader's workers meanwhile.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from runtime.autoencoder import Autoencoder
from runtime.errors import UserError
from runtime.images import center_crop, from_uint8, refuse_non_finite
from runtime.latent_writer import cut
from runtime.launch import PRECISIONS
from runtime.passport import DTYPES, KINDS, Passport
from runtime.scaling import Scaling
from runtime.sources import ImageSource

CROP = "shorter side to image_size (halved by box filter, then bicubic), centre square (ADM)"
SCALINGS = ("autoencoder", "scalar", "per_channel")
MODEL_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}  # float32 for the others


@dataclass(frozen=True)
class EncodeConfig:
    images: str = field(
        metadata={
            "help": "folder with one sub-folder per class, a zip of it, or digits, digits/train, "
            "digits/held_out (bundled)"
        }
    )
    latents_dir: str = field(metadata={"help": "folder to write; an unfinished one is continued"})
    autoencoder: str = field(
        metadata={"help": "name on the Hugging Face hub, local folder, or identity (pixels)"}
    )
    autoencoder_revision: str | None = field(
        default=None, metadata={"help": "commit or tag on the hub"}
    )
    image_size: int = field(
        default=256, metadata={"min": 1, "help": "pixels; a multiple of the downsampling"}
    )
    kind: str = field(
        default="moments",
        metadata={
            "choices": KINDS,
            "help": "moments (mean and log-variance; training draws afresh from them), or the mean",
        },
    )
    mirrored_copies: bool = field(
        default=True,
        metadata={"help": "encode each mirrored image too, for mirror=true in training"},
    )
    scaling: str = field(
        default="autoencoder",
        metadata={
            "choices": SCALINGS,
            "help": "what the autoencoder's config states; its factor and shift only; or a mean "
            "and deviation per channel, from its config or else measured on these images",
        },
    )
    # float32 loses nothing; float16 halves the disk space and moves a latent by at most 0.05 %.
    dtype: str = field(
        default="float32", metadata={"choices": tuple(DTYPES), "help": "of the stored latents"}
    )
    precision: str = field(
        default="fp32", metadata={"choices": tuple(PRECISIONS), "help": "of the autoencoder"}
    )
    batch_size: int = field(default=32, metadata={"min": 1, "help": "images at a time"})
    shard_size: int = field(default=1024, metadata={"min": 1, "help": "images per file"})
    num_workers: int = field(
        default=2, metadata={"min": 0, "help": "processes that decode images, per process"}
    )
    timeout_minutes: int = field(
        default=60, metadata={"min": 1, "help": "how long processes wait for the slowest"}
    )


def model_dtype(config: EncodeConfig) -> torch.dtype:
    """In what the autoencoder computes; latents leave it in float32."""
    return MODEL_DTYPES.get(config.precision, torch.float32)


def draft_passport(config: EncodeConfig, source: ImageSource, encoder: Autoencoder) -> Passport:
    """The passport of the data set to be, with blanks for what is measured."""
    if config.image_size % encoder.downsampling:
        raise UserError(
            f"image_size {config.image_size} is not a multiple of {encoder.downsampling}, "
            f"the downsampling of {config.autoencoder}"
        )
    side = config.image_size // encoder.downsampling
    histogram = np.bincount(source.labels, minlength=len(source.class_names))
    return Passport(
        kind=config.kind,
        latent_shape=(encoder.latent_channels, side, side),
        dtype=config.dtype,
        precision=config.precision,
        mirrored_copies=config.mirrored_copies,
        image_size=config.image_size,
        crop=CROP,
        num_images=len(source),
        class_names=tuple(source.class_names),
        label_histogram=tuple(histogram.tolist()),
        autoencoder=encoder.identity,
        scaling=_scaling(config, encoder.scaling),
        mean=None,
        std=None,
        shards=cut(len(source), config.shard_size),
    )


def _scaling(config: EncodeConfig, stated: Scaling) -> Scaling | None:
    """The scaling asked for; None if it has to be measured."""
    if config.scaling == "scalar" and stated.mode != "scalar":
        raise UserError(f"scaling=scalar, but {config.autoencoder} states one per channel")
    if config.scaling == "per_channel" and stated.mode != "per_channel":
        return None
    return stated


@dataclass(frozen=True)
class EncodedShard:
    number: int
    values: dict[str, Float[Tensor, "records stored rows columns"]]  # by tensor name in the shard
    labels: Int[Tensor, " records"]
    ids: Int[Tensor, " records"]


def encode_shards(
    config: EncodeConfig,
    source: ImageSource,
    encoder: Autoencoder,
    cuts: dict[int, range],
    progress: Callable[[int], object],
) -> Iterator[EncodedShard]:
    """Encodes the shards of these numbers, each cut from the source at these ids.

    ``progress`` is told of each number of images done. Raises UserError with the name of an image
    that cannot be encoded.
    """
    _make_repeatable(encoder.device)
    batches = {number: _batches(ids, config.batch_size) for number, ids in cuts.items()}
    decoded = iter(
        _decoding_loader(config, source, [ids for part in batches.values() for ids in part])
    )
    for number, ids in cuts.items():
        parts = []
        for batch in batches[number]:
            pixels = next(decoded)
            if isinstance(pixels, str):
                raise UserError(pixels)
            names = [source.names[i] for i in batch]
            parts.append(encode(config, encoder, from_uint8(pixels), names))
            progress(len(batch))
        values = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        labels = torch.from_numpy(source.labels[ids.start : ids.stop])
        yield EncodedShard(number, values, labels, torch.arange(ids.start, ids.stop))


def _make_repeatable(device: torch.device) -> None:
    """The same latents to the last bit, however many processes share the work."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    if device.type == "cpu":
        # Sums of several threads depend on their number, which depends on the launcher.
        torch.set_num_threads(1)


def _batches(ids: range, size: int) -> list[range]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def _decoding_loader(
    config: EncodeConfig, source: ImageSource, batches: list[range]
) -> DataLoader[UInt8[Tensor, "batch size size 3"] | str]:
    images = DecodedBatches(source, config.image_size, batches)
    workers = min(config.num_workers, len(batches))
    return DataLoader(images, batch_size=None, num_workers=workers)


def encode(
    config: EncodeConfig,
    encoder: Autoencoder,
    images: Float[Tensor, "batch 3 height width"],
    names: list[str],
) -> dict[str, Float[Tensor, "batch stored rows columns"]]:
    """What a shard holds of these images. A mirrored copy is encoded from the mirrored image."""
    versions = {config.kind: images}
    if config.mirrored_copies:
        versions[f"{config.kind}_mirrored"] = images.flip(-1)
    values = {}
    for name, version in versions.items():
        moments = encoder.moments(version).cpu()
        kept = moments if config.kind == "moments" else moments.chunk(2, dim=1)[0]
        values[name] = kept.to(DTYPES[config.dtype])
        refuse_non_finite(values[name], [f"the latents of {name}" for name in names])
    return values


class DecodedBatches(Dataset[UInt8[Tensor, "batch size size 3"] | str]):
    """Square pixels by batch, or what is wrong with one of its images.

    An error is returned, not raised: a worker's traceback would bury its one line.
    """

    def __init__(self, source: ImageSource, image_size: int, batches: list[range]) -> None:
        self.source = source
        self.image_size = image_size
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> UInt8[Tensor, "batch size size 3"] | str:
        try:
            return torch.stack([self._pixels(index) for index in self.batches[number]])
        except UserError as error:
            return str(error)

    def _pixels(self, index: int) -> UInt8[Tensor, "size size 3"]:
        image = center_crop(self.source.read(index), self.image_size)
        return torch.from_numpy(np.array(image))
