"""The shipped configs build networks of the published size, and cost what was counted."""

import dataclasses
from dataclasses import dataclass
from functools import cache
from math import isqrt
from pathlib import Path
from typing import Any

import pytest
from golden import Golden

from backbone.counts import count_parameters
from backbone.sizes import SIZES
from backbone.transformer import DiffusionTransformer
from runtime.config import read_config
from runtime.factory import MODELS
from runtime.network_cost import build_without_memory, cost_of
from runtime.training_config import TrainConfig, sections_of

ROOT = Path(__file__).parents[2]


@cache
def shipped() -> list[TrainConfig]:
    folders = [ROOT / "configs" / folder for folder in ("dit", "sit", "ablations")]
    paths = [path for folder in folders for path in folder.glob("*.yaml")]
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
        metafunc.parametrize("counted", cases, ids=[case.config.output_dir for case in cases])


@dataclass(frozen=True)
class Counted:
    """A shipped config, with what was counted for its layer and for softmax attention."""

    config: TrainConfig
    layer: dict[str, int]
    fused: dict[str, int]  # the same layer by fused calls, where that was counted
    softmax: dict[str, int]


def _counted(golden: Golden) -> list[Counted]:
    layers = {(e["model"], e["tokens"]): e for e in golden.json("attention/counts.json")}
    cases = []
    for config in dict.fromkeys(shipped()):
        family, size = config.model.split("-")
        tokens = (config.latent_shape[1] // MODELS[config.model].patch_size) ** 2
        counts = layers.get((f"{family}-{size}", tokens)) or layers.get((f"DiT-{size}", tokens))
        key, fused = _keys(config, tokens)
        if counts and key in counts and "mhsa" in counts:
            cases.append(Counted(config, counts[key], counts.get(fused, {}), counts["mhsa"]))
    return cases


def _keys(config: TrainConfig, tokens: int) -> tuple[str | None, str | None]:
    """What the counts call this layer, in the map form and by fused calls."""
    num_contrast_tokens = min(isqrt(tokens) // 2, 8) ** 2
    if config.attention == "vca":
        # Counted are the full layers; banks of pooled queries alone have no embedding.
        sources = (config.vca.positive_source, config.vca.negative_source)
        if "pool" in sources or not (config.vca.stage1_difference and config.vca.stage2_difference):
            return None, None
        variant = "released" if config.vca.has_value_conv else "paper"
        return (
            f"vca_{variant}_n{num_contrast_tokens}",
            f"vca_{variant}_fused_n{num_contrast_tokens}",
        )
    care = "care_1_1" if config.care.profile == "care_attn" else "care_4_4"
    names = {
        "softmax": ("mhsa", None),
        "differential": ("diff", "diff_fused"),
        "agent": (f"agent_n{num_contrast_tokens}", None),
        "care": (care, None),
    }
    return names.get(config.attention, (None, None))


@cache
def network_of(config: TrainConfig) -> DiffusionTransformer:
    return build_without_memory(config)


def parameters(config: TrainConfig, trainable: bool = False) -> int:
    return count_parameters(network_of(config), trainable)


def test_softmax_configs_have_the_published_parameters(entry: dict[str, Any]) -> None:
    config = _config_of(entry)
    size, patch = SIZES[MODELS[config.model].size], MODELS[config.model].patch_size
    # SiT is published with the variance channels of DiT, which ours leaves out.
    half = patch**2 * config.latent_channels * (size.dim + 1)
    left_out = 0 if network_of(config).config.learned_variance else half
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


def test_a_layer_costs_what_was_counted(counted: Counted) -> None:
    cost = cost_of(counted.config.attention, network_of(counted.config))
    ours = {
        "params": cost.layer_parameters,
        "extra_params": cost.layer_parameters - counted.softmax["params"],
        "macs": cost.layer.total,
        "core_macs": cost.layer.core,
    }
    by_fused_calls = ours | {"macs": cost.layer.fused_total, "core_macs": cost.layer.fused_core}
    assert {name: ours[name] for name in counted.layer} == counted.layer
    assert {name: by_fused_calls[name] for name in counted.fused} == counted.fused


def test_a_network_has_the_parameters_of_its_layers(counted: Counted) -> None:
    """Beside softmax attention; a layer that replaces the MLP takes that and 3 modulations away."""
    config, size = counted.config, SIZES[MODELS[counted.config.model].size]
    plain = parameters(dataclasses.replace(config, attention="softmax"))
    per_block = counted.layer["params"] - counted.softmax["params"]
    if config.attention == "care" and config.care.profile == "care_block":
        mlp = 8 * size.dim**2 + 5 * size.dim
        per_block -= mlp + 3 * (size.dim**2 + size.dim)
    assert parameters(config) - plain == size.depth * per_block
