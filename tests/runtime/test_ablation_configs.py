"""The ablations of configs/ablations: the promised rows, each changing attention alone."""

import dataclasses
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from shipped_configs import ABLATIONS, ROOT, name, network_of, read, without_attention

from backbone.softmax import SoftmaxConfig
from baselines.differential import DifferentialConfig
from runtime.factory import ATTENTIONS
from vca.attention import VCAConfig
from vca.split import VCASplitConfig

every_ablation = pytest.mark.parametrize("path", ABLATIONS, ids=name)

BASELINE = ROOT / "configs" / "dit" / "s2.yaml"
VARIANTS = {"released": VCAConfig(), "paper": VCAConfig(variant="paper")}
SOURCE_WORDS = {"pool": "pool", "emb": "emb", "both": "pool+emb"}


def promised_ablations() -> dict[str, tuple[str, Any]]:
    """File to attention and its settings."""
    rows: dict[str, tuple[str, Any]] = {
        "baseline": ("softmax", SoftmaxConfig()),
        "differential_split": ("vca_split", VCASplitConfig()),
        "differential_split_conv": ("vca_split", VCASplitConfig(value_conv=True)),
        "differential_full": ("differential", DifferentialConfig()),
        "joint_no_conv": ("vca", VCAConfig(value_conv=False)),
        "separate_conv": ("vca", VCAConfig(variant="paper", value_conv=True)),
    }
    for variant, config in VARIANTS.items():
        change = partial(dataclasses.replace, config)
        rows[variant] = ("vca", config)
        rows[f"{variant}_stage1"] = ("vca", change(stage2_difference=False))
        rows[f"{variant}_stage2"] = ("vca", change(stage1_difference=False))
        for (p, positive), (n, negative) in product(SOURCE_WORDS.items(), repeat=2):
            if p != "both" or n != "both":  # both are the variant itself
                sources = change(positive_source=positive, negative_source=negative)
                rows[f"{variant}_pos_{p}_neg_{n}"] = ("vca", sources)
    return rows


def test_the_ablations_are_those_of_the_paper_in_both_variants() -> None:
    found = {path.stem: read(path) for path in ABLATIONS}
    settings = {row: (c.attention, getattr(c, c.attention)) for row, c in found.items()}
    assert settings == promised_ablations()


@every_ablation
def test_an_ablation_differs_from_the_baseline_in_its_attention_alone(path: Path) -> None:
    ours, plain = read(path), read(BASELINE)
    assert without_attention(ours) == without_attention(plain)
    others = {n: getattr(plain, n) for n in ATTENTIONS if n != ours.attention}
    assert dataclasses.replace(ours, **others) == ours
    assert network_of(path).config == network_of(BASELINE).config


def described() -> dict[str, tuple[str, str]]:
    """The table of configs/ablations/README.md: file to settings and published value."""
    lines = (ROOT / "configs" / "ablations" / "README.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    return {name.strip("`"): (settings.strip("`"), fid) for name, _, settings, fid in rows}


def test_the_table_of_ablations_names_each_file() -> None:
    assert set(described()) == {path.name for path in ABLATIONS}


@every_ablation
def test_the_table_of_ablations_says_what_each_file_does(path: Path) -> None:
    settings, fid = described()[path.name]
    ours = read(path)
    assert read(BASELINE, *settings.split(), f"output_dir={ours.output_dir}") == ours
    text = " ".join(line.removeprefix("# ") for line in path.read_text().splitlines())
    assert text.startswith("DiT-S/2 with ")
    assert (" Published: not found." if fid == "not found" else f" FID-50K {fid}") in text
