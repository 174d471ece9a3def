"""The shipped encode configs make the latents that the training configs ask for."""

from pathlib import Path

import pytest

from runtime.config import read_config
from runtime.encode_config import EncodeConfig
from runtime.errors import UserError
from runtime.training_config import TrainConfig, sections_of

ROOT = Path(__file__).parents[2]
ENCODE = [*sorted((ROOT / "configs" / "encode").glob("*.yaml")), ROOT / "configs/demo/encode.yaml"]
TRAIN = sorted(
    path
    for folder in ("dit", "sit", "ablations")
    for path in (ROOT / "configs" / folder).glob("*.yaml")
    if not path.name.startswith("base")
)


def read(path: Path) -> EncodeConfig:
    return read_config(EncodeConfig, [str(path)])


@pytest.mark.parametrize("path", ENCODE, ids=lambda path: path.stem)
def test_an_encode_config_is_complete(path: Path) -> None:
    config = read(path)
    assert config.kind == "moments"  # the published training draws from the posterior
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("path", TRAIN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_training_config_finds_its_latents(path: Path) -> None:
    training = read_config(TrainConfig, [str(path)], sections_of)
    found = [config for config in map(read, ENCODE) if config.latents_dir == training.latents_dir]
    assert len(found) == 1, f"no encode config writes {training.latents_dir}"
    assert found[0].image_size == training.image_size
    assert found[0].mirrored_copies or not training.mirror


@pytest.mark.parametrize("key", ["model=DiT-S/2", "attention=vca", "num_classes=3"])
def test_latents_depend_on_no_model(key: str) -> None:
    with pytest.raises(UserError, match=f"unknown key '{key.partition('=')[0]}'"):
        read_config(EncodeConfig, [str(ENCODE[0]), key])
