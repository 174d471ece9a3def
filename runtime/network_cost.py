"""What a network costs beside the same network with softmax attention.

Counting needs shapes alone: the twin with softmax attention is built on the meta device, without
memory and in less than a second.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from backbone.counts import NetworkMacs, count_parameters, network_macs
from backbone.macs import AttentionMacs, CountsMacs
from backbone.pairs import PairedAttention
from backbone.transformer import DiffusionTransformer
from baselines.agent import AgentAttention
from care.linear_attention import LinearAttention
from runtime.build import build_network
from runtime.training_config import TrainConfig
from vca.contrast_tokens import ContrastTokens

# How far the parameters of two networks may lie apart, as a share, to be called equally large.
PARAMETER_TOLERANCE = 0.02


@dataclass(frozen=True)
class Heads:
    """How an attention layer cuts its channels, and through how many tokens its tokens meet."""

    count: int
    dim: int  # channels of a head's queries and keys
    value_dim: int
    pairs: int | None = None  # of heads that are subtracted from one another
    banks: int | None = None  # of contrast tokens, or of agents
    bank_size: int | None = None


@dataclass(frozen=True)
class NetworkCost:
    attention: str
    parameters: int  # the position table included, which is not trained
    trainable: int
    layer_parameters: int  # of one attention layer, and of the MLP where that replaces it
    layer: AttentionMacs  # the same layer's, on one image
    network: NetworkMacs
    heads: Heads


def build_without_memory(config: TrainConfig) -> DiffusionTransformer:
    """The network on the meta device: shapes and no values."""
    with torch.device("meta"):
        return build_network(config)


def cost_of(attention: str, network: DiffusionTransformer) -> NetworkCost:
    layer = network.blocks[0].get_submodule("attn")  # all blocks cost the same
    assert isinstance(layer, CountsMacs)
    return NetworkCost(
        attention,
        count_parameters(network),
        count_parameters(network, trainable=True),
        count_parameters(layer),
        layer.macs(prod(network.config.grid)),
        network_macs(network),
        _heads(layer, network.config.num_heads, network.config.dim),
    )


def _heads(layer: nn.Module, num_heads: int, dim: int) -> Heads:
    """Those of the site, but for layers with parts that cut the channels in another way."""
    heads = Heads(num_heads, dim // num_heads, dim // num_heads)
    for part in layer.modules():
        if isinstance(part, PairedAttention):
            width = dim // (2 * part.num_pairs)
            heads = dataclasses.replace(
                heads,
                count=2 * part.num_pairs,
                dim=width,
                value_dim=2 * width,
                pairs=part.num_pairs,
            )
        elif isinstance(part, LinearAttention):
            heads = Heads(part.dim // part.head_dim, part.head_dim, part.head_dim)
        elif isinstance(part, ContrastTokens):
            banks = 1 if part.negative_source is None else 2
            heads = dataclasses.replace(heads, banks=banks, bank_size=part.num_tokens)
        elif isinstance(part, AgentAttention):
            heads = dataclasses.replace(heads, banks=1, bank_size=prod(part.pooled_grid))
    return heads


# --- as a table -------------------------------------------------------------------------------

ROWS: dict[str, Callable[[NetworkCost], int | None]] = {
    "parameters": lambda cost: cost.parameters,
    "  trained": lambda cost: cost.trainable,
    "  of one attention layer": lambda cost: cost.layer_parameters,
    "heads": lambda cost: cost.heads.count,
    "  in pairs": lambda cost: cost.heads.pairs,
    "  width of queries and keys": lambda cost: cost.heads.dim,
    "  width of values": lambda cost: cost.heads.value_dim,
    "contrast tokens per bank": lambda cost: cost.heads.bank_size,
    "  banks": lambda cost: cost.heads.banks,
    "MACs of one attention layer": lambda cost: cost.layer.fused_total,
    "  linear maps": lambda cost: cost.layer.dense,
    "  core, by fused calls": lambda cost: cost.layer.fused_core,
    "  core, as the formula reads": lambda cost: cost.layer.core,
    "  convolutions": lambda cost: cost.layer.convolution,
    "MACs of the network": lambda cost: cost.network.fused_total,
    "  attention": lambda cost: cost.network.attention.fused_total,
    "  MLP": lambda cost: cost.network.mlp,
    "  first and last layer": lambda cost: cost.network.ends,
    "  time and modulation": lambda cost: cost.network.conditioning,
    "  whole, as the formula reads": lambda cost: cost.network.total,
}


def describe_network(config: TrainConfig, network: DiffusionTransformer) -> str:
    """The network of a config beside its softmax twin: the same config, attention apart."""
    costs = [cost_of(config.attention, network)]
    if config.attention != "softmax":
        twin = build_without_memory(dataclasses.replace(config, attention="softmax"))
        costs.append(cost_of("softmax", twin))
    rows, columns = network.config.grid
    lines = [
        f"{config.model} with {config.attention} attention: {rows} x {columns} = "
        f"{rows * columns} tokens of width {network.config.dim}, {network.config.depth} blocks; "
        "MACs of one image and forward pass",
        *cost_table(costs),
    ]
    return "\n".join(lines if len(costs) == 1 else [*lines, _parameter_gap(*costs)])


def cost_table(costs: list[NetworkCost]) -> list[str]:
    """A line per quantity, a column per network; of two networks, also the ratio."""
    lines = [_line("", [cost.attention for cost in costs], "ratio" if len(costs) == 2 else "")]
    for name, quantity in ROWS.items():
        values = [quantity(cost) for cost in costs]
        if any(value is not None for value in values):
            cells = ["-" if value is None else f"{value:,}" for value in values]
            lines.append(_line(name, cells, _ratio(*values) if len(values) == 2 else ""))
    return lines


def _line(name: str, cells: list[str], ratio: str) -> str:
    return f"{name:30}{''.join(f'{cell:>17}' for cell in cells)}{ratio:>9}".rstrip()


def _ratio(ours: int | None, theirs: int | None) -> str:
    return f"{ours / theirs:.4f}" if ours is not None and theirs else "-"


def _parameter_gap(ours: NetworkCost, softmax: NetworkCost) -> str:
    gap = ours.parameters / softmax.parameters - 1
    side = "within" if abs(gap) <= PARAMETER_TOLERANCE else "beyond"
    return (
        f"{ours.attention} has {abs(gap):.2%} {'more' if gap >= 0 else 'fewer'} parameters than "
        f"softmax, {side} the tolerance of {PARAMETER_TOLERANCE:.0%}"
    )
