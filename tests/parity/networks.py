"""Published networks with golden weights."""

import re
from collections.abc import Mapping
from functools import lru_cache
from math import isqrt
from typing import Any

import torch
from golden import Golden
from torch import nn

from backbone.site import AttentionSite
from backbone.sizes import SIZES
from backbone.softmax import SoftmaxAttention, SoftmaxConfig
from backbone.transformer import DiffusionTransformer, TransformerConfig
from dit.model import DiT
from sit.model import SiT

FAMILIES = {"DiT": DiT, "SiT": SiT}
TIME_SCALE = 1.0  # of all published networks


def softmax(site: AttentionSite) -> nn.Module:
    return SoftmaxAttention(SoftmaxConfig(), site)


def build(
    model: str,
    input_size: int,
    *,
    in_channels: int,
    out_channels: int,
    table_rows: int,
    has_null_label: bool = True,
) -> DiffusionTransformer:
    """A named network with its parts in the sizes that the goldens state."""
    family, size, patch_size = re.fullmatch(r"(\w+)-(\w+)/(\d+)", model).groups()
    config = TransformerConfig(
        latent_size=(input_size, input_size),
        in_channels=in_channels,
        patch_size=int(patch_size),
        dim=SIZES[size].dim,
        depth=SIZES[size].depth,
        num_heads=SIZES[size].num_heads,
        num_classes=table_rows - has_null_label,
        label_drop=0.1 if has_null_label else 0.0,
        learned_variance=out_channels == 2 * in_channels,
        time_scale=TIME_SCALE,
    )
    return FAMILIES[family](config, softmax)


def from_shapes(
    model: str, shapes: Mapping[str, Any], has_null_label: bool = True
) -> DiffusionTransformer:
    """A named network whose sizes are read off the shapes of its state dict."""
    _, in_channels, patch_size, _ = shapes["x_embedder.proj.weight"]
    return build(
        model,
        isqrt(shapes["pos_embed"][1]) * patch_size,
        in_channels=in_channels,
        out_channels=shapes["final_layer.linear.bias"][0] // patch_size**2,
        table_rows=shapes["y_embedder.embedding_table.weight"][0],
        has_null_label=has_null_label,
    )


@lru_cache(maxsize=2)
def with_golden_weights(
    golden: Golden, model: str, input_size: int, recipe: str, **shape_options: int
) -> DiffusionTransformer:
    weights = golden.module("golden_weights.py")
    shapes = weights.named_shapes(model, input_size, **shape_options)
    with torch.device("meta"):
        network = from_shapes(model, shapes)
    state = {k: torch.from_numpy(v) for k, v in weights.state(shapes, recipe).items()}
    network.load_state_dict(state, assign=True)
    return network.eval()
