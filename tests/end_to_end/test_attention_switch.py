"""``attention=NAME`` is all it takes to train, resume and sample with another attention."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from programs import ROOT, losses
from torch import Tensor

from backbone.transformer import DiffusionTransformer
from runtime import checkpoint as checkpoints
from runtime.build import build_network
from runtime.config import read_config
from runtime.errors import UserError
from runtime.factory import ATTENTIONS, FAMILIES
from runtime.training_config import TrainConfig, sections_of
from sample import main as sample
from train import main as train


def path_name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


CONFIGS = sorted(
    path
    for family in ("dit", "sit")
    for path in (ROOT / "configs" / family).glob("*.yaml")
    if not path.name.startswith("base")
)
# One of every size, patch and image size. The networks of SiT are those of DiT.
NETWORKS = [path for path in CONFIGS if re.fullmatch(r"dit/[a-z]+\d(_512)?", path_name(path))]


def read(path: Path, *overrides: str) -> TrainConfig:
    return read_config(TrainConfig, [str(path), *overrides], sections_of)


def build_without_memory(config: TrainConfig) -> DiffusionTransformer:
    with torch.device("meta"):
        return build_network(config)


@pytest.mark.parametrize("path", CONFIGS, ids=path_name)
def test_the_key_changes_nothing_but_the_attention(path: Path) -> None:
    config = read(path)
    for attention in ATTENTIONS:
        assert read(path, f"attention={attention}") == dataclasses.replace(
            config, attention=attention
        )


@pytest.mark.parametrize("path", NETWORKS, ids=path_name)
def test_every_attention_sits_in_every_shipped_network(path: Path) -> None:
    config = read(path)
    for attention, entry in ATTENTIONS.items():
        network = build_without_memory(dataclasses.replace(config, attention=attention))
        assert all(isinstance(block.attn, entry.layer) for block in network.blocks)


@pytest.mark.parametrize(
    ("row", "overrides", "message"),
    [
        ("dit/l2", ["attention=care", "care.memory=external"], "dim 1024 is not divisible by 3"),
        ("sit/s2", ["attention=differential", "differential.num_pairs=5"], "num_pairs 5"),
        ("sit/b4", ["attention=vca_split", "vca_split.num_pairs=5"], "num_pairs 5"),
        ("dit/s8", ["attention=vca", "vca.pooled_grid=[5,4]"], "larger than the token grid"),
        ("sit/xl8", ["attention=agent", "agent.pooled_grid=[4,5]"], "larger than the token grid"),
    ],
)
def test_a_layer_that_cannot_sit_there_is_refused_in_one_line(
    row: str, overrides: list[str], message: str
) -> None:
    config = read(ROOT / "configs" / f"{row}.yaml", *overrides)
    with pytest.raises(UserError, match=message) as error:
        build_without_memory(config)
    assert str(error.value).startswith(f"{config.model} with {overrides[0]}: ")
    assert "\n" not in str(error.value)


# --- the programs ---------------------------------------------------------------------------------

RUNS = {attention: [f"attention={attention}"] for attention in ATTENTIONS}
RUNS["vca-paper"] = ["attention=vca", "vca.variant=paper"]
RUNS["care_block"] = ["attention=care", "care.profile=care_block"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("run", RUNS)
def test_any_attention_trains_resumes_and_samples(
    family: str, run: str, train_config: Callable[[str], Path], tmp_path: Path
) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    settings = [str(train_config(family)), *RUNS[run], "lr=3e-2"]
    train([*settings, f"output_dir={straight}", "num_steps=4"])
    for num_steps in (2, 4):
        train([*settings, f"output_dir={broken}", f"num_steps={num_steps}"])
    assert losses(broken) == losses(straight) and len(losses(straight)) == 4
    assert_same_weights(broken, straight)

    expected = drawn(straight, tmp_path / "whole", batch_size=5)
    drawn(broken, tmp_path / "split", batch_size=2)
    for index in (1, 4):  # as if killed before they were written
        (tmp_path / "split" / "images" / f"{index:06d}.png").unlink()
    assert_same_images(drawn(broken, tmp_path / "split", batch_size=3), expected)


def assert_same_weights(ours: Path, theirs: Path) -> None:
    ours_at, theirs_at = checkpoints.load(ours), checkpoints.load(theirs)
    for kind in ("raw", "ema"):
        weights: dict[str, Tensor] = ours_at.weights(kind)
        for parameter, weight in theirs_at.weights(kind).items():
            assert torch.equal(weights[parameter], weight), f"{kind} {parameter}"


def drawn(run_dir: Path, folder: Path, batch_size: int) -> np.ndarray:
    sample(
        [
            str(run_dir), f"output_dir={folder}", f"batch_size={batch_size}", "num_images=5",
            "seed=5", "weights=raw", "guidance.scale=1.5", "sampler.num_sampling_steps=3",
        ]
    )  # fmt: skip
    paths = sorted((folder / "images").glob("*.png"))
    return np.stack([np.asarray(Image.open(path)) for path in paths]).astype(int)


def assert_same_images(ours: np.ndarray, expected: np.ndarray) -> None:
    """But for a value that a sum of other batches rounds the other way."""
    assert len(np.unique(expected.reshape(len(expected), -1), axis=0)) == len(expected)
    assert np.abs(ours - expected).max() <= 1 and (ours != expected).mean() <= 0.002
