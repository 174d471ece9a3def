"""The networks against the published ones: sizes, names, outputs, guidance, inner tensors."""

import re
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from golden import Golden, error
from networks import TIME_SCALE, build, from_shapes, with_golden_weights
from torch import Tensor, nn

from backbone.counts import count_parameters
from backbone.embeddings import LabelEmbedding, TimeEmbedding, position_table, time_sinusoid
from backbone.transformer import DiffusionTransformer
from process.guidance import GuidanceConfig, GuidedDenoiser, drop_labels

TOLERANCE = {"base": 1e-5, "wide": 2e-5}

# Not ours to reproduce: inputs, and how far the golden numbers are from exact ones.
NETWORK_INPUTS = r"x|t|y|cfg_(x|t|y|scales)|(base|wide)_f32_noise"
NETWORK_OUTPUTS = r"(?P<recipe>base|wide)_(?P<what>out|raw\d+|cfg\d+|cfgall|nosigma_out)"


def published_networks(golden: Golden) -> list[str]:
    return [name for name in golden.settings.get("networks", {}) if golden.has(f"{name}.npz")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    golden = Golden.of(metafunc.config)
    table = golden.json("model_table.json") or {"sizes": [], "state_dicts": {}}
    if "record" in metafunc.fixturenames:
        label = "{name} at {input_size}".format_map
        metafunc.parametrize("record", table["sizes"], ids=label)
    if "listed" in metafunc.fixturenames:
        metafunc.parametrize("listed", table["state_dicts"].items(), ids=lambda item: item[0])
    if "network_output" in metafunc.fixturenames:
        outputs = [
            (file, key)
            for file in published_networks(golden)
            for key in golden.npz(f"{file}.npz")
            if re.fullmatch(NETWORK_OUTPUTS, key)
        ]
        metafunc.parametrize("network_output", outputs, ids="-".join)


def test_sizes_of_named_models(record: dict[str, Any]) -> None:
    learned_variance = record.get("learn_sigma", True)
    has_null_label = record.get("class_dropout_prob", 0.1) > 0
    if "num_classes" in record:
        assert record["table_rows"] == record["num_classes"] + has_null_label
    with torch.device("meta"):
        network = build(
            record["name"],
            record["input_size"],
            in_channels=record["out_channels"] // (2 if learned_variance else 1),
            out_channels=record["out_channels"],
            table_rows=record["table_rows"],
            has_null_label=has_null_label,
        )
    site = network.blocks[0].attn.site
    ours = {
        "patch": network.config.patch_size,
        "params": count_parameters(network),
        "params_trainable": count_parameters(network, trainable=True),
        "depth": len(network.blocks),
        "hidden": site.dim,
        "heads": site.num_heads,
        "head_dim": site.head_dim,
        "tokens": prod(site.grid),
        "out_channels": network.config.out_channels,
        "n_tensors": len(network.state_dict()),
    }
    assert ours == {key: record[key] for key in ours}


def test_names_shapes_and_order_of_weights(listed: tuple[str, list[Any]]) -> None:
    model, tensors = listed
    with torch.device("meta"):
        network = from_shapes(model, dict(tensors))
    assert [[k, list(v.shape)] for k, v in network.state_dict().items()] == tensors


def test_every_array_is_compared_or_named_as_left_out(golden: Golden) -> None:
    for file in published_networks(golden):
        for key in golden.npz(f"{file}.npz"):
            assert re.fullmatch(f"{NETWORK_INPUTS}|{NETWORK_OUTPUTS}", key), (file, key)


def test_network_outputs(golden: Golden, network_output: tuple[str, str]) -> None:
    file, key = network_output
    recipe, what = re.fullmatch(NETWORK_OUTPUTS, key).groups()
    arrays = golden.npz(f"{file}.npz")
    model, input_size = golden.settings["networks"][file]
    channels = {"out_channels": arrays["x"].shape[1]} if what == "nosigma_out" else {}
    network = with_golden_weights(golden, model, input_size, recipe, **channels)
    inputs = {k: torch.from_numpy(v) for k, v in arrays.items() if not k.endswith("noise")}
    with torch.no_grad():
        if what.startswith("cfg"):
            ours, expected = guided(network, inputs, arrays[key], what.removeprefix("cfg"))
        else:
            ours, expected = unguided(network, inputs, what), arrays[key]
    assert error(ours, expected) < TOLERANCE[recipe]


def unguided(network: DiffusionTransformer, inputs: dict[str, Tensor], what: str) -> Tensor:
    x, t, y = (inputs[name] for name in ("x", "t", "y"))
    if what.startswith("raw"):  # what SiT computes before it cuts the variance off
        return DiffusionTransformer.forward(network, x, t, y)
    return network(x, t, y)


def guided(
    network: DiffusionTransformer, inputs: dict[str, Tensor], expected: np.ndarray, channels: str
) -> tuple[Tensor, np.ndarray]:
    """Our guided predictions, one per scale, and the published ones for the same images.

    The published call takes a batch twice as long, of which the latents' second half is ignored
    and the result's second half repeats the guided channels.
    """
    x, t, y = (inputs[f"cfg_{name}"].chunk(2) for name in ("x", "t", "y"))
    assert torch.equal(*t)
    null_label = network.config.num_classes
    assert (y[1] == null_label).all()
    guided_channels = None if channels == "all" else int(channels)
    scales = inputs["cfg_scales"][-len(expected) :].tolist()
    configs = [GuidanceConfig(scale=s, guided_channels=guided_channels) for s in scales]
    ours = [GuidedDenoiser(network, c, null_label)(x[0], t[0], y[0]) for c in configs]
    return torch.stack(ours)[:, :, : expected.shape[2]], expected[:, : len(x[0])]


def record_tensors(network: DiffusionTransformer, run: Callable[[], Any]) -> dict[str, Tensor]:
    """Runs, and returns the tensors of the network's parts under their golden names."""
    seen: dict[str, Tensor] = {}
    handles = []

    def output(module: nn.Module, name: str) -> None:
        def hook(_module: nn.Module, _args: Any, result: Any) -> None:
            seen[name] = result[0] if isinstance(result, tuple) else result

        handles.append(module.register_forward_hook(hook))

    def first_input(module: nn.Module, name: str) -> None:
        hook = lambda _module, args: seen.__setitem__(name, args[0])  # noqa: E731
        handles.append(module.register_forward_pre_hook(hook))

    first_input(network.blocks[0], "tokens")
    output(network.t_embedder, "t_emb")
    output(network.y_embedder, "y_emb")
    output(network.final_layer, "final_tokens")
    for i, block in enumerate(network.blocks):
        output(block.adaLN_modulation, f"mod{i}")
        first_input(block.attn, f"attn{i}_in")
        output(block.attn, f"attn{i}_out")
        output(block.mlp, f"mlp{i}_out")
        output(block, f"block{i:02d}")
    with torch.no_grad():
        run()
    for handle in handles:
        handle.remove()
    return seen


def test_inner_tensors(golden: Golden) -> None:
    arrays = golden.npz("dit_activations.npz")
    if not arrays:
        return
    settings = golden.settings["activations"]
    model, input_size = settings["model"], settings["input_size"]
    network = with_golden_weights(golden, model, input_size, "wide")
    files = golden.settings["networks"]
    inputs = golden.npz(next(f"{f}.npz" for f in files if files[f] == [model, input_size]))
    if inputs:
        x, t, y = (torch.from_numpy(inputs[name]) for name in ("x", "t", "y"))
        seen = record_tensors(network, lambda: network(x, t, y))
        for name in (name for name in arrays if not name.startswith("small_")):
            assert error(seen[name], arrays[name]) < TOLERANCE["wide"], name
    # Small tokens make the epsilon of the layer norms visible.
    tokens, condition = (torch.from_numpy(arrays[f"small_{name}"]) for name in ("x", "c"))
    grid = (1, tokens.shape[1])
    for name in (name for name in arrays if re.match("small_(block|final)", name)):
        block = re.fullmatch(r"small_block(\d+)", name)
        with torch.no_grad():
            if block:
                ours, _ = network.blocks[int(block[1])](tokens, condition, grid)
            else:
                ours = network.final_layer(tokens, condition)
        assert error(ours, arrays[name]) < TOLERANCE["wide"], name


def golden_module(golden: Golden, module: nn.Module, prefix: str, recipe: str) -> nn.Module:
    """``module`` with the golden weights of its place in the network."""
    weights = golden.module("golden_weights.py")
    state = {
        name: torch.from_numpy(weights.tensor(f"{prefix}.{name}", tuple(value.shape), recipe))
        for name, value in module.state_dict().items()
    }
    module.load_state_dict(state)
    return module.requires_grad_(False)


def test_time_embedding(golden: Golden) -> None:
    arrays = golden.npz("embedders.npz")
    for name in (name for name in arrays if name.startswith("t_")):
        t = torch.from_numpy(arrays["t"])
        dim = arrays[name].shape[1]
        if name.startswith("t_sin"):
            ours = time_sinusoid(t * TIME_SCALE, dim)
        else:
            embedding = TimeEmbedding(dim, TIME_SCALE)
            ours = golden_module(golden, embedding, "t_embedder", name.rsplit("_", 1)[1])(t)
        assert error(ours, arrays[name]) < 1e-4, name


def test_label_embedding_and_dropped_labels(golden: Golden) -> None:
    arrays = golden.npz("embedders.npz")
    if not arrays:
        return
    num_classes = golden.settings["embedders"]["num_classes"]
    tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
    dim = arrays["emb_eval"].shape[1]
    for name, has_null_label in (("table_shape", True), ("table_shape_p0", False)):
        with torch.device("meta"):
            table = LabelEmbedding(num_classes, has_null_label, dim).embedding_table
        assert list(table.weight.shape) == arrays[name].tolist()

    for name in (name for name in arrays if name.startswith("labels64_p")):
        probability = float(name.removeprefix("labels64_p"))
        ours = drop_labels(tensors["labels64"], tensors["u"], probability, num_classes)
        assert torch.equal(ours, tensors[name])

    # A label is dropped for certain where its random number is 0, and kept where it is 1.
    u = 1.0 - tensors["force_drop"].float()
    forced = drop_labels(tensors["labels"], u, 0.5, num_classes)
    assert torch.equal(forced, tensors["labels_forced"])
    embedding = golden_module(golden, LabelEmbedding(num_classes, True, dim), "y_embedder", "base")
    assert torch.equal(embedding(tensors["labels"]), tensors["emb_eval"])
    assert torch.equal(embedding(forced), tensors["emb_forced"])


def test_position_tables(golden: Golden) -> None:
    for name, expected in golden.npz("posembed.npz").items():
        side, dim = map(int, re.fullmatch(r"g(\d+)_d(\d+)", name).groups())
        assert error(position_table((side, side), dim), expected) < 1e-12, name
