"""The two stages of VCA with channel halves as streams."""

import pytest
import torch

from backbone.site import AttentionSite
from vca.split import SplitContrastAttention, VCASplitConfig

SITE = AttentionSite(24, 4, (4, 6), 5)
SWITCHES: list[dict[str, object]] = [
    {},
    {"source": "emb"},
    {"source": "pool+emb", "value_conv": True},
    {"num_pairs": 3, "pooled_grid": (3, 4), "value_conv": True, "qkv_bias": False},
    {"pooled_grid": (5, 1), "allow_more_tokens_than_grid": True},
]


def _layer(site: AttentionSite = SITE, **settings: object) -> SplitContrastAttention:
    return SplitContrastAttention(VCASplitConfig(**settings), site).double()


def _tokens(num_tokens: int = 24) -> torch.Tensor:
    return torch.randn(2, num_tokens, 24, dtype=torch.float64)


def _mirrored(tokens: torch.Tensor, prefix: int, grid: tuple[int, int]) -> torch.Tensor:
    image = tokens[:, prefix:].unflatten(1, grid).flip(2).flatten(1, 2)
    return torch.cat([tokens[:, :prefix], image], dim=1)


def _mirrored_layer(layer: SplitContrastAttention) -> SplitContrastAttention:
    state = layer.state_dict()
    if "contrast_tokens.positive" in state:
        pooled_grid = layer.contrast_tokens.pooled_grid
        embedding = state["contrast_tokens.positive"]
        state["contrast_tokens.positive"] = _mirrored(embedding, 0, pooled_grid)
    if "value_conv.weight" in state:
        state["value_conv.weight"] = state["value_conv.weight"].flip(-1)
    mirrored = SplitContrastAttention(layer.config, layer.site).double()
    mirrored.load_state_dict(state)
    return mirrored


@pytest.mark.parametrize("settings", SWITCHES)
def test_mirrored_image_gives_the_mirrored_output(settings: dict[str, object]) -> None:
    layer, tokens = _layer(**settings), _tokens(26)
    out = _mirrored_layer(layer)(_mirrored(tokens, 2, SITE.grid), None, 2)
    expected = _mirrored(layer(tokens, None, 2), 2, SITE.grid)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_images_do_not_see_each_other() -> None:
    layer, tokens = _layer(), _tokens()
    torch.testing.assert_close(layer(tokens)[:1], layer(tokens[:1]))


def test_prefix_tokens_are_not_pooled_and_not_convolved() -> None:
    layer, tokens = _layer(value_conv=True), _tokens(26)
    before = layer(tokens, None, 2)
    assert layer.value_conv is not None
    torch.nn.init.normal_(layer.value_conv.weight)
    after = layer(tokens, None, 2)
    assert torch.equal(after[:, :2], before[:, :2])
    assert not torch.equal(after[:, 2:], before[:, 2:])


@pytest.mark.parametrize("settings", SWITCHES)
@pytest.mark.parametrize("qk_norm", [True, False])
def test_every_parameter_gets_a_gradient(settings: dict[str, object], qk_norm: bool) -> None:
    layer = _layer(AttentionSite(24, 4, (4, 6), 5, qk_norm), **settings)
    layer(_tokens()).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_pooled_source_has_no_embedding() -> None:
    names = dict(_layer().named_parameters())
    assert not [name for name in names if name.startswith("contrast_tokens")]


def test_embedding_alone_makes_contrast_tokens_that_do_not_see_the_image() -> None:
    layer, tokens = _layer(source="emb"), _tokens()
    q = layer.qkv(tokens).chunk(3, dim=-1)[0]
    contrast = layer.contrast_tokens(q, SITE.grid, 0)
    assert torch.equal(contrast[0], contrast[1])


def test_costs_are_those_of_the_table() -> None:
    layer = SplitContrastAttention(VCASplitConfig(), AttentionSite(384, 6, (16, 16), 0))
    macs = layer.macs(256)
    assert macs.total == 176_160_768
    assert macs.fused_core == 6 * 64 * 256 * 384
    assert _layer(value_conv=True).macs(26, prefix=2).convolution == 9 * 24 * 24
    added = sum(p.numel() for p in layer.parameters()) - (4 * 384**2 + 4 * 384)
    assert added == 8 * 64 + 4 * 64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_large_16_bit_activations_stay_finite(dtype: torch.dtype) -> None:
    layer = _layer(value_conv=True).to(dtype)
    tokens = (1e4 * torch.randn(1, 24, 24)).to(dtype).requires_grad_()
    out = layer(tokens)
    (1e-3 * out.float().mean()).backward()  # as a loss scaler would
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in (tokens, *layer.parameters()))


def test_autocast_is_near_float64() -> None:
    layer, tokens = _layer(AttentionSite(24, 4, (4, 6), 11), source="pool+emb"), _tokens()
    exact = layer(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = layer.float()(tokens.float()).double()
    assert (rounded - exact).norm() / exact.norm() < 2e-2


@pytest.mark.parametrize(
    ("settings", "num_heads", "message"),
    [
        ({}, 3, "num_heads 3 is odd"),
        ({"num_pairs": 5}, 4, "not divisible into num_pairs 5"),
        ({"pooled_grid": (5, 2)}, 4, "larger than the token grid"),
        ({"source": "pooled"}, 4, "unknown source 'pooled'; there are: pool, emb, pool"),
    ],
)
def test_impossible_settings_are_refused(
    settings: dict[str, object], num_heads: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _layer(AttentionSite(24, num_heads, (4, 6), 0), **settings)


def test_tokens_that_form_no_grid_are_refused() -> None:
    with pytest.raises(ValueError, match="do not form the expected grid"):
        _layer()(_tokens(25))
