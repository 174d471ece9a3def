"""Latents are decoded by the autoencoder that made them, or by another where that is asked for."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_latents import draft

from runtime.autoencoder import load_autoencoder
from runtime.checkpoint import Checkpoint, TrainingState
from runtime.errors import UserError
from runtime.sample_config import SampleConfig
from runtime.sampling import open_autoencoder

BUNDLED = Path(__file__).parents[2] / "assets" / "digits_autoencoder"


def checkpoint(name: str, **changes: Any) -> Checkpoint:
    """Of latents that this autoencoder made: nothing but the passport in it."""
    encoder = load_autoencoder(name)
    side = 32 // encoder.downsampling
    shape = (encoder.latent_channels, side, side)
    passport = replace(draft(latent_shape=shape, image_size=32), autoencoder=encoder.identity)
    stated = json.loads(json.dumps(passport.for_sampling())) | changes
    return Checkpoint(Path("run"), TrainingState(1, 1, 1.0, 1, "", stated, {}))


def refusal(trained: Checkpoint, **settings: Any) -> str:
    with pytest.raises(UserError) as raised:
        open_autoencoder(trained, SampleConfig(**settings), torch.device("cpu"))
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture
def other(tmp_path: Path) -> str:
    """The bundled autoencoder with one weight changed."""
    weights = load_file(BUNDLED / "diffusion_pytorch_model.safetensors")
    weights["encoder.conv_in.weight"][0, 0, 0, 0] += 1e-3
    save_file(weights, tmp_path / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_bytes((BUNDLED / "config.json").read_bytes())
    return str(tmp_path)


def test_the_one_of_the_latents_is_taken_by_itself() -> None:
    autoencoder, notices = open_autoencoder(
        checkpoint(str(BUNDLED)), SampleConfig(), torch.device("cpu")
    )
    assert autoencoder.latent_channels == 4 and notices == []


def test_other_weights_are_refused_unless_allowed(other: str) -> None:
    trained = checkpoint(str(BUNDLED))
    message = refusal(trained, autoencoder=other)
    assert "the latents were made by" in message and "allow_other_autoencoder=true" in message
    allowed = SampleConfig(autoencoder=other, allow_other_autoencoder=True)
    autoencoder, notices = open_autoencoder(trained, allowed, torch.device("cpu"))
    assert autoencoder.identity.name == other and "decoding with" in notices[0]


def test_another_shape_is_refused_in_any_case() -> None:
    message = refusal(
        checkpoint("identity"), autoencoder=str(BUNDLED), allow_other_autoencoder=True
    )
    assert "3 channels and downsampling 1" in message and "has 4 and 4" in message


def test_weights_that_changed_under_the_same_name_are_refused() -> None:
    stated = {"name": str(BUNDLED), "revision": None, "sha256": "0" * 64}
    message = refusal(checkpoint(str(BUNDLED), autoencoder=stated))
    assert "weights 000000000000" in message
