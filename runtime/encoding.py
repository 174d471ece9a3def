"""Encoding: images to records of latents, the same whatever the number of processes.

Shards are cut by the number of an image in its source, batches by their place in a shard. One
process encodes a whole shard; images are decoded in the loader's workers meanwhile. A damaged
image that is skipped leaves its place in the batch black and without a record, so that the latents
of the others do not depend on it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from runtime.autoencoder import Autoencoder
from runtime.decoding import DecodedBatch, decoding_loader
from runtime.encode_config import EncodeConfig
from runtime.errors import UserError
from runtime.image_source import BadImageError, ImageSource
from runtime.images import from_uint8, refuse_non_finite
from runtime.latent_writer import plan
from runtime.passport import DTYPES, Passport
from runtime.scaling import Scaling
from runtime.shard_notes import SkippedImage
from runtime.spread import OUTSIDE, is_sound

CROP = "shorter side to image_size (halved by box filter, then bicubic), centre square (ADM)"
MODEL_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}  # float32 for the others

Values = dict[str, Float[Tensor, "records stored rows columns"]]  # by tensor name in the shard


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
    draft = plan(
        source.labels,
        source.class_names,
        latent_shape=(encoder.latent_channels, side, side),
        image_size=config.image_size,
        autoencoder=encoder.identity,
        scaling=_scaling(config, encoder.scaling),
        kind=config.kind,
        mirrored_copies=config.mirrored_copies,
        dtype=config.dtype,
        crop=CROP,
        shard_size=config.shard_size,
    )
    return replace(draft, precision=config.precision, images_sha256=source.sha256)


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
    values: Values
    labels: Int[Tensor, " records"]
    ids: Int[Tensor, " records"]
    skipped: tuple[SkippedImage, ...]


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
    in_order = [batch for part in batches.values() for batch in part]
    decoded = iter(decoding_loader(source, config.image_size, in_order, config.num_workers))
    for number, ids in cuts.items():
        parts: list[Values] = []
        skipped: list[SkippedImage] = []
        for batch in batches[number]:
            images = next(decoded)
            skipped += _skipped(config, source, images)
            parts.append(_encode_batch(config, source, encoder, batch, images))
            progress(len(batch))
        left_out = {image.id for image in skipped}
        kept = torch.tensor([i for i in ids if i not in left_out], dtype=torch.int64)
        yield EncodedShard(
            number=number,
            values={name: torch.cat([part[name] for part in parts]) for name in parts[0]},
            labels=torch.from_numpy(source.labels)[kept],
            ids=kept,
            skipped=tuple(skipped),
        )


def _make_repeatable(device: torch.device) -> None:
    """The same latents to the last bit, however many processes share the work."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    if device.type == "cpu":
        # Sums of several threads depend on their number, which depends on the launcher.
        torch.set_num_threads(1)


def _batches(ids: range, size: int) -> list[range]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def _skipped(config: EncodeConfig, source: ImageSource, images: DecodedBatch) -> list[SkippedImage]:
    """The batch's images without a record. Raises UserError where there must be none."""
    if images.failure is not None:
        raise UserError(images.failure)
    if images.bad and config.on_bad_image == "fail":
        index = min(images.bad)
        raise BadImageError(source.names[index], images.bad[index])
    return [
        SkippedImage(index, int(source.labels[index]), source.names[index], reason)
        for index, reason in images.bad.items()
    ]


def _encode_batch(
    config: EncodeConfig,
    source: ImageSource,
    encoder: Autoencoder,
    batch: range,
    images: DecodedBatch,
) -> Values:
    """What the shard holds of the readable images of a batch."""
    readable = [place for place, index in enumerate(batch) if index not in images.bad]
    names = [source.names[batch[place]] for place in readable]
    values = encode(config, encoder, from_uint8(images.pixels.to(encoder.device)))
    values = {name: encoded[readable] for name, encoded in values.items()}
    for encoded in values.values():
        stored = encoded.to(DTYPES[config.dtype])
        refuse_non_finite(stored, [f"the latents of {name} as {config.dtype}" for name in names])
    return values


def encode(
    config: EncodeConfig, encoder: Autoencoder, images: Float[Tensor, "batch 3 height width"]
) -> Values:
    """Moments or latents in float32. A mirrored copy is encoded from the mirrored image."""
    versions = {config.kind: images}
    if config.mirrored_copies:
        versions[f"{config.kind}_mirrored"] = images.flip(-1)
    values = {}
    for name, version in versions.items():
        moments = encoder.moments(version).cpu()
        values[name] = moments if config.kind == "moments" else moments.chunk(2, dim=1)[0]
    return values


def notices(config: EncodeConfig, encoder: Autoencoder, passport: Passport) -> list[str]:
    """What the user of a finished data set should know."""
    found = []
    if config.kind == "moments" and not encoder.has_posterior:
        found.append(
            f"{config.autoencoder} has no posterior: kind=latents holds as much in half the space"
        )
    if passport.std is not None and not is_sound(passport.std):
        found.append(
            f"a network will see a standard deviation of {passport.std:.3g}, {OUTSIDE}: "
            "look at the scaling of the autoencoder's config, or measure it: scaling=per_channel"
        )
    empty = passport.label_histogram.count(0)
    if empty:
        found.append(f"{empty} of {passport.num_classes} classes have no image")
    return found
