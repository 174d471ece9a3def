"""Laws that every attention layer keeps, alone, in a block and in a network."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from every_attention import (
    DIM,
    GRID,
    LAYERS,
    LAYERS_OF_HEADS,
    NUM_HEADS,
    Build,
    builder,
    map_form,
    network_config,
    with_open_gates,
)
from torch import Tensor, nn

from backbone.block import Block
from backbone.macs import AttentionMacs
from backbone.site import AttentionSite
from backbone.transformer import DiffusionTransformer
from runtime.factory import ATTENTIONS


@pytest.fixture(params=LAYERS)
def attention(request: pytest.FixtureRequest) -> Build:
    return builder(request.param)


def site(qk_norm: bool = False) -> AttentionSite:
    return AttentionSite(DIM, NUM_HEADS, GRID, block_index=1, qk_norm=qk_norm)


def tokens_on(grid: tuple[int, int], prefix: int = 0, batch: int = 2) -> Tensor:
    return torch.randn(batch, prefix + grid[0] * grid[1], DIM)


def run(layer: nn.Module, tokens: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
    """The tokens that a layer returns, whether or not it threads a memory."""
    memory_dim = getattr(layer, "memory_dim", None)
    if memory_dim is None:
        return layer(tokens, grid, tokens.shape[1] - GRID[0] * GRID[1])
    memory = torch.ones(*tokens.shape[:2], memory_dim, dtype=tokens.dtype)
    return layer(tokens, grid, tokens.shape[1] - GRID[0] * GRID[1], memory)[0]


def step(network: DiffusionTransformer) -> dict[str, Tensor | None]:
    """The gradients of one training step, by name."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, *network.config.latent_size, generator=generator)
    prediction = network(x, torch.tensor([3, 700]), torch.tensor([0, 2]))
    cotangent = torch.randn(prediction.shape, generator=generator)
    (prediction * cotangent).sum().backward()
    return {name: p.grad for name, p in network.named_parameters() if p.requires_grad}


def test_a_new_block_is_the_identity(attention: Build) -> None:
    block = Block(site(), attention, mlp_ratio=4.0)
    tokens = tokens_on(GRID)
    memory = None if block.memory_dim is None else torch.ones(2, 24, block.memory_dim)
    assert torch.equal(block(tokens, torch.randn(2, DIM), GRID, memory)[0], tokens)


@pytest.mark.parametrize("changes", [{}, {"label_drop": 0.0}, {"qk_norm": True}], ids=str)
def test_every_parameter_gets_a_gradient(attention: Build, changes: dict[str, Any]) -> None:
    network = DiffusionTransformer(network_config(**changes), attention)
    for name, gradient in step(with_open_gates(network)).items():
        assert gradient is not None and gradient.isfinite().all() and gradient.any(), name


def test_checkpointing_leaves_gradients_as_they_are(attention: Build) -> None:
    network = DiffusionTransformer(network_config(), attention)
    checkpointing = DiffusionTransformer(network_config(gradient_checkpointing=True), attention)
    checkpointing.load_state_dict(with_open_gates(network).state_dict())
    expected = step(network)
    for name, gradient in step(checkpointing).items():
        assert torch.equal(gradient, expected[name]), name


