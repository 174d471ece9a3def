"""CARE: channel split, interactions, memory."""

import pytest
import torch

from backbone.site import AttentionSite
from care.mixer import CARE, CAREConfig

SITE = AttentionSite(24, 4, (3, 4), 0)
SWITCHES: list[dict[str, object]] = [
    {},
    {"profile": "care_block"},
    {"memory": "external", "ratios": (2, 1)},
    {"memory": "none", "norm": "affine"},
    {"inter1": False, "norm": "none"},
    {"inter2": False},
    {"memory": "external", "inter2": False},
    {"residual2": False, "head_dim": 3},
]


def _layer(site: AttentionSite = SITE, **settings: object) -> CARE:
    return CARE(CAREConfig(**settings), site).double()


def _tokens(num_tokens: int = 12) -> torch.Tensor:
    return torch.randn(2, num_tokens, 24, dtype=torch.float64)


def _memory(layer: CARE, tokens: torch.Tensor) -> torch.Tensor | None:
    if layer.memory_dim is None:
        return None
    return torch.randn(*tokens.shape[:2], layer.memory_dim, dtype=torch.float64)


def _run(
    layer: CARE, tokens: torch.Tensor, memory: torch.Tensor | None, prefix: int = 0
) -> torch.Tensor:
    """Tokens, and the memory behind them where there is one."""
    if memory is None:
        return layer(tokens, None, prefix)
    return torch.cat(layer(tokens, None, prefix, memory), dim=-1)


def _mirrored(tokens: torch.Tensor | None, prefix: int) -> torch.Tensor | None:
    if tokens is None:
        return None
    image = tokens[:, prefix:].unflatten(1, SITE.grid).flip(2).flatten(1, 2)
    return torch.cat([tokens[:, :prefix], image], dim=1)


@pytest.mark.parametrize("settings", SWITCHES)
def test_mirrored_image_gives_the_mirrored_output(settings: dict[str, object]) -> None:
    layer, tokens = _layer(**settings), _tokens(14)
    memory = _memory(layer, tokens)
    expected = _mirrored(_run(layer, tokens, memory, 2), 2)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "conv" in name and parameter.ndim == 3:
                parameter.copy_(parameter.flip(-1))
    out = _run(layer, _mirrored(tokens, 2), _mirrored(memory, 2), 2)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("settings", SWITCHES)
def test_images_do_not_see_each_other(settings: dict[str, object]) -> None:
    layer, tokens = _layer(**settings), _tokens()
    memory = _memory(layer, tokens)
    alone = _run(layer, tokens[:1], None if memory is None else memory[:1])
    torch.testing.assert_close(_run(layer, tokens, memory)[:1], alone)


