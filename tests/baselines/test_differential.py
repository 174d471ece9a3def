"""Differential attention."""

import pytest
import torch

from backbone.site import AttentionSite
from baselines.differential import DifferentialAttention, DifferentialConfig

SITE = AttentionSite(24, 4, (3, 4), 5)


def _layer(site: AttentionSite = SITE, **settings: object) -> DifferentialAttention:
    return DifferentialAttention(DifferentialConfig(**settings), site).double()


def _tokens(num_tokens: int = 12) -> torch.Tensor:
    return torch.randn(2, num_tokens, 24, dtype=torch.float64)


def test_places_are_irrelevant() -> None:
    layer, tokens, order = _layer(), _tokens(), torch.randperm(12)
    torch.testing.assert_close(layer(tokens[:, order]), layer(tokens)[:, order])


def test_prefix_tokens_are_tokens_like_any_other() -> None:
    layer, tokens = _layer(), _tokens(14)
    assert torch.equal(layer(tokens, (3, 4), 2), layer(tokens, (2, 7)))


def test_images_do_not_see_each_other() -> None:
    layer, tokens = _layer(), _tokens()
    torch.testing.assert_close(layer(tokens)[:1], layer(tokens[:1]))


@pytest.mark.parametrize("settings", [{}, {"norm": False}, {"num_pairs": 4}, {"qkv_bias": False}])
@pytest.mark.parametrize("qk_norm", [True, False])
def test_every_parameter_gets_a_gradient(settings: dict[str, object], qk_norm: bool) -> None:
    layer = _layer(AttentionSite(24, 4, (3, 4), 5, qk_norm), **settings)
    layer(_tokens()).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_normed_queries_forget_their_scale() -> None:
    layer, tokens = _layer(AttentionSite(24, 4, (3, 4), 5, qk_norm=True)), _tokens()
    before = layer(tokens)
    with torch.no_grad():
        layer.qkv.weight[:24] *= 100
        layer.qkv.bias[:24] *= 100
    torch.testing.assert_close(layer(tokens), before, rtol=0, atol=1e-4)


def test_without_norm_there_is_no_gain_and_no_scale() -> None:
    assert "heads.norm.weight" not in dict(_layer(norm=False).named_parameters())
    layer, tokens = _layer(norm=False), _tokens()
    before = layer(tokens) - layer.proj.bias
    with torch.no_grad():
        layer.qkv.weight[48:] *= 2
        layer.qkv.bias[48:] *= 2
    torch.testing.assert_close(layer(tokens) - layer.proj.bias, 2 * before)


def test_costs_what_softmax_attention_costs() -> None:
    macs = DifferentialAttention(DifferentialConfig(), AttentionSite(384, 6, (16, 16), 0)).macs(256)
    assert (macs.total, macs.fused_total) == (201_326_592, 226_492_416)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_large_16_bit_activations_stay_finite(dtype: torch.dtype) -> None:
    layer = _layer().to(dtype)
    tokens = (1e4 * torch.randn(1, 12, 24)).to(dtype).requires_grad_()
    out = layer(tokens)
    (1e-3 * out.float().mean()).backward()  # as a loss scaler would
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in (tokens, *layer.parameters()))


def test_autocast_is_near_float64() -> None:
    layer = _layer(AttentionSite(24, 4, (3, 4), 11))
    tokens = _tokens()
    exact = layer(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = layer.float()(tokens.float()).double()
    assert (rounded - exact).norm() / exact.norm() < 2e-2


def test_odd_heads_need_pairs() -> None:
    site = AttentionSite(24, 3, (3, 4), 0)
    with pytest.raises(ValueError, match="num_heads 3 is odd"):
        DifferentialAttention(DifferentialConfig(), site)
    assert DifferentialAttention(DifferentialConfig(num_pairs=3), site)(
        torch.randn(1, 12, 24)
    ).any()


def test_tokens_that_form_no_grid_are_refused() -> None:
    with pytest.raises(ValueError, match="do not form the expected grid"):
        _layer()(_tokens(13))
