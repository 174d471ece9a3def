"""Make a reference of your own images.

    python -m tools.statistics build DIR image_size=256 output=FILE.npz
    accelerate launch --num_processes 8 -m tools.statistics build DIR ...

DIR is a folder or zip of images. They are cropped and resized as encode_latents.py does it, and
the file says how many they were and what was done to them. eval_fid.py reference=FILE.npz uses it.
"""

from dataclasses import dataclass, field
from pathlib import Path

from runtime.config import read_target
from runtime.errors import UserError, run, unknown
from runtime.extraction import extract
from runtime.extractors import build_extractor
from runtime.features import FeatureSet, Wanted
from runtime.image_sets import EvenlySpaced
from runtime.inception import PUBLISHED_SHA256
from runtime.launch import start
from runtime.references import open_reference
from runtime.statistics_file import STATISTICS, save_statistics


@dataclass(frozen=True)
class StatisticsConfig:
    output: str = field(metadata={"help": ".npz to write"})
    image_size: int | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "side after crop and resize; null leaves the images as they are",
        },
    )
    num_features: int = field(
        default=10_000,
        metadata={
            "min": 0,
            "help": "images, spread evenly, whose features are stored too: precision, recall and "
            "KID need them; 0: none",
        },
    )
    inception_weights: str | None = field(
        default=None,
        metadata={"help": "weights file; null: $INCEPTION_WEIGHTS, torch's cache, or a download"},
    )
    inception_sha256: str = field(
        default=PUBLISHED_SHA256, metadata={"help": "what the weights file has to hash to"}
    )
    batch_size: int = field(default=64, metadata={"min": 1, "help": "images per process at once"})


def main(arguments: list[str]) -> None:
    if arguments[:1] in (["--help"], ["-h"], []):
        print(__doc__)
        return
    if arguments[0] != "build":
        raise unknown("verb", arguments[0], ["build"])
    path, config = read_target(StatisticsConfig, arguments[1:], "DIR")
    build(path, config)


def build(path: Path, config: StatisticsConfig) -> None:
    if Path(config.output).suffix != ".npz":
        raise UserError(f"output = {config.output!r} has to end in .npz")
    accelerator = start("fp32")
    extractor = build_extractor(
        "inception", config.inception_weights, config.inception_sha256, accelerator
    )
    reference = open_reference(str(path), extractor, config.image_size)
    if reference.images is None:
        raise UserError(f"{path} holds no images")
    of_all = extract(
        extractor,
        reference.images,
        Wanted(gaussians=frozenset(STATISTICS)),
        config.batch_size,
        accelerator,
        "statistics",
    )
    rows = {}
    if config.num_features:
        some = EvenlySpaced(reference.images, min(config.num_features, len(reference.images)))
        wanted = Wanted(rows=frozenset({"pool"}))
        found = extract(extractor, some, wanted, config.batch_size, accelerator, "features")
        rows = found.features.rows
    if accelerator.is_main_process:
        features = FeatureSet(of_all.features.gaussians, rows)
        save_statistics(
            Path(config.output), features, extractor, reference.rows_from, of_all.sha256
        )
        print(f"{of_all.num_images:,} {reference.rows_from}; stored in {config.output}")
    accelerator.end_training()


if __name__ == "__main__":
    run(main)
