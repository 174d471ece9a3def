"""Every objective learns one batch by heart, and broken code does not."""

import pytest

from runtime.config_schema import build
from runtime.config_text import merge, nested
from runtime.training_config import TrainConfig, sections_of
from tools import overfit as tool

TINY = {
    "attention": "vca",
    "image_size": "8",
    "downsampling": "1",
    "latent_channels": "3",
    "num_classes": "3",
}


def config(*settings: str) -> TrainConfig:
    trees = [nested(*setting.split("=")) for setting in settings]
    tree = merge([TINY, *trees])
    return build(TrainConfig, tree, sections_of(tree))


@pytest.mark.parametrize(
    "settings",
    [
        ("model=DiT-XXS/2",),
        ("model=DiT-XXS/2", "process.variance=fixed_small"),
        ("model=SiT-XXS/2",),
        ("model=SiT-XXS/2", "process.prediction=noise"),
        ("model=SiT-XXS/2", "process.prediction=score"),
        ("model=SiT-XXS/2", "process.path=vp", "process.prediction=noise"),
    ],
)
def test_one_batch_is_learnt_by_heart(settings):
    first, last = tool.overfit(config(*settings))
    assert last < tool.PASSING * first


def test_a_network_that_does_not_learn_fails(monkeypatch):
    monkeypatch.setattr(tool, "LEARNING_RATE", 0.0)
    monkeypatch.setattr(tool, "NUM_STEPS", 3)
    first, last = tool.overfit(config("model=SiT-XXS/2"))
    assert not last < tool.PASSING * first
