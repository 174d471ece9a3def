"""The network: its start, its shapes, and what it does and does not depend on."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backbone.block import Block, Modulation, modulate
from backbone.site import AttentionSite, Grid
from backbone.sizes import SIZES
from backbone.softmax import SoftmaxAttention, SoftmaxConfig
from backbone.transformer import DiffusionTransformer, TransformerConfig
from process.guidance import drop_labels


def softmax(site: AttentionSite) -> nn.Module:
    return SoftmaxAttention(SoftmaxConfig(), site)


def make_config(**changes: Any) -> TransformerConfig:
    settings: dict[str, Any] = {
        "latent_size": (8, 12),
        "patch_size": 2,
        "dim": 32,
        "depth": 2,
        "num_heads": 2,
        "num_classes": 5,
        "learned_variance": True,
        "time_scale": 1.0,
    }
    return TransformerConfig(**settings | changes)


def random_network(**changes: Any) -> DiffusionTransformer:
    network = DiffusionTransformer(make_config(**changes), softmax)
    for parameter in network.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.1)
    return network


def predict(network: DiffusionTransformer, y: int = 1, **changes: Any) -> Tensor:
    dtype = network.pos_embed.dtype
    generator = torch.Generator().manual_seed(0)
    size = changes.get("size", network.config.latent_size)
    x = torch.randn(1, network.config.in_channels, *size, generator=generator, dtype=dtype)
    return network(x, changes.get("t", torch.tensor([37])), torch.tensor([y]))


def test_first_prediction_is_exactly_zero() -> None:
    assert not predict(DiffusionTransformer(make_config(), softmax)).any()


def test_initial_values_are_the_published_ones() -> None:
    network = DiffusionTransformer(make_config(dim=128, num_classes=200), softmax)
    state = network.state_dict()
    assert not any(state[name].any() for name in state if name.endswith(".bias"))
    zero = [name for name in state if "adaLN" in name or name.startswith("final_layer")]
    assert zero and not any(state[name].any() for name in zero)
    for name in ("t_embedder.mlp.0", "t_embedder.mlp.2", "y_embedder.embedding_table"):
        assert state[f"{name}.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    xavier = ["x_embedder.proj", "blocks.1.attn.qkv", "blocks.1.attn.proj", "blocks.1.mlp.fc1"]
    for name in xavier:
        weight = state[f"{name}.weight"].flatten(1)
        bound = (6 / sum(weight.shape)) ** 0.5
        assert 0.98 * bound < weight.abs().max().item() <= bound


def test_position_table_is_saved_but_not_trained() -> None:
    network = DiffusionTransformer(make_config(), softmax)
    assert next(iter(network.state_dict())) == "pos_embed"
    assert not network.pos_embed.requires_grad


@pytest.mark.parametrize("learned_variance", [False, True])
@pytest.mark.parametrize("size", [(8, 8), (4, 12)])
@pytest.mark.parametrize("in_channels", [1, 4, 16])
def test_prediction_has_the_shape_of_the_latents(
    learned_variance: bool, size: tuple[int, int], in_channels: int
) -> None:
    network = random_network(
        learned_variance=learned_variance, latent_size=size, in_channels=in_channels, patch_size=4
    )
    assert predict(network).shape == (1, in_channels * (1 + learned_variance), *size)


def test_pixels_of_a_token_land_in_its_patch() -> None:
    network = random_network()
    pixels = torch.zeros(1, 24, 2 * 2 * 8)
    pixels[0, 7] = torch.arange(32.0) + 1  # row 1, column 1 of 4 x 6 tokens
    image = network._unpatchify(pixels, (4, 6))
    assert image.shape == (1, 8, 8, 12)
    patch = image[0, :, 2:4, 2:4]
    assert torch.equal(patch.permute(1, 2, 0).flatten(), pixels[0, 7])
    assert image.count_nonzero() == 32


def test_another_latent_size_is_what_a_network_of_that_size_would_do() -> None:
    network, other = random_network(), random_network(latent_size=(16, 4))
    state = network.state_dict()
    other.load_state_dict(state | {"pos_embed": other.pos_embed})
    torch.testing.assert_close(predict(network, size=(16, 4)), predict(other))


def test_a_shared_corner_of_places_does_not_depend_on_the_grid() -> None:
    network = random_network()
    places = network._places((3, 3)).unflatten(1, (3, 3))
    assert torch.equal(places, network.pos_embed.unflatten(1, (4, 6))[:, :3, :3])


@pytest.mark.parametrize("size", [(7, 12), (8, 11), (0, 4)])
def test_latents_that_do_not_divide_into_patches_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="do not divide into patches of 2 x 2"):
        make_config(latent_size=size)
    with pytest.raises(ValueError, match="do not divide into patches of 2 x 2"):
        predict(random_network(), size=size)


def test_wrong_channels_are_refused() -> None:
    x, t, y = torch.randn(1, 3, 8, 12), torch.tensor([1]), torch.tensor([1])
    with pytest.raises(ValueError, match="latents have 3 channels instead of 4"):
        random_network()(x, t, y)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 30}, "dim 30 is not divisible by 4"),
        ({"num_heads": 5}, "dim 32 is not divisible by num_heads 5"),
        ({"num_classes": 0}, "num_classes 0 is below 1"),
    ],
)
def test_impossible_sizes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_network(**changes)


def test_with_labels_dropped_the_prediction_does_not_depend_on_the_label() -> None:
    network = random_network()
    y = torch.arange(5)
    dropped = drop_labels(y, torch.rand(5), probability=1.0, null_label=5)
    x = torch.randn(1, 4, 8, 12).expand(5, -1, -1, -1)
    t = torch.full((5,), 37)
    unconditional = network(x, t, dropped)
    assert torch.equal(unconditional, unconditional[:1].expand_as(unconditional))
    assert not torch.equal(network(x, t, y)[0], network(x, t, y)[1])


def test_a_single_class_without_dropping_needs_one_row() -> None:
    network = random_network(num_classes=1, label_drop=0.0)
    assert network.y_embedder.embedding_table.weight.shape == (1, 32)
    assert predict(network, y=0).isfinite().all()


def test_a_whole_timestep_is_the_same_as_a_real_one() -> None:
    network = random_network()
    whole = predict(network, t=torch.tensor([37]))
    assert torch.equal(whole, predict(network, t=torch.tensor([37.0])))
    assert not torch.equal(whole, predict(network, t=torch.tensor([38])))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_predictions_under_autocast_are_float32_and_close(dtype: torch.dtype) -> None:
    network = random_network()
    exact = predict(network)
    with torch.autocast("cpu", dtype=dtype):
        rounded = predict(network)
    assert rounded.dtype == torch.float32
    assert ((rounded - exact).norm() / exact.norm()).item() < 0.02


def test_a_small_scale_survives_autocast() -> None:
    modulation = Modulation(16, 2)
    nn.init.constant_(modulation[1].bias, 2**-12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        shift, scale = modulation.vectors(torch.randn(1, 16))
        modulated = modulate(torch.ones(1, 3, 16), 0 * shift, scale)
    assert torch.equal(modulated, torch.full_like(modulated, 1 + 2**-12))


def test_float64_stays_float64() -> None:
    assert predict(random_network().double()).dtype == torch.float64


def test_weights_of_16_bits_predict_in_float32() -> None:
    assert predict(random_network().bfloat16()).dtype == torch.float32


def test_queries_and_keys_are_normed_only_when_asked() -> None:
    plain, normed = random_network().state_dict(), random_network(qk_norm=True).state_dict()
    extra = set(normed) - set(plain)
    norms = ("q_norm.weight", "k_norm.weight")
    assert extra == {f"blocks.{i}.attn.{name}" for i in range(2) for name in norms}


def test_published_sizes() -> None:
    published = {
        name: (SIZES[name].depth, SIZES[name].dim, SIZES[name].num_heads)
        for name in ("S", "B", "L", "XL")
    }
    assert published == {
        "S": (12, 384, 6),
        "B": (12, 768, 12),
        "L": (24, 1024, 16),
        "XL": (28, 1152, 16),
    }


class Remembering(nn.Module):
    """A layer with a memory, which it adds to its tokens and counts up."""

    memory_dim = 3

    def __init__(self, site: AttentionSite) -> None:
        super().__init__()

    def forward(
        self, tokens: Tensor, grid: Grid | None, prefix: int, memory: Tensor
    ) -> tuple[Tensor, Tensor]:
        return tokens + memory.sum(-1, keepdim=True), memory + 1


class WholeBlock(nn.Linear):
    """A layer that stands for attention and MLP."""

    replaces_mlp = True

    def __init__(self, site: AttentionSite) -> None:
        super().__init__(site.dim, site.dim)

    def forward(self, tokens: Tensor, grid: Grid | None = None, prefix: int = 0) -> Tensor:
        return super().forward(tokens)


def test_a_layer_in_place_of_the_mlp_leaves_one_branch() -> None:
    site = AttentionSite(32, 2, (4, 6), 0)
    block = Block(site, WholeBlock, mlp_ratio=4.0)
    assert not any("mlp" in name for name in block.state_dict())
    assert block.adaLN_modulation[1].weight.shape == (3 * 32, 32)
    nn.init.normal_(block.adaLN_modulation[1].bias)
    shift, scale, gate = block.adaLN_modulation[1].bias.chunk(3)
    tokens = torch.randn(1, 24, 32)
    normed = nn.functional.layer_norm(tokens, (32,), eps=1e-6)
    expected = tokens + gate * block.attn(normed * (1 + scale) + shift)
    torch.testing.assert_close(block(tokens, torch.randn(1, 32))[0], expected)


def test_a_memory_starts_from_the_patches_and_runs_through_the_blocks() -> None:
    network = DiffusionTransformer(make_config(depth=3), Remembering)
    assert network.memory_embedder is not None
    seen: list[Tensor] = []
    for block in network.blocks:
        block.attn.register_forward_pre_hook(lambda _, args: seen.append(args[3]))
    tokens: list[Tensor] = []
    network.memory_embedder.register_forward_pre_hook(lambda _, args: tokens.append(args[0]))
    predict(network)
    torch.testing.assert_close(seen[0], network.memory_embedder(tokens[0]))
    torch.testing.assert_close(seen[2], seen[0] + 2)


def test_a_memory_passes_blocks_that_keep_none() -> None:
    def every_other(site: AttentionSite) -> nn.Module:
        return Remembering(site) if site.block_index % 2 == 0 else softmax(site)

    network = DiffusionTransformer(make_config(depth=3), every_other)
    seen: list[Tensor] = []
    for i in (0, 2):
        network.blocks[i].attn.register_forward_pre_hook(lambda _, args: seen.append(args[3]))
    predict(network)
    torch.testing.assert_close(seen[1], seen[0] + 1)
