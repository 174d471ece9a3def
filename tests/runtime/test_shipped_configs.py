"""The configs in configs/dit and configs/sit: complete, loadable, and what they say they are."""

import dataclasses
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from shipped_configs import (
    ABLATIONS,
    CONFIGS,
    OTHER_CONFIGS,
    ROOT,
    VCA_CONFIGS,
    name,
    network_of,
    read,
    softmax_row,
    without_attention,
)

from backbone.counts import count_parameters
from backbone.sizes import SIZES
from dit.diffusion import DiffusionSamplerConfig
from runtime.build import build_network, build_process
from runtime.config import read_target
from runtime.config_text import parse_yaml
from runtime.factory import ATTENTIONS, MODELS
from runtime.network_cost import PARAMETER_TOLERANCE, cost_of
from runtime.sample_config import SampleConfig
from runtime.sampling import label_of
from sit.flow import FlowSamplerConfig

every_config = pytest.mark.parametrize("path", CONFIGS, ids=name)
every_vca_config = pytest.mark.parametrize("path", VCA_CONFIGS, ids=name)
every_other_config = pytest.mark.parametrize("path", OTHER_CONFIGS, ids=name)


def test_every_row_has_its_config() -> None:
    found = {(c.model, c.attention, c.image_size) for c in map(read, CONFIGS)}
    rows = product(("DiT", "SiT"), ("S", "B", "L", "XL"), (2, 4, 8), ("softmax", "vca"))
    wanted = {(f"{family}-{size}/{patch}", a, 256) for family, size, patch, a in rows}
    wanted |= {(f"{family}-XL/2", a, 512) for family in ("DiT", "SiT") for a in ("softmax", "vca")}
    wanted |= {
        (f"{family}-{size}/2", a, 256)
        for family, size, a in product(("DiT", "SiT"), "SB", ATTENTIONS)
    }
    assert found == wanted


def test_care_exists_in_both_profiles() -> None:
    found = Counter((c.model, c.care.profile) for c in map(read, CONFIGS) if c.attention == "care")
    models = [f"{family}-{size}/2" for family, size in product(("DiT", "SiT"), "SB")]
    assert found == Counter(product(models, ("care_attn", "care_block")))


def test_the_paper_variant_exists_for_s2_and_b2() -> None:
    variants = {name(path): read(path).vca.variant for path in VCA_CONFIGS}
    paper = {config for config, variant in variants.items() if variant == "paper"}
    assert paper == {
        f"{family}/{size}_vca_paper" for family in ("dit", "sit") for size in ("s2", "b2")
    }


@every_config
def test_a_config_states_the_published_recipe(path: Path) -> None:
    config = read(path)
    assert config.global_batch_size == 256
    assert config.num_steps == (400_000 if config.image_size == 256 else 3_000_000)
    assert config.lr == 1e-4 and config.optimizer.weight_decay == 0
    assert (config.optimizer.beta1, config.optimizer.beta2, config.optimizer.eps) == (
        0.9,
        0.999,
        1e-8,
    )
    assert config.optimizer.warmup_steps == 0 and config.optimizer.max_grad_norm is None
    assert config.ema.decay == 0.9999 and not config.ema.warmup
    assert config.label_drop == 0.1 and config.mirror and not config.qk_norm
    assert config.time_scale == 1 and config.guidance.guided_channels == 3
    assert config.guidance.scale == (1 if config.image_size == 256 else 1.5)


@every_config
def test_a_config_states_the_published_sampler(path: Path) -> None:
    sampler = read(path).sampler
    if path.parent.name == "dit":
        assert sampler == DiffusionSamplerConfig("ddpm", 250, "even")
    else:
        assert sampler == FlowSamplerConfig(
            "euler_maruyama", 250, "sigma", 1.0, last_step="mean", last_step_size=0.04
        )


@every_config
def test_a_config_builds(path: Path) -> None:
    config, network = read(path), network_of(path)
    build_process(config)
    assert network.config.out_channels == (8 if config.model.startswith("DiT") else 4)


@every_other_config
def test_attention_is_all_that_differs_from_the_softmax_row(path: Path) -> None:
    ours, plain = read(path), read(softmax_row(path))
    others = {n: e.config() for n, e in ATTENTIONS.items() if n != ours.attention}
    assert dataclasses.replace(ours, **others) == ours  # settings of other layers are the defaults
    assert without_attention(ours) == without_attention(plain)


@every_other_config
def test_another_attention_states_its_whole_recipe(path: Path) -> None:
    """In its own base file, so that it follows no change of softmax attention's recipe."""
    attention = read(path).attention
    assert parse_yaml(path.read_text())["base"] == f"base_{attention}.yaml"
    base = parse_yaml(path.with_name(f"base_{attention}.yaml").read_text())
    assert base["attention"] == attention and base["lr"] == "1e-4"
    assert base["optimizer"] == {"warmup_steps": "0", "max_grad_norm": "null"}
    if hasattr(ATTENTIONS[attention].config, "lambda_std"):  # how its own parameters start
        assert "lambda_std" in base[attention]


