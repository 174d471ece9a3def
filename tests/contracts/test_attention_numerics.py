"""Every attention layer in 16 bits and at high learning rates."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from every_attention import (
    DIM,
    GRID,
    LAST_BLOCK,
    LAYERS,
    LAYERS_OF_HEADS,
    NUM_HEADS,
    builder,
    call,
    map_form,
    memory_for,
    network_config,
    with_open_gates,
)
from torch import Tensor, nn
from watched_operations import SIXTEEN_BITS, AttentionCall, PrecisionWatch

from backbone import initialisation
from backbone.block import Block
from backbone.site import AttentionSite
from runtime.factory import FAMILIES
from vca.attention import VCAConfig, VisualContrastAttention

SIZES = {"S": (384, 6), "XL": (1152, 16)}  # dim, heads

every_layer = pytest.mark.parametrize("name", LAYERS)
every_family = pytest.mark.parametrize("family", FAMILIES)
in_16_bits = pytest.mark.parametrize("dtype", SIXTEEN_BITS, ids=str)


def new_layer(name: str, site: AttentionSite) -> nn.Module:
    """With the values that a layer starts with in a network."""
    layer = builder(name)(site)
    initialisation.xavier(layer)
    return layer


# --- how far 16 bits are from float64 -------------------------------------------------------------


@torch.no_grad()
def distance_of_bfloat16(layer: nn.Module, grid: tuple[int, int]) -> float:
    """|bfloat16 - float64| / |float64| of what a layer returns for random tokens."""
    layer = layer.double()
    tokens = torch.randn(1, grid[0] * grid[1], layer.site.dim, dtype=torch.float64)
    memory = memory_for(layer, tokens)
    exact = call(layer, tokens, memory)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = call(layer.float(), tokens.float(), None if memory is None else memory.float())
    return ((rounded - exact).norm() / exact.norm()).item()


@every_layer
@pytest.mark.parametrize("size", SIZES)
def test_bfloat16_is_within_2_percent_of_float64(name: str, size: str) -> None:
    # The wide maps of CARE are slow in 16 bits on a CPU, and know no number of contrast tokens.
    grid = (8, 8) if size == "XL" and name.startswith("care") else (16, 16)
    layer = new_layer(name, AttentionSite(*SIZES[size], grid, LAST_BLOCK))
    assert distance_of_bfloat16(layer, grid) < 2e-2


@pytest.mark.parametrize("variant", ["released", "paper"])
@pytest.mark.parametrize("block_index", [0, 11, LAST_BLOCK])
def test_bfloat16_bears_banks_that_are_nearly_alike(variant: str, block_index: int) -> None:
    """Small embeddings leave two streams whose difference is small where lambda nears 0.8."""
    config = VCAConfig(variant=variant, embedding_std=0.02)
    layer = VisualContrastAttention(config, AttentionSite(*SIZES["S"], (16, 16), block_index))
    initialisation.xavier(layer)
    assert distance_of_bfloat16(layer, (16, 16)) < 2e-2


# --- large activations ----------------------------------------------------------------------------

WIDE_SITE = AttentionSite(192, 4, GRID, LAST_BLOCK)  # heads nearly as wide as published ones


def assert_finite_backward(out: Tensor, inputs: list[Tensor]) -> None:
    out.float().square().mean().sqrt().backward()
    assert out.isfinite().all()
    for tensor in inputs:
        assert tensor.grad is not None and tensor.grad.isfinite().all()


@every_layer
@in_16_bits
@pytest.mark.parametrize("stream", [torch.float32, None], ids=["float32 stream", "16-bit stream"])
def test_a_block_bears_activations_of_10000(
    name: str, dtype: torch.dtype, stream: torch.dtype | None
) -> None:
    block = with_open_gates(Block(WIDE_SITE, builder(name), mlp_ratio=2.0))
    tokens = (1e4 * torch.randn(1, 24, WIDE_SITE.dim)).to(stream or dtype).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        condition = torch.randn(1, WIDE_SITE.dim)
        out, _ = block(tokens, condition, GRID, memory_for(block, tokens, 1e4))
    assert_finite_backward(out, [tokens, *block.parameters()])


@every_layer
@in_16_bits
def test_a_layer_bears_100_times_normed_tokens(name: str, dtype: torch.dtype) -> None:
    layer = new_layer(name, WIDE_SITE)
    tokens = 100 * F.layer_norm(torch.randn(1, 24, WIDE_SITE.dim), (WIDE_SITE.dim,))
    tokens.requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        out = call(layer, tokens, memory_for(layer, tokens, 100.0))
    assert_finite_backward(out, [tokens, *layer.parameters()])


# --- what is never computed in 16 bits ------------------------------------------------------------


def watched_loss(family: str, name: str, dtype: torch.dtype) -> PrecisionWatch:
    """One loss of a network in which everything takes part, watched."""
    entry = FAMILIES[family]
    process = entry.process(entry.process_config(), entry.sampler_config())
    config = network_config(
        learned_variance=entry.learned_variance(entry.process_config()), qk_norm=True
    )
    network = with_open_gates(entry.network(config, builder(name)))
    x, noise = torch.randn(2, 2, 4, *config.latent_size)
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype), PrecisionWatch() as watch:
        losses = process.loss(network, x, torch.tensor([0, 3]), noise, torch.tensor([0.2, 0.7]))
    assert losses.dtype == torch.float32
    return watch


@every_layer
@every_family
@in_16_bits
def test_softmax_norms_lambda_and_loss_are_float32(
    name: str, family: str, dtype: torch.dtype
) -> None:
    assert watched_loss(family, name, dtype).faults == {}


@pytest.mark.parametrize(
    ("computation", "fault"),
    [
        (lambda x: x.softmax(-1), "_softmax"),
        (lambda x: F.layer_norm(x, (8,)), "native_layer_norm"),
        (lambda x: x.square().mean(-1), "mean"),
        (lambda x: (x.float().square().mean(-1) + 1e-5).to(x.dtype).rsqrt(), "rsqrt"),
        (lambda x: x.exp(), "exp"),
        (lambda x: x - x.flip(-1), "sub"),
        (lambda x: x * torch.tensor(0.3), "mul"),
        (lambda x: F.mse_loss(x, x.flip(-1)), "mse_loss"),
    ],
    ids=lambda fault: fault if isinstance(fault, str) else "",
)
def test_the_watch_sees_16_bits(computation: Callable[[Tensor], Tensor], fault: str) -> None:
    with PrecisionWatch() as watch:
        computation(torch.randn(4, 8))
        assert watch.faults == {}
        computation(torch.randn(4, 8).bfloat16())
    assert fault in watch.faults


def error_of_call(call: AttentionCall, result: Tensor) -> float:
    """The largest distance from softmax attention in float64, in units of 2^-7 of its terms.

    Rounding the weights and the result to bfloat16 costs at most half a unit each.
    """
    q, k, v = (x.double() for x in (call.q, call.k, call.v))
    mask = None if call.mask is None else call.mask.double()
    exact = map_form(q, k, v, mask, call.scale)
    terms = map_form(q, k, v.abs(), mask, call.scale)
    return ((result - exact).abs() / (2**-7 * terms)).max().item()


@pytest.mark.parametrize("name", LAYERS_OF_HEADS)
def test_fused_calls_take_a_float32_softmax(name: str) -> None:
    """Large scores: as numbers of 16 bits they would be off by several units."""
    layer = new_layer(name, AttentionSite(DIM, NUM_HEADS, GRID, LAST_BLOCK))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), PrecisionWatch() as watch:
        layer(12 * torch.randn(1, 24, DIM))
    assert watch.attention
    for fused in watch.attention:
        in_16_bits = map_form(fused.q, fused.k, fused.v, fused.mask, fused.scale)
        assert error_of_call(fused, fused.result) <= 1 < error_of_call(fused, in_16_bits)


# --- 200 steps at 100 times the learning rate -----------------------------------------------------

STRESSED = [(family, name) for family in FAMILIES for name in ("softmax", "vca", "vca-paper")]
STRESSED += [("DiT", name) for name in ("vca_split", "differential", "agent", "care")]


@pytest.mark.parametrize(("family", "name"), STRESSED)
def test_100_times_the_learning_rate_stays_finite(
    family: str, name: str, unchecked_shapes: None
) -> None:
    entry = FAMILIES[family]
    process = entry.process(entry.process_config(), entry.sampler_config())
    variance = entry.learned_variance(entry.process_config())
    network = entry.network(network_config(depth=1, learned_variance=variance), builder(name))
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=100 * 1e-4, weight_decay=0)
    losses = []
    for _ in range(200):
        x, noise = 1 + torch.randn(4, 4, 8, 12) / 2, torch.randn(4, 4, 8, 12)
        loss = process.loss(network, x, torch.randint(0, 4, (4,)), noise, torch.rand(4)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    assert torch.stack(losses).isfinite().all()
    assert all(p.isfinite().all() for p in parameters)
    assert torch.stack(losses[-20:]).mean() < losses[0]
