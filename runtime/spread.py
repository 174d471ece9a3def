"""How widely the latents that a network sees are spread: wrong where a scaling is."""

from typing import NamedTuple

from runtime.batches import TrainingStream
from runtime.latents import LatentDataset

LEAST_SPREAD, GREATEST_SPREAD = 0.5, 2.0
OUTSIDE = f"outside {LEAST_SPREAD:g} to {GREATEST_SPREAD:g}"


class Spread(NamedTuple):
    """Of the latents that a network sees."""

    mean: float
    std: float
    channel_stds: tuple[float, ...]  # around each channel's own mean


def measure(dataset: LatentDataset, seed: int, num_images: int = 256) -> Spread:
    """Of the first latents that a network will see."""
    num_images = min(num_images, len(dataset))
    stream = TrainingStream(dataset, seed, num_images, mirror=False)
    x = stream.batch(0, range(num_images)).x.double()
    return Spread(float(x.mean()), float(x.std()), tuple(x.std((0, 2, 3)).tolist()))


def spread_warning(spread: Spread) -> str | None:
    """What to tell a user whose latents are spread too little or too much, if they are."""
    if not is_sound(spread.std):
        return (
            f"the latents have a standard deviation of {spread.std:.3g}, {OUTSIDE}: they may be "
            "scaled twice, or not at all"
        )
    wrong = [channel for channel, std in enumerate(spread.channel_stds) if not is_sound(std)]
    if wrong:
        return (
            f"channel {wrong[0]} of the latents has a standard deviation of "
            f"{spread.channel_stds[wrong[0]]:.3g}, {OUTSIDE} (as {len(wrong)} of "
            f"{len(spread.channel_stds)} channels); scaling=per_channel in encoding evens them out"
        )
    return None


def is_sound(std: float) -> bool:
    return LEAST_SPREAD <= std <= GREATEST_SPREAD