def test_images_do_not_influence_one_another(attention: Build) -> None:
    layer, tokens = attention(site()).double(), tokens_on(GRID, batch=3).double()
    others = tokens.clone()
    others[1:] = torch.randn_like(others[1:])
    torch.testing.assert_close(run(layer, tokens)[:1], run(layer, others)[:1], rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", LAYERS_OF_HEADS)
@pytest.mark.parametrize("qk_norm", [False, True])
def test_fused_calls_compute_softmax_maps(
    name: str, qk_norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = with_open_gates(builder(name)(site(qk_norm)).double())
    tokens = tokens_on(GRID).double().requires_grad_()
    inputs = {"tokens": tokens, **dict(layer.named_parameters())}

    def output_and_gradients() -> tuple[Tensor, ...]:
        out = layer(tokens)
        return out, *torch.autograd.grad(out.square().sum(), list(inputs.values()))

    fused = output_and_gradients()
    monkeypatch.setattr(F, "scaled_dot_product_attention", map_form)
    mapped = output_and_gradients()
    for tensor, ours, theirs in zip(["output", *inputs], fused, mapped, strict=True):
        assert (ours - theirs).norm() <= 1e-12 * theirs.norm(), tensor


@pytest.mark.parametrize("name", LAYERS_OF_HEADS)
def test_heads_have_no_order(name: str) -> None:
    """Nor have pairs of heads. (The heads of CARE are channels of its input.)"""
    layer, shuffled = (builder(name)(site(qk_norm=True)).double() for _ in range(2))
    num_heads = NUM_HEADS // 2 if name.startswith(("differential", "vca_split")) else NUM_HEADS
    heads = torch.arange(num_heads).roll(1)
    channels = torch.arange(DIM).unflatten(0, (num_heads, -1))[heads].flatten()
    state = with_open_gates(layer).state_dict()
    for parameter, value in state.items():
        if parameter.startswith("qkv"):
            state[parameter] = value[torch.cat([channels + i * DIM for i in range(3)])]
        elif parameter.startswith("value_conv"):
            state[parameter] = value[channels]
        elif parameter.startswith("contrast_tokens") or parameter == "proj.weight":
            state[parameter] = value[..., channels]
        elif parameter.startswith("biases"):
            state[parameter] = value[heads]
    shuffled.load_state_dict(state)
    tokens = tokens_on(GRID).double()
    torch.testing.assert_close(shuffled(tokens), layer(tokens), rtol=0, atol=1e-12)
    for parameter in ("qkv.weight", "proj.weight"):  # the order of one alone does matter
        shuffled.load_state_dict(state | {parameter: layer.state_dict()[parameter]})
        assert not torch.isclose(shuffled(tokens), layer(tokens)).all()


@pytest.mark.parametrize("name", LAYERS_OF_HEADS)
def test_normed_queries_and_keys_forget_their_scale(name: str) -> None:
    plain, normed = (builder(name)(site(qk_norm)).double() for qk_norm in (False, True))
    tokens = tokens_on(GRID).double()
    changes = []
    for layer in (plain, normed):
        before = layer(tokens)
        with torch.no_grad():
            layer.qkv.weight[: 2 * DIM] *= 100
            layer.qkv.bias[: 2 * DIM] *= 100
        changes.append(((layer(tokens) - before).norm() / before.norm()).item())
    assert changes[1] < 1e-4 < changes[0]


def test_heads_that_do_not_divide_the_channels_are_refused() -> None:
    with pytest.raises(ValueError, match="dim 48 is not divisible by num_heads 5"):
        AttentionSite(DIM, 5, GRID, block_index=0)


@pytest.mark.parametrize("num_tokens", [23, 25])
def test_tokens_that_form_no_grid_are_refused(attention: Build, num_tokens: int) -> None:
    layer = attention(site())
    with pytest.raises(ValueError, match="do not form the expected grid"):
        layer(torch.randn(1, num_tokens, DIM))


def test_prefix_tokens_are_tokens_too(attention: Build) -> None:
    layer = attention(site())
    tokens = tokens_on(GRID, prefix=2)
    out = run(layer, tokens)
    assert out.shape == tokens.shape
    assert out.isfinite().all()


def test_layer_keeps_float64(attention: Build) -> None:
    assert run(attention(site()).double(), tokens_on(GRID).double()).dtype == torch.float64


def test_other_latent_sizes_run_or_are_refused(attention: Build) -> None:
    network = with_open_gates(DiffusionTransformer(network_config(), attention))
    for size in [(16, 16), (8, 24), (2, 2)]:
        x, t, y = torch.randn(1, 4, *size), torch.tensor([5]), torch.tensor([1])
        try:
            prediction = network(x, t, y)
        except ValueError as error:
            assert "grid" in str(error)
        else:
            assert prediction.shape == (1, 8, *size)
            assert prediction.isfinite().all()


def test_no_parameter_is_shared_and_every_weight_reloads(attention: Build) -> None:
    network = DiffusionTransformer(network_config(), attention)
    storages = [p.data_ptr() for p in network.parameters()]
    assert len(storages) == len(set(storages))
    DiffusionTransformer(network_config(), attention).load_state_dict(network.state_dict())


def test_only_the_attention_changes_with_the_attention(attention: Build) -> None:
    def rest(build: Build) -> dict[str, torch.Size]:
        network = DiffusionTransformer(network_config(), build)
        if getattr(network.blocks[0].attn, "replaces_mlp", False):
            return {}
        state = network.state_dict()
        return {k: v.shape for k, v in state.items() if ".attn." not in k and "memory" not in k}

    softmax = ATTENTIONS["softmax"]
    expected = rest(lambda site: softmax.layer(softmax.config(), site))
    assert rest(attention) in (expected, {})


def test_costs_are_whole_numbers_that_grow_with_the_tokens(attention: Build) -> None:
    layer = attention(site())
    few, many = layer.macs(24), layer.macs(96)
    assert isinstance(few, AttentionMacs)
    assert 0 < 4 * few.dense <= many.dense
    assert few.core <= few.fused_core and 4 * few.core <= many.core


COMPILE = """
import torch
from backbone.transformer import DiffusionTransformer, TransformerConfig
from runtime.factory import ATTENTIONS
config = TransformerConfig(
    latent_size=(8, 12), patch_size=2, dim=48, depth=1, num_heads=4, num_classes=3,
    learned_variance=True, time_scale=1.0,
)
x, t, y = torch.randn(2, 4, 8, 12), torch.tensor([3, 700]), torch.tensor([0, 2])
for name, entry in ATTENTIONS.items():
    network = DiffusionTransformer(config, lambda site: entry.layer(entry.config(), site))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, t, y), network(x, t, y))
"""


def test_networks_compile_without_a_graph_break() -> None:
    # In a process of its own, since the checks of shapes that the tests switch on break graphs.
    subprocess.run(
        [sys.executable, "-c", COMPILE], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
