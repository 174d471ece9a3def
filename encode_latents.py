"""Encode images into a latent data set, once for all models that learn from it.

    python encode_latents.py CONFIG.yaml key=value ...
    accelerate launch --num_processes 8 encode_latents.py CONFIG.yaml key=value ...

The data set depends on the images, the autoencoder and the image size: not on a model, nor on the
number of processes. Started again, it verifies and keeps the shards that are finished. On a CPU,
a process computes in one thread: launch as many processes as there are cores.
"""

import sys
import time
from pathlib import Path

from accelerate.utils import gather_object

from runtime.autoencoder import load_autoencoder
from runtime.config import read_config
from runtime.encode_config import EncodeConfig
from runtime.encoding import draft_passport, encode_shards, model_dtype, notices
from runtime.encoding_progress import EncodingProgress
from runtime.errors import run
from runtime.latent_writer import LatentWriter
from runtime.latents import LatentDataset
from runtime.launch import on_main, start
from runtime.passport import Passport
from runtime.sources import open_source

MOST_SHOWN = 20  # skipped images


def main(arguments: list[str]) -> None:
    config = read_config(EncodeConfig, arguments)
    accelerator = start(config.precision, config.timeout_minutes)
    source = open_source(config.images, config.hf)
    autoencoder = load_autoencoder(
        config.autoencoder, config.autoencoder_revision, accelerator.device, model_dtype(config)
    )
    draft = draft_passport(config, source, autoencoder)
    on_main(accelerator, lambda: LatentWriter(Path(config.latents_dir), draft))
    writer = LatentWriter(Path(config.latents_dir), draft)

    mine = range(accelerator.process_index, len(draft.shards), accelerator.num_processes)
    whole = config.on_bad_image == "fail"
    missing = {shard: draft.cuts[shard] for shard in mine if not writer.has(shard, whole)}
    left = dict(gather_object(list(missing.items())))  # by everyone
    if accelerator.is_main_process and len(left) < len(draft.shards):
        kept = len(draft.shards) - len(left)
        print(f"{kept:,} of {len(draft.shards):,} shards are finished and kept", flush=True)

    started, num_encoded = time.perf_counter(), 0
    others = {writer.path(shard): len(ids) for shard, ids in left.items() if shard not in missing}
    num_left, silent = sum(map(len, left.values())), not accelerator.is_main_process
    with EncodingProgress(num_left, others, silent) as progress:
        for shard in encode_shards(config, source, autoencoder, missing, progress):
            writer.write(shard.number, shard.values, shard.labels, shard.ids, shard.skipped)
            num_encoded += len(shard.ids)
        num_encoded = sum(gather_object([num_encoded]))
    speed = num_encoded / (time.perf_counter() - started)

    measures = gather_object([(shard, writer.measure(shard)) for shard in mine])

    def finish() -> Passport:
        writer.finish([measure for _, measure in sorted(measures, key=lambda pair: pair[0])])
        return LatentDataset(writer.folder).passport  # what is on disk agrees with the manifest

    passport = on_main(accelerator, finish)
    if passport is not None:
        print(passport)
        for image in passport.skipped[:MOST_SHOWN]:
            print(f"skipped {image.name!r}: {image.reason}")
        if len(passport.skipped) > MOST_SHOWN:
            print(f"... {len(passport.skipped) - MOST_SHOWN:,} more are named in the manifest")
        for notice in notices(config, autoencoder, passport):
            print(f"notice: {notice}", file=sys.stderr)
        done = f"{num_encoded:,} of {passport.num_images:,} images encoded now"
        print(f"{done}, {speed:,.0f} per second")
    accelerator.end_training()


if __name__ == "__main__":
    run(main)
