"""`python -m tools.checkpoint` says what a checkpoint is, and names every damaged part."""

from dataclasses import replace

import pytest
from test_checkpoint import STATE
from torch.optim import AdamW

from backbone.counts import count_parameters
from runtime import checkpoint as checkpoints
from runtime.build import build_network
from runtime.config_schema import to_yaml
from runtime.errors import UserError
from runtime.latents import LatentDataset
from runtime.run_folder import step_dir
from runtime.training_config import TrainConfig
from tools.checkpoint import main

CONFIG = TrainConfig(
    model="DiT-XXS/2", attention="vca", image_size=8, downsampling=1, num_classes=3, num_steps=500
)


@pytest.fixture
def run_dir(tmp_path, make_latents):
    """A run folder with checkpoints of steps 10 and 20."""
    network = build_network(CONFIG)
    state = replace(
        STATE,
        config=to_yaml(CONFIG),
        passport=LatentDataset(make_latents()).passport.for_sampling(),
        versions={"torch": "2.x"},
    )
    for step in (10, 20):
        checkpoints.save(
            step_dir(tmp_path / "run", step),
            replace(state, step=step, images_seen=4000 * step, ema_updates=step),
            network.state_dict(),
            network.state_dict(),
            AdamW(network.parameters()).state_dict(),
        )
    return tmp_path / "run"


def test_describe_says_what_a_run_is(run_dir, capsys):
    main(["describe", str(run_dir)])
    printed = capsys.readouterr().out
    for part in (
        "step-0000020", "20 of 500", "80,000", "DiT-XXS/2", "vca", "20 updates, decay 0.9999",
        f"{count_parameters(build_network(CONFIG)):,}", "some/autoencoder", "torch 2.x",
        "ema.safetensors", "MB, whole",
    ):  # fmt: skip
        assert part in printed, part
    main(["describe", str(step_dir(run_dir, 10))])
    assert "10 of 500" in capsys.readouterr().out


def test_whole_checkpoints_verify(run_dir, capsys):
    main(["verify", str(run_dir)])
    assert capsys.readouterr().out.count(": whole, ") == 2


def test_every_damaged_part_of_every_checkpoint_is_named(run_dir, capsys):
    (step_dir(run_dir, 10) / "ema.safetensors").unlink()
    (step_dir(run_dir, 10) / "optimizer.pt").write_bytes(b"x")
    with pytest.raises(UserError, match=r"1 of 2 damaged: .*step-0000010: ema.safetensors is mis"):
        main(["verify", str(run_dir)])
    printed = capsys.readouterr().out
    assert "ema.safetensors is missing, optimizer.pt has 1 bytes instead of" in printed
    assert "step-0000020: whole" in printed
    with pytest.raises(UserError, match="1 of 1 damaged"):
        main(["verify", str(step_dir(run_dir, 10))])
    with pytest.raises(UserError, match="is not whole"):
        main(["describe", str(step_dir(run_dir, 10))])


def test_mistakes_are_named(tmp_path):
    for arguments in ([], ["verify"], ["prove", "x"]):
        with pytest.raises(UserError, match="describe"):
            main(arguments)
    for verb in ("verify", "describe"):
        with pytest.raises(UserError, match="no checkpoint"):
            main([verb, str(tmp_path / "nowhere")])
