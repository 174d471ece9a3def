"""Linear attention: its cost comes from the order of products, not from another result."""

import pytest
import torch

from backbone.tokens import merge_heads, split_heads
from care.linear_attention import LinearAttention, feature_map


def test_feature_map_is_elu_plus_one_and_keeps_its_small_values() -> None:
    x = torch.linspace(-4, 4, 33)
    torch.testing.assert_close(feature_map(x), torch.nn.functional.elu(x) + 1)
    assert feature_map(torch.tensor([-30.0])).item() == pytest.approx(9.357623e-14)


def test_feature_map_has_slope_1_at_zero() -> None:
    x = torch.zeros(1, requires_grad=True)
    feature_map(x).backward()
    assert x.grad is not None
    assert x.grad.item() == 1


@pytest.mark.parametrize("qk_norm", [True, False])
def test_linear_order_equals_quadratic_order(qk_norm: bool) -> None:
    layer = LinearAttention(12, 4, qk_norm).double()
    a = torch.randn(2, 11, 12, dtype=torch.float64)
    queries, keys = layer.qk(a).chunk(2, dim=-1)
    q, k = (split_heads(x, 3) for x in (layer.q_norm(queries), layer.k_norm(keys)))
    weights = feature_map(q) @ feature_map(k).mT / 11  # batch heads tokens tokens
    weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-6)
    expected = merge_heads(weights @ split_heads(a, 3))
    torch.testing.assert_close(layer(a), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("qk_norm", [True, False])
def test_heads_have_no_order(qk_norm: bool) -> None:
    layer, shuffled = (LinearAttention(12, 4, qk_norm).double() for _ in range(2))
    channels = torch.arange(12).unflatten(0, (3, 4))[[2, 0, 1]].flatten()
    rows = torch.cat([channels, channels + 12])
    state = layer.state_dict()
    state["qk.weight"] = state["qk.weight"][rows][:, channels]
    state["qk.bias"] = state["qk.bias"][rows]
    shuffled.load_state_dict(state)
    a = torch.randn(2, 11, 12, dtype=torch.float64)
    torch.testing.assert_close(shuffled(a[..., channels]), layer(a)[..., channels])


def test_equal_tokens_are_returned() -> None:
    layer = LinearAttention(8, 4, False).double()
    a = torch.randn(2, 1, 8, dtype=torch.float64).expand(2, 7, 8)
    torch.testing.assert_close(layer(a), a, rtol=1e-5, atol=1e-5)


def test_no_map_between_tokens_is_kept() -> None:
    layer = LinearAttention(8, 4, False)
    kept: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape) or x, lambda x: x):
        layer(torch.randn(1, 64, 8))
    assert kept
    assert all(shape[-2:] != (64, 64) for shape in kept if len(shape) > 1)


def test_products_are_float32_under_autocast() -> None:
    """Only the linear map is rounded: from its rounded result on, float32 arithmetic goes on."""
    layer = LinearAttention(8, 4, False)
    a = torch.randn(1, 16, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(a)
        rounded = layer.qk(a)
    layer.qk = torch.nn.Identity()
    layer.qk.forward = lambda a: rounded.float()  # type: ignore[method-assign]
    torch.testing.assert_close(out, layer(a), rtol=0, atol=1e-6)
