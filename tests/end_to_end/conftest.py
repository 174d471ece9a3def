"""A tiny data set, and the programs as a user starts them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from programs import ROOT, Program

CLASSES = ("ant", "bee", "cat")
PER_CLASS = 9


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """27 images of 8 x 8 pixels in three classes, each class of a colour of its own."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir()
        for i in range(PER_CLASS):
            pixels = random.integers(0, 60, (8, 8, 3), dtype=np.uint8)
            pixels[:, :, number] += 150
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="session")
def program() -> Program:
    """Runs one of the programs to its end: ``program("train.py", ..., processes=2)``."""

    def run(*command: str, processes: int = 0, status: int | None = 0, **environment: str):
        launch = [sys.executable]
        if processes:
            launch += ["-m", "accelerate.commands.launch", "--cpu", "--num_machines", "1"]
            launch += ["--num_processes", str(processes), "--mixed_precision", "no"]
            launch += ["--dynamo_backend", "no", "--main_process_port", "0"]
        finished = subprocess.run(
            [*launch, *map(str, command)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if status is not None:
            assert finished.returncode == status, finished.stdout[-3000:] + finished.stderr[-3000:]
        return finished

    return run


@pytest.fixture(scope="session")
def latents(images: Path, program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images as latents of the identity autoencoder: 3 x 8 x 8, with mirrored copies."""
    folder = tmp_path_factory.mktemp("data") / "latents"
    config = folder.parent / "encode.yaml"
    config.write_text(f"images: {images}\nautoencoder: identity\nimage_size: 8\n")
    program("encode_latents.py", config, f"latents_dir={folder}")
    return folder


@pytest.fixture(scope="session")
def train_config(latents: Path) -> Callable[[str], Path]:
    """A config for the tiny data set: ``train_config("DiT")``."""

    def config(family: str) -> Path:
        path = latents.parent / f"{family}.yaml"
        path.write_text(
            f"model: {family}-XXS/2\nattention: vca\nlatents_dir: {latents}\nimage_size: 8\n"
            "downsampling: 1\nlatent_channels: 3\nnum_classes: 3\nnum_workers: 0\n"
            "global_batch_size: 8\nlr: 1e-3\nlog_every: 1\nnum_steps: 50\n"
            "tracker:\n  tensorboard: false\n"
        )
        return path

    return config