@pytest.mark.parametrize("settings", SWITCHES)
@pytest.mark.parametrize("qk_norm", [True, False])
def test_every_parameter_gets_a_gradient(settings: dict[str, object], qk_norm: bool) -> None:
    layer = _layer(AttentionSite(24, 4, (3, 4), 0, qk_norm), **settings)
    tokens = _tokens()
    _run(layer, tokens, _memory(layer, tokens)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_profiles_are_what_the_block_has_to_know() -> None:
    assert not _layer().replaces_mlp
    block = _layer(profile="care_block")
    assert block.replaces_mlp
    assert block.inter1 is not None
    assert block.inter1.fc1.out_features == 4 * 18
    assert block.memory_dim is None


@pytest.mark.parametrize(
    ("dim", "head_dim"), [(384, 32), (768, 32), (1024, 32), (1152, 32), (64, 16), (24, 2)]
)
def test_heads_are_32_wide_where_that_divides(dim: int, head_dim: int) -> None:
    with torch.device("meta"):
        layer = CARE(CAREConfig(), AttentionSite(dim, 1, (2, 2), 0))
    assert layer.attention.head_dim == head_dim


def test_channel_memory_passes_the_mixer_untouched() -> None:
    tokens = _tokens()
    out = _layer(inter2=False)(tokens)
    assert torch.equal(out[..., :6], tokens[..., :6])
    assert not torch.isclose(out[..., 6:], tokens[..., 6:]).any()


def test_memory_of_odd_widths_takes_the_remainder() -> None:
    site = AttentionSite(27, 1, (3, 4), 0)
    assert _layer(site, inter2=False).channel_memory_dim == 9
    assert _layer(site, inter2=False).attention.dim == 6


def test_external_memory_is_read_and_rewritten() -> None:
    layer, tokens = _layer(memory="external"), _tokens()
    assert layer.memory_dim == 8
    memory = _memory(layer, tokens)
    out, after = layer(tokens, None, 0, memory)
    assert out.shape == tokens.shape
    assert after.shape == (2, 12, 8)
    assert not torch.isclose(after, memory).all()
    other, _ = layer(tokens, None, 0, memory + 1)
    assert not torch.isclose(out, other).all()


def test_memory_that_nothing_would_read_does_not_exist() -> None:
    assert _layer(memory="external", inter2=False).memory_dim is None


def test_missing_and_unasked_memory_is_refused() -> None:
    tokens = _tokens()
    with pytest.raises(ValueError, match="width None was given instead of 8"):
        _layer(memory="external")(tokens)
    with pytest.raises(ValueError, match="width 8 was given instead of None"):
        _layer()(tokens, None, 0, tokens[..., :8])


def test_prefix_tokens_are_convolved_as_single_cells() -> None:
    """With attention that sees each token alone, a prefix token ignores all others."""
    layer, tokens = _layer(), _tokens(14)
    layer.attention = torch.nn.Identity()
    alone = layer(tokens[:, :1], (1, 1), 0)
    torch.testing.assert_close(layer(tokens, None, 2)[:, :1], alone)


def test_affine_norm_is_a_batch_norm_in_evaluation() -> None:
    norm = torch.nn.BatchNorm1d(24, eps=1e-6).double().eval()
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        torch.nn.init.normal_(tensor)
    torch.nn.init.uniform_(norm.running_var, 0.5, 2)
    layer, tokens = _layer(norm="affine"), _tokens()
    assert layer.inter2 is not None
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    state = {"weight": scale, "bias": norm.bias - norm.running_mean * scale}
    layer.inter2.norm.load_state_dict(state)
    expected = norm(tokens.mT).mT
    torch.testing.assert_close(layer.inter2.norm(tokens), expected)


@pytest.mark.parametrize("grid", [(2, 5), (6, 6), (1, 3)])
def test_any_grid_will_do(grid: tuple[int, int]) -> None:
    tokens = _tokens(grid[0] * grid[1])
    assert _layer()(tokens, grid).shape == tokens.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_large_16_bit_activations_stay_finite(dtype: torch.dtype) -> None:
    layer = _layer().to(dtype)
    tokens = (1e4 * torch.randn(1, 12, 24)).to(dtype).requires_grad_()
    out = layer(tokens)
    (1e-3 * out.float().mean()).backward()  # as a loss scaler would
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in (tokens, *layer.parameters()))


@pytest.mark.parametrize("settings", [{}, {"profile": "care_block"}])
def test_autocast_is_near_float64(settings: dict[str, object]) -> None:
    layer, tokens = _layer(**settings), _tokens()
    exact = layer(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = layer.float()(tokens.float()).double()
    assert (rounded - exact).norm() / exact.norm() < 2e-2


def test_costs_follow_the_formula_for_every_memory() -> None:
    """With widths g of the parts, w1 and w2 of the interactions, d of a head, per token:

    2 g^2 + 2 g d + g + 9 g + 49 g, and 2 r w^2 + 9 r w per interaction.
    """
    for memory, g, w2 in (("channel", 6, 24), ("external", 8, 32), ("none", 8, 24)):
        layer = _layer(memory=memory, ratios=(2, 3), head_dim=2)
        w1 = 3 * g
        interactions = 2 * 2 * w1**2 + 9 * 2 * w1 + 2 * 3 * w2**2 + 9 * 3 * w2
        per_token = 2 * g**2 + 2 * g * 2 + g + 58 * g + interactions
        assert layer.macs(12).total == 12 * per_token


@pytest.mark.parametrize(
    ("settings", "dim", "message"),
    [
        ({"memory": "external"}, 32, "dim 32 is not divisible by 3"),
        ({"memory": "none"}, 32, "dim 32 is not divisible by 3"),
        ({"head_dim": 32}, 64, "head_dim 32 does not divide the 16 channels"),
        ({}, 3, "dim 3 has no quarter"),
        ({"profile": "care"}, 64, "there are: care_attn, care_block"),
        ({"memory": "internal"}, 64, "there are: channel, external, none"),
        ({"norm": "batch"}, 64, "there are: layer, affine, none"),
    ],
)
def test_impossible_settings_are_refused(
    settings: dict[str, object], dim: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _layer(AttentionSite(dim, 1, (3, 4), 0), **settings)


def test_tokens_that_form_no_grid_are_refused() -> None:
    with pytest.raises(ValueError, match="do not form the expected grid"):
        _layer()(_tokens(13))
