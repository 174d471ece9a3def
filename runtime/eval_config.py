"""The settings of an evaluation."""

from dataclasses import dataclass, field

from runtime.extractors import EXTRACTORS
from runtime.factory import METRICS
from runtime.inception import PUBLISHED_SHA256


@dataclass(frozen=True)
class EvalConfig:
    reference: str = field(
        metadata={
            "help": "file of the ADM evaluator, of tools.statistics or of pytorch-fid; an .npz of "
            "images (arr_0), a folder or zip of images, or digits/train"
        }
    )
    extractor: str = field(default="inception", metadata={"choices": EXTRACTORS})
    inception_weights: str | None = field(
        default=None,
        metadata={"help": "weights file; null: $INCEPTION_WEIGHTS, torch's cache, or a download"},
    )
    inception_sha256: str = field(
        default=PUBLISHED_SHA256,
        metadata={"help": "what the weights file has to hash to; others give other numbers"},
    )
    metrics: tuple[str, ...] | None = field(
        default=None,
        metadata={"choices": tuple(METRICS), "help": "null: all that the extractor can give"},
    )
    reference_image_size: int | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "side that a reference folder's images are cropped and resized to, as "
            "encode_latents.py does; null: that of the samples",
        },
    )
    batch_size: int = field(default=64, metadata={"min": 1, "help": "images per process at once"})
    output: str | None = field(
        default=None, metadata={"help": "JSON file; null: results/NAME.json in the run folder"}
    )
