"""Draw images from a checkpoint.

    python sample.py CHECKPOINT key=value ...
    accelerate launch --num_processes 8 sample.py CHECKPOINT key=value ...

CHECKPOINT is a step folder, or a run folder (its newest whole checkpoint). Image i depends on
(seed, i), the checkpoint and the settings alone. The same seed gives the same images: change it
for others. Started again, only missing images are made.
"""

import sys

from tqdm import tqdm

from runtime import checkpoint as checkpoints
from runtime.build import build_process
from runtime.config import read_target
from runtime.errors import run
from runtime.images import refuse_non_finite, to_uint8
from runtime.launch import on_main, start
from runtime.sample_config import SampleConfig, defaults_of
from runtime.sample_folder import SampleFolder
from runtime.sampling import (
    Sampler,
    check,
    default_dir,
    label_of,
    load_network,
    open_autoencoder,
    settings_of,
)
from runtime.scaling import Scaling


def main(arguments: list[str]) -> None:
    path, config = read_target(SampleConfig, arguments, "CHECKPOINT", defaults_of)
    accelerator = start(config.precision, config.timeout_minutes)
    checkpoint = checkpoints.load(path)
    trained, passport = checkpoint.state.train_config(), checkpoint.state.passport
    notices = check(checkpoint, config)
    autoencoder, more_notices = open_autoencoder(checkpoint, config, accelerator.device)
    network = load_network(checkpoint, config.weights).to(accelerator.device)
    process = build_process(trained, config.sampler)
    scaling = Scaling.from_json(passport["scaling"])
    sampler = Sampler(network, process, trained, config, accelerator.device)

    folder = SampleFolder(
        default_dir(checkpoint, config), settings_of(checkpoint, config, autoencoder.identity)
    )
    on_main(accelerator, folder.open)
    if accelerator.is_main_process:
        for notice in notices + more_notices:
            print(f"notice: {notice}", file=sys.stderr)
        print(f"{config.num_images:,} images, seed {config.seed}, into {folder.path}")
    accelerator.wait_for_everyone()

    missing = folder.missing(config.num_images)
    batches = [
        missing[first : first + config.batch_size]
        for first in range(0, len(missing), config.batch_size)
    ]
    accelerator.wait_for_everyone()  # before the first image of anyone changes what is missing
    mine = batches[accelerator.process_index :: accelerator.num_processes]
    for indices in tqdm(mine, unit="batch", disable=not accelerator.is_main_process):
        with accelerator.autocast():
            latents = sampler.latents(indices)
        images = autoencoder.decode(latents, scaling, config.decode_batch_size)
        refuse_non_finite(images, [f"image {index}" for index in indices])
        for index, image in zip(indices, to_uint8(images, config.rounding), strict=True):
            folder.save(index, image.cpu().numpy())
    accelerator.wait_for_everyone()

    if accelerator.is_main_process:
        labels = [label_of(i, config, trained.num_classes) for i in range(config.num_images)]
        folder.finish(labels, passport["class_names"], config.npz)
        folder.draw_grid(labels, passport["class_names"], config.grid_columns, config.grid_rows)
        if sampler.num_images:
            print(f"{sampler.evaluations_per_image:g} network evaluations per image")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    run(main)
