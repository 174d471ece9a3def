"""The shipped configs of reported rows and of ablations, for the tests of each."""

import dataclasses
import re
from functools import cache
from pathlib import Path

from backbone.transformer import DiffusionTransformer
from runtime.config import read_config
from runtime.factory import ATTENTIONS
from runtime.network_cost import build_without_memory
from runtime.training_config import TrainConfig, sections_of

ROOT = Path(__file__).parents[2]


@cache
def read(path: Path, *overrides: str) -> TrainConfig:
    return read_config(TrainConfig, [str(path), *overrides], sections_of)


@cache
def network_of(path: Path) -> DiffusionTransformer:
    return build_without_memory(read(path))


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def softmax_row(path: Path) -> Path:
    """The config that differs from a row in its attention alone: s2.yaml of s2_vca.yaml."""
    size = re.match(r"[a-z]+\d(_512)?", path.stem)
    assert size is not None
    return path.with_name(f"{size[0]}.yaml")


def without_attention(config: TrainConfig) -> TrainConfig:
    """All but the attention, its settings, and where the run lies."""
    sections = {attention: entry.config() for attention, entry in ATTENTIONS.items()}
    return dataclasses.replace(config, attention="softmax", output_dir="", **sections)


CONFIGS = sorted(
    path
    for family in ("dit", "sit")
    for path in (ROOT / "configs" / family).glob("*.yaml")
    if not path.name.startswith("base")
)
VCA_CONFIGS = [path for path in CONFIGS if re.search(r"_vca(_paper)?$", path.stem)]
OTHER_CONFIGS = [path for path in CONFIGS if softmax_row(path) != path]
ABLATIONS = sorted((ROOT / "configs" / "ablations").glob("*.yaml"))
