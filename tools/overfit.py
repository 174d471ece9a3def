"""Learn one batch by heart: tells faults of the code from faults of the data.

    python -m tools.overfit CONFIG.yaml key=value ...

Takes eight random latents with fixed noise and times, so that no data set is needed, and trains
the config's network and process on them alone. Sound code brings the loss below a fifth of where
it starts within 300 steps; status 1 says that it did not.
"""

import sys

import torch
from tqdm import tqdm

from runtime.build import build_network, build_process
from runtime.config import read_config
from runtime.errors import run
from runtime.seeding import Purpose, normal
from runtime.training_config import TrainConfig, sections_of

NUM_IMAGES, NUM_STEPS, LEARNING_RATE = 8, 300, 1e-3
PASSING = 0.2  # of the first loss


def main(arguments: list[str]) -> None:
    config = read_config(TrainConfig, arguments, sections_of)
    first, last = overfit(config)
    passed = last < PASSING * first
    print(
        f"loss {first:.4f} -> {last:.4f} in {NUM_STEPS} steps: {'passed' if passed else 'FAILED'}"
    )
    sys.exit(0 if passed else 1)


def overfit(config: TrainConfig) -> tuple[float, float]:
    """The loss before and after training on one batch."""
    network, process = build_network(config), build_process(config)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=0)
    x, noise = (_latents(config, purpose) for purpose in (Purpose.POSTERIOR, Purpose.NOISE))
    y = torch.arange(NUM_IMAGES) % config.num_classes
    u = (torch.arange(NUM_IMAGES) + 0.5) / NUM_IMAGES
    losses = []
    for _ in tqdm(range(NUM_STEPS), unit="step", disable=None):
        loss = process.loss(network, x, y, noise, u).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses[0], losses[-1]


def _latents(config: TrainConfig, purpose: Purpose) -> torch.Tensor:
    draws = [normal(config.seed, purpose, 0, i, config.latent_shape) for i in range(NUM_IMAGES)]
    return torch.stack(draws)


if __name__ == "__main__":
    run(main)
