"""Trains the classifier that judges the demo, and stores it with its held-out accuracy.

    python -m assets.train_digits_classifier

Half a minute on two CPU cores. The digits are prepared as encode_latents.py prepares them; shifts,
turns, scales, blur, contrast and noise make the judge indifferent to what an autoencoder does to
them.
"""

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from tqdm import tqdm

from runtime.atomic import written_whole
from runtime.digits_classifier import BUNDLED, IMAGE_SIZE, DigitsClassifier, DigitsExtractor
from runtime.images import center_crop, from_uint8
from runtime.run_folder import write_json
from runtime.sources import open_source

SEED = 0
NUM_EPOCHS = 25
BATCH_SIZE = 64
LEARNING_RATE = 3e-3  # the highest of a one-cycle schedule


def main() -> None:
    torch.manual_seed(SEED)
    images, labels = digits("train")
    model = train(from_uint8(images), labels)
    BUNDLED.mkdir(exist_ok=True)
    with written_whole(BUNDLED / "model.safetensors") as path:
        safetensors.torch.save_file(model.state_dict(), path)
    held_out = digits("held_out")
    accuracy = DigitsExtractor(torch.device("cpu")).class_accuracy(*held_out)
    about = {
        "made_by": "python -m assets.train_digits_classifier",
        "image_size": IMAGE_SIZE,
        "trained_on": f"digits/train, {len(images)} images",
        "held_out": f"digits/held_out, {len(held_out[1])} images",
        "held_out_accuracy": accuracy,
    }
    write_json(BUNDLED / "classifier.json", about)
    print(f"held-out accuracy {accuracy:.4f}; stored in {BUNDLED}")


def digits(
    part: str,
) -> tuple[UInt8[Tensor, "images height width 3"], Int[Tensor, " images"]]:
    source = open_source(f"digits/{part}")
    images = [np.asarray(center_crop(source.read(i), IMAGE_SIZE)) for i in range(len(source))]
    return torch.from_numpy(np.stack(images)), torch.from_numpy(source.labels)


def train(
    images: Float[Tensor, "images 3 height width"], labels: Int[Tensor, " images"]
) -> DigitsClassifier:
    model = DigitsClassifier()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    steps_per_epoch = -(-len(images) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=NUM_EPOCHS * steps_per_epoch
    )
    for _ in tqdm(range(NUM_EPOCHS), unit="epoch"):
        for chosen in torch.randperm(len(images)).split(BATCH_SIZE):
            logits = model(augmented(images[chosen]))
            loss = F.cross_entropy(logits, labels[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def augmented(
    images: Float[Tensor, "batch 3 height width"],
) -> Float[Tensor, "batch 3 height width"]:
    """Turned up to 10 degrees, scaled, shifted, half of them blurred, of less contrast, noisy."""
    n = len(images)
    angle, scale = uniform(n, -0.17, 0.17), uniform(n, 0.9, 1.1)
    rows = [
        torch.stack([scale * angle.cos(), -scale * angle.sin(), uniform(n, -0.2, 0.2)], dim=1),
        torch.stack([scale * angle.sin(), scale * angle.cos(), uniform(n, -0.2, 0.2)], dim=1),
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1), list(images.shape), align_corners=False)
    images = F.grid_sample(images + 1, grid, align_corners=False) - 1  # black around the digit
    blurred = F.avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False)
    images = torch.where(uniform(n, 0, 1)[:, None, None, None] < 0.5, blurred, images)
    contrast = uniform(n, 0.8, 1.1)[:, None, None, None]
    noise = uniform(n, 0, 0.15)[:, None, None, None] * torch.randn_like(images)
    return ((images + 1) * contrast - 1 + noise).clamp(-1, 1)


def uniform(n: int, low: float, high: float) -> Float[Tensor, " n"]:
    return low + (high - low) * torch.rand(n)


if __name__ == "__main__":
    main()