@every_other_config
def test_heads_keep_the_width_of_the_baseline(path: Path) -> None:
    """Pairs are half as many as heads; CARE alone has a width of its own."""
    config = read(path)
    size, heads = SIZES[MODELS[config.model].size], cost_of("", network_of(path)).heads
    if config.attention == "care":
        assert heads.dim == 32
    else:
        assert (heads.count, heads.dim) == (size.num_heads, size.dim // size.num_heads)
        assert heads.pairs in (None, size.num_heads // 2)


@every_vca_config
def test_visual_contrast_attention_adds_what_its_formula_says(path: Path) -> None:
    """Per layer: two embeddings, eight lambda vectors and two gains, and a 3 x 3 convolution."""
    config = read(path)
    size, patch = SIZES[MODELS[config.model].size], MODELS[config.model].patch_size
    side = min(config.latent_shape[1] // patch // 2, 8)
    convolution = 10 * size.dim if config.vca.has_value_conv else 0
    per_layer = 2 * side**2 * size.dim + 10 * size.dim // size.num_heads + convolution
    plain, ours = (count_parameters(network_of(p)) for p in (softmax_row(path), path))
    assert ours - plain == size.depth * per_layer
    assert ours <= (1 + PARAMETER_TOLERANCE) * plain


# --- the comment at the top of each file --------------------------------------------------------


def commands(path: Path) -> dict[str, list[str]]:
    """The commands in a config's comment: program to arguments."""
    text = "\n".join(line.removeprefix("#") for line in path.read_text().splitlines())
    lines = text.replace("\\\n", " ").splitlines()
    found = [line.split()[2:] for line in lines if line.strip().startswith("accelerate launch")]
    return {program: arguments for program, *arguments in found}


@every_config
def test_the_comment_comes_first_and_says_what_is_reproduced(path: Path) -> None:
    first, second = path.read_text().splitlines()[:2]
    assert first.startswith(f"# {read(path).model} with ") and second.startswith("# Published: ")


@every_config
def test_the_comment_names_the_commands_that_make_the_number(path: Path) -> None:
    config, found = read(path), commands(path)
    assert found["train.py"] == [path.relative_to(ROOT).as_posix()]
    target, sample = read_target(SampleConfig, found["sample.py"], "CHECKPOINT")
    assert target == Path(config.output_dir)
    assert sample.num_images == 50_000 and sample.weights == "ema"
    assert found["eval_fid.py"][0] == sample.output_dir


def test_each_row_has_a_run_folder_of_its_own() -> None:
    """An ablation that is a row of configs/dit too is the same run, in the same folder."""
    runs = {read(path) for path in [*CONFIGS, *ABLATIONS]}
    folders = Counter(config.output_dir for config in runs)
    assert [folder for folder, count in folders.items() if count > 1] == []


@pytest.mark.parametrize("path", [*OTHER_CONFIGS, *ABLATIONS], ids=name)
def test_a_row_can_be_trained(path: Path) -> None:
    """At the smallest size: the loss and all gradients are finite, and none is missing."""
    family = read(path).model.split("-")[0]
    config = read(path, f"model={family}-XXS/4", "image_size=64")
    network, process = build_network(config), build_process(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # at the start, closed gates would let no gradient through
        for parameter in network.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    x, noise = torch.randn(2, 2, 4, 8, 8, generator=generator)
    loss = process.loss(network, x, torch.tensor([0, 1000]), noise, torch.tensor([0.2, 0.7])).mean()
    loss.backward()
    gradients = {n: p.grad for n, p in network.named_parameters() if p.requires_grad}
    assert loss.isfinite()
    assert [n for n, g in gradients.items() if g is None or not g.isfinite().all()] == []


def test_an_unconditional_network_knows_one_label() -> None:
    config = read(ROOT / "configs" / "unconditional.yaml", "model=SiT-XXS/2", "image_size=64")
    network = build_network(config)
    assert network.y_embedder.embedding_table.num_embeddings == 1
    sample = SampleConfig(num_images=5)
    assert [label_of(i, sample, config.num_classes) for i in range(5)] == [0] * 5


# --- a short run of each family -----------------------------------------------------------------


@pytest.mark.parametrize("row", ["dit/s2", "dit/s2_vca", "sit/s2", "sit/s2_vca"])
def test_the_loss_falls_by_the_recipe_of_each_family(row: str) -> None:
    family = row[:3].replace("dit", "DiT").replace("sit", "SiT")
    config = read(ROOT / "configs" / f"{row}.yaml", f"model={family}-XXS/2", "image_size=64")
    network, process = build_network(config), build_process(config)
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.lr, weight_decay=0)
    x, y, u = torch.randn(4, 4, 8, 8), torch.arange(4), torch.linspace(0.3, 0.95, 4)
    noise = torch.randn(4, 4, 8, 8)
    losses = [_step(process, network, optimizer, (x, y, noise, u)) for _ in range(50)]
    assert all(
        later < earlier for earlier, later in zip(losses[::10], losses[10::10], strict=False)
    )
    assert losses[-1] < 0.98 * losses[0]


def _step(process: Any, network: Any, optimizer: Any, batch: tuple[torch.Tensor, ...]) -> float:
    loss = process.loss(network, *batch).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
