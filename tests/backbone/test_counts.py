"""Counts against torch's own counter of operations, and against the published ones."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from backbone.counts import count_parameters, network_macs
from backbone.site import AttentionSite
from backbone.sizes import SIZES, Size
from backbone.softmax import SoftmaxAttention, SoftmaxConfig
from backbone.transformer import DiffusionTransformer, TransformerConfig
from vca.attention import VCAConfig, VisualContrastAttention

LAYERS: dict[str, Callable[[AttentionSite], nn.Module]] = {
    "softmax": lambda site: SoftmaxAttention(SoftmaxConfig(), site),
    "released": lambda site: VisualContrastAttention(VCAConfig(), site),
    "paper": lambda site: VisualContrastAttention(VCAConfig(variant="paper"), site),
    "stage1": lambda site: VisualContrastAttention(VCAConfig(stage2_difference=False), site),
    "stage2": lambda site: VisualContrastAttention(VCAConfig(stage1_difference=False), site),
}


def network(size: Size, layer: str, side: int = 32) -> DiffusionTransformer:
    config = TransformerConfig(
        latent_size=(side, side),
        patch_size=2,
        dim=size.dim,
        depth=size.depth,
        num_heads=size.num_heads,
        num_classes=10,
        learned_variance=True,
        time_scale=1.0,
    )
    return DiffusionTransformer(config, LAYERS[layer])


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("size", [(16, 16), (8, 24)])
def test_counted_operations_are_those_of_torch(layer: str, size: tuple[int, int]) -> None:
    small = network(SIZES["XXS"], layer, side=16)
    x = torch.randn(1, 4, *size)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        small(x, torch.tensor([1]), torch.tensor([1]))
    assert 2 * network_macs(small, size).fused_total == counter.get_total_flops()


def test_published_cost_of_the_largest_network() -> None:
    with torch.device("meta"):
        large = network(SIZES["XL"], "softmax")
    blocks = 28 * (12 * 1152**2 * 256 + 2 * 256**2 * 1152)
    assert network_macs(large).blocks == network_macs(large).fused_blocks == blocks
    assert round(network_macs(large).total / 1e9) == 119


def test_only_the_position_table_is_not_trained() -> None:
    small = network(SIZES["XXS"], "softmax", side=16)
    frozen = count_parameters(small) - count_parameters(small, trainable=True)
    assert frozen == small.pos_embed.numel()
