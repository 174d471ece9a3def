"""What training says of its latents, and what sampling still needs of them: nothing."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from runtime.latents import LatentDataset
from runtime.passport import MANIFEST, Passport
from runtime.scaling import Scaling
from sample import main as sample
from train import main as train

TrainConfig = Callable[[str], Path]


def test_latents_scaled_wrongly_are_told_at_the_start(
    train_config: TrainConfig, latents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the screen and in the run folder."""
    twice = shutil.copytree(latents, tmp_path / "latents")
    passport = Passport.load(twice / MANIFEST)
    replace(passport, scaling=Scaling(factor=0.18215)).save(twice / MANIFEST)
    for folder, expected in ((latents, passport.std), (twice, 0.18215 * passport.std)):
        run_dir = tmp_path / f"run of {folder.parent.name}"
        config = str(train_config("SiT"))
        train([config, f"output_dir={run_dir}", f"latents_dir={folder}", "num_steps=1"])
        printed = capsys.readouterr().out
        seen = json.loads((run_dir / "run.json").read_text())["latents_seen"]
        assert seen["std"] == pytest.approx(expected, rel=0.05) and len(seen["channel_stds"]) == 3
        assert f"standard deviation {seen['std']:.3f}" in printed
        assert ("warning: the latents have a standard deviation" in printed) == (folder == twice)


def test_sampling_needs_the_checkpoint_alone(
    train_config: TrainConfig, latents: Path, tmp_path: Path
) -> None:
    """Not the data set: scaling and autoencoder are in the checkpoint, and in the samples."""
    lent, run_dir = shutil.copytree(latents, tmp_path / "latents"), tmp_path / "run"
    config = str(train_config("SiT"))
    train([config, f"output_dir={run_dir}", f"latents_dir={lent}", "num_steps=1"])
    scaling = LatentDataset(lent).scaling
    shutil.rmtree(lent)
    settings = ["num_images=2", "sampler.method=euler", "sampler.num_sampling_steps=1"]
    sample([str(run_dir), f"output_dir={tmp_path}/samples", "guidance.scale=1", *settings])
    assert Image.open(tmp_path / "samples" / "images" / "000001.png").size == (8, 8)
    said = json.loads((tmp_path / "samples" / "settings.json").read_text())
    assert said["scaling"] == json.loads(json.dumps(scaling.to_json()))
