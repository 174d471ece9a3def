"""The configs in configs/dit and configs/sit: complete, loadable, and what they say they are."""

import dataclasses
import re
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from backbone.counts import count_parameters
from backbone.sizes import SIZES
from backbone.transformer import DiffusionTransformer
from dit.diffusion import DiffusionSamplerConfig
from runtime.build import build_network, build_process
from runtime.config import read_config, read_target
from runtime.factory import MODELS
from runtime.sample_config import SampleConfig
from runtime.sampling import label_of
from runtime.training_config import TrainConfig, sections_of
from sit.flow import FlowSamplerConfig

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(
    path
    for family in ("dit", "sit")
    for path in (ROOT / "configs" / family).glob("*.yaml")
    if not path.name.startswith("base")
)
VCA_CONFIGS = [path for path in CONFIGS if "_vca" in path.name]


@cache
def read(path: Path, *overrides: str) -> TrainConfig:
    return read_config(TrainConfig, [str(path), *overrides], sections_of)


@cache
def build_without_memory(path: Path) -> DiffusionTransformer:
    with torch.device("meta"):
        return build_network(read(path))


def softmax_row(path: Path) -> Path:
    """The config that differs from a VCA row in its attention alone."""
    return path.with_name(re.sub("_vca.*", "", path.stem) + ".yaml")


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


every_config = pytest.mark.parametrize("path", CONFIGS, ids=name)
every_vca_config = pytest.mark.parametrize("path", VCA_CONFIGS, ids=name)


def test_every_row_has_its_config() -> None:
    found = {(c.model, c.attention, c.image_size) for c in map(read, CONFIGS)}
    rows = product(("DiT", "SiT"), ("S", "B", "L", "XL"), (2, 4, 8), ("softmax", "vca"))
    wanted = {(f"{family}-{size}/{patch}", a, 256) for family, size, patch, a in rows}
    wanted |= {(f"{family}-XL/2", a, 512) for family in ("DiT", "SiT") for a in ("softmax", "vca")}
    assert found == wanted


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
    config, network = read(path), build_without_memory(path)
    build_process(config)
    assert network.config.out_channels == (8 if config.model.startswith("DiT") else 4)


@every_vca_config
def test_attention_is_all_that_differs_from_the_softmax_row(path: Path) -> None:
    plain = read(softmax_row(path))
    ours = dataclasses.replace(
        read(path), attention=plain.attention, vca=plain.vca, output_dir=plain.output_dir
    )
    assert ours == plain


@every_vca_config
def test_visual_contrast_attention_adds_what_its_formula_says(path: Path) -> None:
    """Per layer: two embeddings, eight lambda vectors and two gains, and a 3 x 3 convolution."""
    config = read(path)
    size, patch = SIZES[MODELS[config.model].size], MODELS[config.model].patch_size
    side = min(config.latent_shape[1] // patch // 2, 8)
    convolution = 10 * size.dim if config.vca.has_value_conv else 0
    per_layer = 2 * side**2 * size.dim + 10 * size.dim // size.num_heads + convolution
    plain, ours = (count_parameters(build_without_memory(p)) for p in (softmax_row(path), path))
    assert ours - plain == size.depth * per_layer
    assert ours <= 1.02 * plain  # as docs/attention.md says


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
    folders = Counter(read(path).output_dir for path in CONFIGS)
    assert [folder for folder, count in folders.items() if count > 1] == []


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
