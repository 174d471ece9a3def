"""Agent attention and its position biases."""

import pytest
import torch
import torch.nn.functional as F

from backbone.site import AttentionSite
from baselines.agent import AgentAttention, AgentConfig
from baselines.position_bias import PositionBias, resize
from vca.attention import VCAConfig, VisualContrastAttention

SITE = AttentionSite(12, 2, (4, 6), 0)
SWITCHES: list[dict[str, object]] = [
    {},
    {"position_bias": False},
    {"value_conv": False},
    {"pooled_grid": (3, 4)},
    {"pooled_grid": (5, 1), "allow_more_tokens_than_grid": True, "qkv_bias": False},
    {"num_prefix": 2},
]


def _layer(site: AttentionSite = SITE, **settings: object) -> AgentAttention:
    layer = AgentAttention(AgentConfig(**settings), site).double()
    for name, parameter in layer.named_parameters():
        if name.startswith("biases"):  # large enough to matter
            torch.nn.init.normal_(parameter)
    return layer


def _tokens(num_tokens: int = 24) -> torch.Tensor:
    return torch.randn(2, num_tokens, 12, dtype=torch.float64)


def _mirrored_layer(layer: AgentAttention) -> AgentAttention:
    """The layer that sees left as right: biases of mirrored agents, places and taps."""
    rows, columns = layer.pooled_grid
    agents = torch.arange(rows * columns).unflatten(0, (rows, columns)).flip(1).flatten()
    state = layer.state_dict()
    for name, value in state.items():
        if name.startswith("biases") and "prefix" in name:
            state[name] = value[:, agents]
        elif name.startswith("biases"):
            state[name] = value[:, agents].flip(-1)
        elif name == "value_conv.weight":
            state[name] = value.flip(-1)
    mirrored = AgentAttention(layer.config, layer.site).double()
    mirrored.load_state_dict(state)
    return mirrored


def _mirrored(tokens: torch.Tensor, prefix: int) -> torch.Tensor:
    grid = tokens[:, prefix:].unflatten(1, SITE.grid).flip(2).flatten(1, 2)
    return torch.cat([tokens[:, :prefix], grid], dim=1)


@pytest.mark.parametrize("settings", SWITCHES)
def test_mirrored_image_gives_the_mirrored_output(settings: dict[str, object]) -> None:
    layer, prefix = _layer(**settings), 2
    tokens = _tokens(26)
    out = _mirrored_layer(layer)(_mirrored(tokens, prefix), None, prefix)
    expected = _mirrored(layer(tokens, None, prefix), prefix)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("value_conv", [True, False])
@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("qk_norm", [True, False])
def test_without_biases_it_is_visual_contrast_attention_without_contrast(
    value_conv: bool, prefix: int, qk_norm: bool
) -> None:
    site = AttentionSite(12, 2, (4, 6), 0, qk_norm)
    agent = _layer(site, position_bias=False, value_conv=value_conv)
    config = VCAConfig(
        value_conv=value_conv,
        positive_source="pool",
        stage1_difference=False,
        stage2_difference=False,
    )
    vca = VisualContrastAttention(config, site).double()
    vca.load_state_dict(agent.state_dict())
    tokens = _tokens(24 + prefix)
    assert torch.equal(agent(tokens, None, prefix), vca(tokens, None, prefix))


def test_images_do_not_see_each_other() -> None:
    layer, tokens = _layer(), _tokens()
    torch.testing.assert_close(layer(tokens)[:1], layer(tokens[:1]))


def test_prefix_tokens_get_nothing_from_the_convolution() -> None:
    layer, tokens = _layer(), _tokens(26)
    before = layer(tokens, None, 2)
    assert layer.value_conv is not None
    torch.nn.init.normal_(layer.value_conv.weight)
    after = layer(tokens, None, 2)
    assert torch.equal(after[:, :2], before[:, :2])
    assert not torch.equal(after[:, 2:], before[:, 2:])


