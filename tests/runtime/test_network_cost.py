"""Printed costs against the formulas of each layer, and what the programs print of them."""

import dataclasses
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from backbone.sizes import SIZES
from benchmarks.count import main as count
from runtime.config import read_config
from runtime.errors import UserError
from runtime.factory import ATTENTIONS, MODELS
from runtime.network_cost import (
    ROWS,
    Heads,
    NetworkCost,
    build_without_memory,
    cost_of,
    describe_network,
)
from runtime.training_config import TrainConfig, sections_of

ROOT = Path(__file__).parents[2]


def read(row: str, *overrides: str) -> TrainConfig:
    return read_config(TrainConfig, [str(ROOT / "configs" / row), *overrides], sections_of)


@cache
def cost(config: TrainConfig) -> NetworkCost:
    return cost_of(config.attention, build_without_memory(config))


# --- formulas: C width, M heads of width d, N tokens on H x W, n contrast tokens per bank --------


@dataclasses.dataclass(frozen=True)
class Counts:
    """Parameters and multiply-accumulates of one layer, beside its projections."""

    extra_parameters: int
    core: int
    fused_core: int
    convolution: int


Symbols = dict[str, int]


def symbols(config: TrainConfig) -> Symbols:
    size = SIZES[MODELS[config.model].size]
    side = config.latent_shape[1] // MODELS[config.model].patch_size
    return {
        "C": size.dim, "M": size.num_heads, "d": size.dim // size.num_heads,
        "N": side**2, "n": min(side // 2, 8) ** 2, "side": side,
    }  # fmt: skip


def softmax(s: Symbols, config: TrainConfig) -> Counts:
    products = 2 * s["N"] ** 2 * s["C"]
    return Counts(0, products, products, 0)


def vca(s: Symbols, config: TrainConfig) -> Counts:
    vca, conv, pair = config.vca, config.vca.has_value_conv, s["n"] * s["N"] * s["C"]
    two = vca.has_negative_bank
    embeddings = ("emb" in vca.positive_source) + ("emb" in vca.negative_source and two)
    stages = vca.stage1_difference + vca.stage2_difference
    # Stage I: scores and reads of each bank. Stage II: scores of each, and one signed read.
    core = 4 * pair if vca.stage1_difference else 2 * pair
    return Counts(
        embeddings * s["n"] * s["C"] + stages * 5 * s["d"] + conv * 10 * s["C"],
        core + (3 if vca.stage2_difference else 2) * pair,
        core + (4 if vca.stage2_difference else 2) * pair,
        conv * 9 * s["N"] * s["C"],
    )


def vca_split(s: Symbols, config: TrainConfig) -> Counts:
    conv, pair = config.vca_split.value_conv, s["n"] * s["N"] * s["C"]
    embedding = ("emb" in config.vca_split.source) * s["n"] * s["C"]
    return Counts(
        12 * s["d"] + embedding + conv * 10 * s["C"],
        4 * pair,
        6 * pair,
        conv * 9 * s["N"] * s["C"],
    )


def differential(s: Symbols, config: TrainConfig) -> Counts:
    products = s["N"] ** 2 * s["C"]
    return Counts(6 * s["d"], 2 * products, 3 * products, 0)


def agent(s: Symbols, config: TrainConfig) -> Counts:
    core = 4 * s["n"] * s["N"] * s["C"]
    biases = s["M"] * s["n"] * (98 + 4 * s["side"])
    return Counts(biases + 10 * s["C"], core, core, 9 * s["N"] * s["C"])


FORMULAS: dict[str, Callable[[Symbols, TrainConfig], Counts]] = {
    "softmax": softmax,
    "vca": vca,
    "vca_split": vca_split,
    "differential": differential,
    "agent": agent,
}

CASES = [
    ("dit/s2.yaml",),
    ("dit/s2_vca.yaml",),
    ("dit/b2_vca_paper.yaml",),
    ("sit/s8_vca.yaml",),
    ("sit/s2_vca.yaml", "image_size=512"),
    ("dit/xl4_vca.yaml", "image_size=1024"),
    ("ablations/released_stage1.yaml",),
    ("ablations/paper_stage2.yaml",),
    ("ablations/paper_stage1.yaml", "vca.stage1_difference=false"),
    ("ablations/paper_pos_pool_neg_both.yaml",),
    ("ablations/released_pos_emb_neg_pool.yaml",),
    ("ablations/separate_conv.yaml",),
    ("ablations/joint_no_conv.yaml",),
    ("dit/b2_vca_split.yaml",),
    ("ablations/differential_split_conv.yaml", "vca_split.source=pool+emb"),
    ("sit/b2_differential.yaml",),
    ("dit/s2_differential.yaml", "image_size=512"),
    ("sit/s2_agent.yaml",),
    ("dit/b2_agent.yaml", "image_size=512"),
]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_layer_costs_what_its_formula_says(case: tuple[str, ...]) -> None:
    config = read(*case)
    s, found = symbols(config), cost(config)
    wanted = FORMULAS[config.attention](s, config)
    assert found.layer_parameters == 4 * s["C"] ** 2 + 4 * s["C"] + wanted.extra_parameters
    assert dataclasses.astuple(found.layer) == (
        4 * s["N"] * s["C"] ** 2,
        wanted.core,
        wanted.fused_core,
        wanted.convolution,
    )


@pytest.mark.parametrize("row", ["dit/s2_care.yaml", "sit/b2_care.yaml", "dit/b2_care_block.yaml"])
def test_care_costs_what_its_formula_says(row: str) -> None:
    config = read(row)
    s, found = symbols(config), cost(config)
    dim, g, r = s["C"], s["C"] // 4, 4 if config.care.profile == "care_block" else 1
    assert found.layer_parameters == (
        2 * g**2 + 2 * g + 10 * g + 50 * g
        + 2 * r * (3 * g) ** 2 + 11 * r * 3 * g + 3 * g + 6 * g
        + 2 * r * dim**2 + 11 * r * dim + dim + 2 * dim
    )  # fmt: skip
    per_token = (
        2 * g**2 + 2 * g * 32 + g + 9 * g + 49 * g
        + 2 * r * (3 * g) ** 2 + 27 * r * g + 2 * r * dim**2 + 9 * r * dim
    )  # fmt: skip
    assert found.layer.total == found.layer.fused_total == s["N"] * per_token


@pytest.mark.parametrize("case", [("dit/s2_vca.yaml",), ("sit/b4_vca.yaml", "image_size=512")])
def test_a_network_costs_its_blocks_its_ends_and_its_condition(case: tuple[str, ...]) -> None:
    config = read(*case)
    s, found, (channels, _, _) = symbols(config), cost(config), config.latent_shape
    depth, patch = SIZES[MODELS[config.model].size].depth, MODELS[config.model].patch_size
    out_channels = channels * (2 if config.learned_variance else 1)
    network = found.network
    assert network.attention.total == depth * found.layer.total
    assert network.attention.fused_total == depth * found.layer.fused_total
    assert network.mlp == depth * 8 * s["N"] * s["C"] ** 2
    assert network.ends == s["N"] * s["C"] * patch**2 * (channels + out_channels)
    assert network.conditioning == (256 * s["C"] + s["C"] ** 2) + (6 * depth + 2) * s["C"] ** 2
    rest = network.mlp + network.ends + network.conditioning
    assert network.total == network.attention.total + rest
    assert network.fused_total == network.attention.fused_total + rest
    assert found.parameters - found.trainable == s["N"] * s["C"]


@pytest.mark.parametrize(
    ("row", "heads"),
    [
        ("dit/s2.yaml", Heads(6, 64, 64)),
        ("dit/xl2.yaml", Heads(16, 72, 72)),
        ("dit/s2_vca.yaml", Heads(6, 64, 64, banks=2, bank_size=64)),
        ("sit/b4_vca.yaml", Heads(12, 64, 64, banks=2, bank_size=16)),
        ("sit/s2_differential.yaml", Heads(6, 64, 128, pairs=3)),
        ("dit/b2_differential.yaml", Heads(12, 64, 128, pairs=6)),
        ("dit/b2_vca_split.yaml", Heads(12, 64, 128, pairs=6, banks=1, bank_size=64)),
        ("dit/s2_agent.yaml", Heads(6, 64, 64, banks=1, bank_size=64)),
        ("dit/s2_care.yaml", Heads(3, 32, 32)),
    ],
)
def test_heads_are_those_of_the_layer(row: str, heads: Heads) -> None:
    assert cost(read(row)).heads == heads


# --- what is printed ------------------------------------------------------------------------------


def printed(text: str) -> dict[str, list[str]]:
    """The lines of a table: name to cells."""
    lines = [re.fullmatch(r"( *\S.*?)((?: {2,}\S+)+)", line) for line in text.splitlines()]
    return {match[1]: match[2].split() for match in lines if match}


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_program_prints_the_chosen_attention_beside_softmax(
    attention: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(ROOT / "configs" / "dit" / "s2.yaml")
    count([path, f"attention={attention}"])
    table = printed(capsys.readouterr().out)
    columns = dict.fromkeys([attention, "softmax"])
    shown = [cost(read("dit/s2.yaml", f"attention={column}")) for column in columns]
    for name, quantity in ROWS.items():
        values = [quantity(of_network) for of_network in shown]
        cells = ["-" if value is None else f"{value:,}" for value in values]
        assert (name in table) == (cells != ["-"] * len(cells)), name
        assert table.get(name, cells)[: len(cells)] == cells, name
        if len(values) == 2 and values[0] is not None and values[1]:
            assert float(table[name][2]) == pytest.approx(values[0] / values[1], abs=5e-5), name
    for name in ("parameters", "heads", "MACs of one attention layer", "MACs of the network"):
        assert name in table


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["attention=vca"], "vca has 1.95% more parameters than softmax, within the tolerance"),
        (["attention=agent"], "agent has 2.40% more parameters than softmax, beyond the tolerance"),
        (["attention=care"], "care has 3.52% fewer parameters than softmax, beyond the tolerance"),
    ],
)
def test_the_last_line_holds_the_parameters_against_the_tolerance(
    overrides: list[str], said: str
) -> None:
    config = read("dit/s2.yaml", *overrides)
    last = describe_network(config, build_without_memory(config)).splitlines()[-1]
    assert last == f"{said} of 2%"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the first argument has to be CONFIG.yaml"),
        (["configs/dit/nothing.yaml"], "no config file"),
        (["configs/dit/s2.yaml", "attention=vcaa"], "did you mean 'vca'"),
        (["configs/dit/s2.yaml", "attention=vca", "vca.pooled_grid=[99,99]"], "larger than"),
        (["configs/dit/s2.yaml", "attention=differential", "differential.num_pairs=5"], "5 x 2"),
        (["configs/dit/s2.yaml", "image_size=250"], "250 is not divisible"),
    ],
)
def test_a_mistake_costs_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match=message) as caught:
        count(arguments)
    assert len(str(caught.value).splitlines()) == 1
