"""What attention layers hold in memory."""

import pytest
import torch
import torch.nn.functional as F
from every_attention import DIM, LAYERS, NUM_HEADS, builder, call, map_form, memory_for
from watched_operations import LiveMemory

from backbone.site import AttentionSite


def peak_bytes(name: str, grid: tuple[int, int]) -> int:
    """Of a forward and a backward pass with as many contrast tokens on every grid."""
    layer = builder(name)(AttentionSite(DIM, NUM_HEADS, (8, 8), 0))
    tokens = torch.randn(1, grid[0] * grid[1], DIM, requires_grad=True)
    with LiveMemory() as memory:
        call(layer, tokens, memory_for(layer, tokens), grid).sum().backward()
    return memory.peak


@pytest.mark.parametrize("name", LAYERS)
def test_memory_grows_linearly_with_the_tokens(name: str) -> None:
    """Softmax and differential attention too: no layer holds a map between tokens."""
    few, some, many = (peak_bytes(name, grid) for grid in ((16, 16), (16, 32), (32, 32)))
    assert some <= 2.2 * few and many <= 2.2 * some


def test_a_map_between_tokens_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "scaled_dot_product_attention", map_form)
    assert peak_bytes("softmax", (32, 32)) > 3 * peak_bytes("softmax", (16, 32))
