"""Encode images into a latent data set, once for all models that learn from it.

    python encode_latents.py CONFIG.yaml key=value ...
    accelerate launch --num_processes 8 encode_latents.py CONFIG.yaml key=value ...

The data set depends on the images, the autoencoder and the image size: not on a model, nor on the
number of processes. Started again, it verifies and keeps the shards that are finished. On a CPU,
a process computes in one thread: launch as many processes as there are cores.
"""

import time
from pathlib import Path

from accelerate.utils import gather_object
from tqdm import tqdm

from runtime.autoencoder import load_autoencoder
from runtime.config import read_config
from runtime.encoding import EncodeConfig, draft_passport, encode_shards, model_dtype
from runtime.errors import run
from runtime.latent_writer import LatentWriter
from runtime.latents import LatentDataset
from runtime.launch import on_main, start
from runtime.sources import open_source


def main(arguments: list[str]) -> None:
    config = read_config(EncodeConfig, arguments)
    accelerator = start(config.precision, config.timeout_minutes)
    source = open_source(config.images)
    autoencoder = load_autoencoder(
        config.autoencoder, config.autoencoder_revision, accelerator.device, model_dtype(config)
    )
    draft = draft_passport(config, source, autoencoder)
    on_main(accelerator, lambda: LatentWriter(Path(config.latents_dir), draft))
    writer = LatentWriter(Path(config.latents_dir), draft)

    started = time.perf_counter()
    mine = range(accelerator.process_index, len(draft.shards), accelerator.num_processes)
    missing = {shard: draft.cuts[shard] for shard in mine if not writer.has(shard)}
    num_missing = sum(map(len, missing.values()))
    with tqdm(
        desc=f"process 1 of {accelerator.num_processes}",
        total=num_missing,
        unit="image",
        disable=not accelerator.is_main_process,
    ) as bar:
        for shard in encode_shards(config, source, autoencoder, missing, bar.update):
            writer.write(shard.number, shard.values, shard.labels, shard.ids)

    measures = gather_object([(shard, writer.measure(shard)) for shard in mine])
    num_encoded = sum(gather_object([num_missing]))
    if accelerator.is_main_process:
        writer.finish([measure for _, measure in sorted(measures, key=lambda pair: pair[0])])
        dataset = LatentDataset(writer.folder)  # holds what is on disk against the manifest
        speed = num_encoded / (time.perf_counter() - started)
        print(dataset.passport)
        print(f"{num_encoded:,} of {len(dataset):,} images encoded now, {speed:,.0f} per second")
    accelerator.end_training()


if __name__ == "__main__":
    run(main)
