"""Train the tiny autoencoder of the bundled digits, about two minutes on one core.

    python -m assets.train_digits_autoencoder

32 x 32 pixels become 4 x 8 x 8 latents. Learns from `digits/train`, prints its error on
`digits/held_out`, and writes `assets/digits_autoencoder/`. One thread and placed random numbers:
the same machine makes the same weights.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import trange

from runtime.images import center_crop, from_uint8
from runtime.seeding import Purpose, normal, permutation
from runtime.sources import open_source

FOLDER = Path(__file__).parent / "digits_autoencoder"
SEED = 0
IMAGE_SIZE = 32  # pixels; the digits are 8 x 8 and are enlarged
NUM_STEPS = 600
BATCH_SIZE = 32
WARMUP_STEPS = 50
LEARNING_RATE = 3e-3  # falls to 0 along half a cosine
KL_WEIGHT = 0.03  # against errors per pixel value; smooths the latents at little cost in sharpness
CHANNELS = (8, 16, 32)  # at 32, 16 and 8 pixels
LATENT_CHANNELS = 4


def main() -> None:
    torch.set_num_threads(1)  # sums of several threads depend on their number
    torch.manual_seed(SEED)
    images = load("digits/train")
    autoencoder = build()
    train(autoencoder, images)
    factor = 1 / latent_deviation(autoencoder, images)
    autoencoder.register_to_config(scaling_factor=round(factor, 4))
    shutil.rmtree(FOLDER, ignore_errors=True)
    autoencoder.save_pretrained(FOLDER)
    absolute, square = errors(autoencoder, load("digits/held_out"))
    size = sum(path.stat().st_size for path in FOLDER.iterdir()) / 1e6
    print(f"{FOLDER}: {size:.2f} MB, scaling factor {factor:.4f}")
    print(
        f"held-out images, of pixel values from -1 to 1: mean absolute error {absolute:.4f}, "
        f"root mean square error {square:.4f}"
    )


def load(name: str) -> Float[Tensor, "images 3 height width"]:
    source = open_source(name)
    squares = [center_crop(source.read(index), IMAGE_SIZE) for index in range(len(source))]
    return from_uint8(torch.from_numpy(np.stack([np.asarray(square) for square in squares])))


def build() -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * len(CHANNELS),
        up_block_types=("UpDecoderBlock2D",) * len(CHANNELS),
        block_out_channels=CHANNELS,
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=4,
        sample_size=IMAGE_SIZE,
        mid_block_add_attention=False,
    )


def train(autoencoder: AutoencoderKL, images: Float[Tensor, "images 3 height width"]) -> None:
    optimizer = torch.optim.AdamW(autoencoder.parameters(), weight_decay=0.0)
    progress = trange(NUM_STEPS)
    for step in progress:
        x = images[batch_indices(step, len(images))]
        posterior = autoencoder.encode(x).latent_dist
        draw = normal(SEED, Purpose.POSTERIOR, step, 0, tuple(posterior.mean.shape))
        decoded = autoencoder.decode(posterior.mean + posterior.std * draw).sample
        difference = decoded - x
        divergence = posterior.kl().mean() / x[0].numel()  # per pixel value, as the errors
        loss = difference.abs().mean() + difference.square().mean() + KL_WEIGHT * divergence
        optimizer.param_groups[0]["lr"] = learning_rate(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.set_postfix(loss=f"{loss.item():.4f}", refresh=False)


def batch_indices(step: int, num_images: int) -> Int[np.ndarray, " batch"]:
    """Batches of one shuffled epoch after the other; the rest of an epoch is left out."""
    epoch, batch = divmod(step, num_images // BATCH_SIZE)
    order = permutation(SEED, epoch, num_images)
    return order[batch * BATCH_SIZE : (batch + 1) * BATCH_SIZE]


def learning_rate(step: int) -> float:
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    return LEARNING_RATE * warm * 0.5 * (1 + float(np.cos(np.pi * step / NUM_STEPS)))


@torch.no_grad()
def latent_deviation(
    autoencoder: AutoencoderKL, images: Float[Tensor, "images 3 height width"]
) -> float:
    """Standard deviation of latents drawn from the posteriors."""
    posterior = autoencoder.encode(images).latent_dist
    return float((posterior.mean.var() + posterior.var.mean()).sqrt())


@torch.no_grad()
def errors(
    autoencoder: AutoencoderKL, images: Float[Tensor, "images 3 height width"]
) -> tuple[float, float]:
    """Mean absolute and root mean square error of images that went through the latents."""
    decoded = autoencoder.decode(autoencoder.encode(images).latent_dist.mean).sample.clamp(-1, 1)
    difference = decoded - images
    return float(difference.abs().mean()), float(difference.square().mean().sqrt())


if __name__ == "__main__":
    main()