@pytest.mark.parametrize("settings", SWITCHES)
@pytest.mark.parametrize("qk_norm", [True, False])
def test_every_parameter_gets_a_gradient(settings: dict[str, object], qk_norm: bool) -> None:
    layer = _layer(AttentionSite(12, 2, (4, 6), 0, qk_norm), **settings)
    layer(_tokens(26), None, 2).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_pooled_grid_stays_when_the_grid_changes() -> None:
    layer = _layer()
    assert layer.pooled_grid == (2, 3)
    assert layer(_tokens(35), (5, 7)).shape == (2, 35, 12)


def test_biases_of_another_grid_are_those_of_the_nearest_places() -> None:
    """Doubling the grid keeps each bias near that of the cell it came from."""
    bias = PositionBias(1, 2, (4, 6), 0).double()
    torch.nn.init.constant_(bias.coarse, 0.5)
    with torch.no_grad():
        bias.rows.copy_(torch.arange(4.0).view(1, 1, 4, 1))
        bias.columns.copy_(10 * torch.arange(6.0).view(1, 1, 1, 6))
    larger = bias((8, 12), 0).unflatten(-1, (8, 12))[0, 0]
    assert larger[0, 0].item() == pytest.approx(0.5)  # constant beyond the outer centres
    assert larger[1, 0].item() == pytest.approx(0.5 + 0.25)
    assert larger[7, 11].item() == pytest.approx(0.5 + 3 + 50)
    assert larger[0, 2].item() == pytest.approx(0.5 + 10 * 0.75)


@pytest.mark.parametrize("grid", [(7, 7), (3, 5), (16, 16), (1, 9)])
def test_resizing_is_bilinear_between_cell_centres(grid: tuple[int, int]) -> None:
    maps = torch.randn(2, 3, 7, 7, dtype=torch.float64)
    expected = F.interpolate(maps, size=grid, mode="bilinear", align_corners=False)
    torch.testing.assert_close(resize(maps, grid), expected, rtol=0, atol=1e-13)


def test_biases_are_float32_under_autocast() -> None:
    bias = PositionBias(2, 4, (4, 6), 0)
    outside = bias((8, 8), 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(bias((8, 8), 1), outside)


def test_prefix_tokens_have_biases_of_their_own_or_none() -> None:
    assert not PositionBias(2, 4, (4, 6), 0)((4, 6), 2)[..., :2].any()
    own = PositionBias(2, 4, (4, 6), 2)
    assert torch.equal(own((4, 6), 2)[..., :2], own.prefix)
    with pytest.raises(ValueError, match="3 prefix tokens, but position biases for 2"):
        own((4, 6), 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_large_16_bit_activations_stay_finite(dtype: torch.dtype) -> None:
    layer = _layer().to(dtype)
    tokens = (1e4 * torch.randn(1, 24, 12)).to(dtype).requires_grad_()
    out = layer(tokens)
    (1e-3 * out.float().mean()).backward()  # as a loss scaler would
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in (tokens, *layer.parameters()))


def test_costs_are_those_of_the_paper_table() -> None:
    layer = AgentAttention(AgentConfig(), AttentionSite(384, 6, (16, 16), 0))
    assert layer.macs(256).total == 177_045_504
    assert layer.macs(258, prefix=2).convolution == layer.macs(256).convolution
    assert sum(p.numel() for p in layer.biases.parameters()) == 6 * 64 * (98 + 2 * 32)


@pytest.mark.parametrize(
    ("settings", "tokens", "grid", "message"),
    [
        ({"pooled_grid": (5, 2)}, 24, None, "larger than the token grid"),
        ({"pooled_grid": (0, 2)}, 24, None, "below 1"),
        ({"pooled_grid": (4, 6)}, 15, (3, 5), "larger than the token grid"),
        ({}, 23, None, "do not form the expected grid"),
    ],
)
def test_impossible_grids_are_refused(
    settings: dict[str, object], tokens: int, grid: tuple[int, int] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _layer(**settings)(_tokens(tokens), grid)
