"""The shipped configs build networks of the published size."""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from golden import Golden

from backbone.counts import count_parameters
from backbone.sizes import SIZES
from backbone.transformer import DiffusionTransformer
from runtime.build import build_network
from runtime.config import read_config
from runtime.factory import MODELS
from runtime.training_config import TrainConfig, sections_of

ROOT = Path(__file__).parents[2]


@cache
def shipped() -> list[TrainConfig]:
    paths = [p for family in ("dit", "sit") for p in (ROOT / "configs" / family).glob("*.yaml")]
    paths = sorted(path for path in paths if not path.name.startswith("base"))
    return [read_config(TrainConfig, [str(path)], sections_of) for path in paths]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    golden = Golden.of(metafunc.config)
    if "entry" in metafunc.fixturenames:
        known = {config.model for config in shipped()}
        table = golden.json("model_table.json") or {"sizes": []}
        entries = [entry for entry in table["sizes"] if entry["name"] in known]
        ids = [f"{entry['name']}-{entry['input_size']}" for entry in entries]
        metafunc.parametrize("entry", entries, ids=ids)
    if "counted" in metafunc.fixturenames:
        cases = _counted(golden)
        metafunc.parametrize("counted", cases, ids=[config.output_dir for config, _, _ in cases])


def _counted(golden: Golden) -> list[tuple[TrainConfig, int, int]]:
    """Shipped VCA configs with the golden parameters of a softmax and of a VCA layer."""
    layers = {(e["model"], e["tokens"]): e for e in golden.json("attention/counts.json")}
    cases = []
    for config in shipped():
        family, size = config.model.split("-")
        side = config.latent_shape[1] // MODELS[config.model].patch_size
        counts = layers.get((f"{family}-{size}", side**2)) or layers.get((f"DiT-{size}", side**2))
        key = f"vca_{config.vca.variant}_n{min(side // 2, 8) ** 2}"
        if config.attention == "vca" and counts and key in counts:
            cases.append((config, counts["mhsa"]["params"], counts[key]["params"]))
    return cases


@cache
def build_without_memory(config: TrainConfig) -> DiffusionTransformer:
    with torch.device("meta"):
        return build_network(config)


def parameters(config: TrainConfig, trainable: bool = False) -> int:
    return count_parameters(build_without_memory(config), trainable)


def test_softmax_configs_have_the_published_parameters(entry: dict[str, Any]) -> None:
    config = _config_of(entry)
    size, patch = SIZES[MODELS[config.model].size], MODELS[config.model].patch_size
    # SiT is published with the variance channels of DiT, which ours leaves out.
    half = patch**2 * config.latent_channels * (size.dim + 1)
    left_out = 0 if build_without_memory(config).config.learned_variance else half
    assert entry["out_channels"] == 2 * config.latent_channels
    assert parameters(config) == entry["params"] - left_out
    assert parameters(config, trainable=True) == entry["params_trainable"] - left_out
    with_half = dataclasses.replace(config, learned_variance=True)
    assert parameters(with_half) == entry["params"]


def _config_of(entry: dict[str, Any]) -> TrainConfig:
    """The shipped softmax config of a row, at the latent size and class count of the row."""
    plain = [c for c in shipped() if c.model == entry["name"] and c.attention == "softmax"]
    nearest = min(plain, key=lambda c: abs(c.latent_shape[1] - entry["input_size"]))
    return dataclasses.replace(
        nearest,
        image_size=entry["input_size"] * nearest.downsampling,
        num_classes=entry["table_rows"] - 1,
    )


def test_vca_configs_have_the_counted_parameters(counted: tuple[TrainConfig, int, int]) -> None:
    config, softmax_layer, vca_layer = counted
    depth = SIZES[MODELS[config.model].size].depth
    plain = parameters(dataclasses.replace(config, attention="softmax"))
    assert parameters(config) - plain == depth * (vca_layer - softmax_layer)
