"""Every attention layer, with all settings that make it compute something else."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from backbone.site import AttentionSite
from backbone.transformer import TransformerConfig
from baselines.agent import AgentConfig
from baselines.differential import DifferentialConfig
from care.mixer import CAREConfig
from runtime.factory import ATTENTIONS
from vca.attention import VCAConfig
from vca.split import VCASplitConfig

GRID = (4, 6)
DIM, NUM_HEADS = 48, 4  # has quarters, thirds and pairs
LAST_BLOCK = 27  # of the deepest network, where lambda is nearest to 0.8

# Beside every layer's defaults.
OTHER_SETTINGS: dict[str, tuple[str, Any]] = {
    "vca-paper": ("vca", VCAConfig(variant="paper")),
    "vca-stage1": ("vca", VCAConfig(stage2_difference=False)),
    "vca-stage2": ("vca", VCAConfig(stage1_difference=False)),
    "vca-plain": ("vca", VCAConfig(stage1_difference=False, stage2_difference=False)),
    "vca-embeddings": ("vca", VCAConfig(positive_source="emb", negative_source="emb")),
    "vca-pool": ("vca", VCAConfig(positive_source="pool", affine=False)),
    "vca_split-embeddings": ("vca_split", VCASplitConfig(source="pool+emb", value_conv=True)),
    "differential-no-norm": ("differential", DifferentialConfig(norm=False)),
    "agent-no-biases": ("agent", AgentConfig(position_bias=False)),
    "care-external": ("care", CAREConfig(memory="external")),
    "care-no-memory": ("care", CAREConfig(memory="none")),
    "care_block": ("care", CAREConfig(profile="care_block")),
    "care_block-external": ("care", CAREConfig(profile="care_block", memory="external")),
    "care_block-no-memory": ("care", CAREConfig(profile="care_block", memory="none")),
}
LAYERS = {name: (name, entry.config()) for name, entry in ATTENTIONS.items()} | OTHER_SETTINGS

LAYERS_OF_HEADS = [name for name in LAYERS if not name.startswith("care")]

Build = Callable[[AttentionSite], nn.Module]


def builder(name: str) -> Build:
    """The layer of this name in ``LAYERS``, to be built at a site."""
    key, config = LAYERS[name]
    return lambda site: ATTENTIONS[key].layer(config, site)


def memory_for(layer: nn.Module, tokens: Tensor, scale: float = 1.0) -> Tensor | None:
    """A random memory for a layer or a block that threads one, in float32 or more."""
    if getattr(layer, "memory_dim", None) is None:
        return None
    dtype = torch.promote_types(tokens.dtype, torch.float32)
    return scale * torch.randn(*tokens.shape[:2], layer.memory_dim, dtype=dtype)


def call(
    layer: nn.Module,
    tokens: Tensor,
    memory: Tensor | None = None,
    grid: tuple[int, int] | None = None,
    prefix: int = 0,
) -> Tensor:
    """What a layer returns: tokens, and behind them the memory if it threads one."""
    if memory is None:
        return layer(tokens, grid, prefix)
    return torch.cat(layer(tokens, grid, prefix, memory), dim=-1)


def map_form(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Softmax attention by the maps that torch's fused call does not make."""
    scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
    return torch.softmax(scores if attn_mask is None else scores + attn_mask, dim=-1) @ v


def network_config(**changes: Any) -> TransformerConfig:
    settings: dict[str, Any] = {
        "latent_size": (2 * GRID[0], 2 * GRID[1]),
        "patch_size": 2,
        "dim": DIM,
        "depth": 2,
        "num_heads": NUM_HEADS,
        "num_classes": 3,
        "learned_variance": True,
        "time_scale": 1.0,
    }
    return TransformerConfig(**settings | changes)


def with_open_gates(network: nn.Module) -> nn.Module:
    """Random values where parameters start at zero, so that everything takes part."""
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.2)
    return network
