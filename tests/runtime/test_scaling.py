"""Scaling loses nothing, in both modes, in memory and in JSON."""

import json
from pathlib import Path

import pytest
import torch

from runtime.scaling import Scaling

SCALAR = Scaling(factor=0.37, shift=-0.21)
PER_CHANNEL = Scaling(1.3, 0.1, mean=(0.5, -2.0, 7.0), std=(0.25, 3.0, 1e-2))
both = pytest.mark.parametrize("scaling", [SCALAR, PER_CHANNEL], ids=lambda scaling: scaling.mode)


@both
def test_round_trip(scaling: Scaling) -> None:
    latents = torch.randn(4, 3, 5, 6, dtype=torch.float64)
    again = scaling.denormalise(scaling.normalise(latents))
    torch.testing.assert_close(again, latents, rtol=1e-13, atol=1e-13)


@both
def test_json_round_trip_is_exact(scaling: Scaling) -> None:
    assert Scaling.from_json(json.loads(json.dumps(scaling.to_json()))) == scaling


def test_scalar_mode_is_shift_then_factor() -> None:
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(SCALAR.normalise(x), (x + 0.21) * 0.37)


def test_per_channel_mode_makes_each_channel_standard() -> None:
    scaling = Scaling(mean=PER_CHANNEL.mean, std=PER_CHANNEL.std)
    noise = torch.randn(1000, 3, 2, 2)
    latents = noise * torch.tensor(scaling.std)[:, None, None]
    latents = latents + torch.tensor(scaling.mean)[:, None, None]
    torch.testing.assert_close(scaling.normalise(latents), noise, rtol=1e-4, atol=1e-4)


def test_one_image_and_a_batch_scale_alike() -> None:
    latents = torch.randn(2, 3, 4, 4)
    assert torch.equal(PER_CHANNEL.normalise(latents)[1], PER_CHANNEL.normalise(latents[1]))


def test_other_numbers_of_channels_are_refused() -> None:
    with pytest.raises(ValueError, match="3 channels for 4"):
        PER_CHANNEL.normalise(torch.zeros(1, 4, 2, 2))


def test_a_scaling_that_cannot_be_undone_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Scaling(factor=0.0)
    with pytest.raises(ValueError, match="above 0"):
        Scaling(mean=(0.0,), std=(0.0,))
    with pytest.raises(ValueError, match="1 means, but 2"):
        Scaling(mean=(0.0,), std=(1.0, 1.0))


def test_no_scaling_is_written_in_code() -> None:
    """It comes with the autoencoder's weights, and then with the latents."""
    root = Path(__file__).parents[2]
    folders = ("runtime", "process", "dit", "sit", "backbone", "tools", "assets", "configs")
    files = [*root.glob("*.py"), *(path for name in folders for path in (root / name).rglob("*.*"))]
    sources = [path for path in files if path.suffix in (".py", ".yaml")]
    assert len(sources) > 50
    assert [path for path in sources if "0.182" in path.read_text()] == []
