"""Looking at a network under training leaves no trace in it."""

import os
import subprocess
import sys

import pytest
import torch
from tiny_latents import write_latents

from runtime.build import build_network, build_process
from runtime.contrast_probe import ContrastProbe
from runtime.latents import LatentDataset
from runtime.launch import start
from runtime.training_config import TrainConfig

TINY = {
    "model": "DiT-XXS/2", "latent_channels": 2, "image_size": 32, "num_classes": 3,
    "global_batch_size": 8, "mirror": False, "num_steps": 10,
}  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> LatentDataset:
    folder = tmp_path_factory.mktemp("latents")
    return LatentDataset(write_latents(folder, -10.0, latent_shape=(2, 4, 4)))


def probe_of(dataset: LatentDataset, **settings: object) -> ContrastProbe:
    config = TrainConfig(**{"attention": "vca", "contrast_every": 4, **TINY, **settings})
    network = build_network(config)
    return ContrastProbe(config, start("fp32"), dataset, network, build_process(config))


def test_it_is_due_at_its_interval_and_at_the_end(dataset: LatentDataset) -> None:
    def due(**settings: object) -> list[int]:
        probe = probe_of(dataset, **settings)
        return [step for step in range(1, 11) if probe.is_due(step)]

    assert due() == [4, 8, 10]
    assert due(contrast_every=0) == due(contrast_every=None) == due(attention="softmax") == []


@pytest.mark.parametrize("checkpointing", [False, True])
def test_it_leaves_mode_hooks_and_random_state_alone(
    dataset: LatentDataset, checkpointing: bool
) -> None:
    probe = probe_of(dataset, gradient_checkpointing=checkpointing)
    for block in probe.network.blocks:
        block.attn.proj_drop.p = 0.5
    random_state = torch.get_rng_state()
    first, second = probe.look(), probe.look()
    assert first == second  # the same images and noise, no dropout
    assert list(first) == ["block00", "block01"]
    assert torch.get_rng_state().equal(random_state)
    for module in probe.network.modules():
        assert module.training and not module._forward_pre_hooks
    assert all(p.grad is None for p in probe.network.parameters())


COMPILED = """
import sys
from pathlib import Path
import torch
from torch._dynamo.testing import CompileCounter
from runtime.build import build_network, build_process
from runtime.contrast_probe import ContrastProbe
from runtime.latents import LatentDataset
from runtime.launch import start
from runtime.training_config import TrainConfig
config = TrainConfig(attention="vca", contrast_every=1, **SETTINGS)
network, counter = build_network(config), CompileCounter()
dataset = LatentDataset(Path(sys.argv[1]))
probe = ContrastProbe(config, start("fp32"), dataset, network, build_process(config))
compiled = torch.compile(network, backend=counter)
inputs = torch.randn(2, 2, 4, 4), torch.rand(2), torch.tensor([0, 1])
before = compiled(*inputs)
assert counter.frame_count == 1
assert probe.look()["block00"]["stage1"]["kept"] > 0
assert compiled(*inputs).equal(before)
assert counter.frame_count == 1, "compiled again"
"""


def test_a_compiled_network_is_compiled_once(dataset: LatentDataset) -> None:
    # In a process of its own, since the checks of shapes that the tests switch on break graphs.
    program = COMPILED.replace("SETTINGS", repr(TINY))
    subprocess.run(
        [sys.executable, "-c", program, str(dataset.folder)],
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
