"""A checkpoint is whole or refused, and every damaged part of it is named."""

import json

import pytest
import torch
from torch import nn

from runtime import checkpoint as checkpoints
from runtime.checkpoint import TrainingState
from runtime.errors import UserError
from runtime.run_folder import step_dir

STATE = TrainingState(
    step=3,
    images_seen=12,
    epoch=0.5,
    ema_updates=3,
    config="model: DiT-XXS/2\n",
    passport={"class_names": ["a"]},
    versions={"python": "3"},
)


@pytest.fixture
def saved(tmp_path):
    """A run folder with checkpoints of steps 1 to 3."""
    network = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(network.parameters())
    network(torch.ones(4)).sum().backward()
    optimizer.step()
    average = {name: value + 1 for name, value in network.state_dict().items()}
    for step in (1, 2, 3):
        state = TrainingState(**{**STATE.__dict__, "step": step})
        checkpoints.save(
            step_dir(tmp_path, step), state, network.state_dict(), average, optimizer.state_dict()
        )
    return tmp_path, network, optimizer


def test_what_is_loaded_is_what_was_saved(saved):
    run_dir, network, optimizer = saved
    found = checkpoints.load(run_dir)
    assert found.state.step == 3
    assert found.path == step_dir(run_dir, 3)
    for name, value in network.state_dict().items():
        assert torch.equal(found.weights("raw")[name], value)
        assert torch.equal(found.weights("ema")[name], value + 1)
    restored = torch.optim.AdamW(network.parameters())
    restored.load_state_dict(found.optimizer())
    for ours, theirs in zip(restored.state.values(), optimizer.state.values(), strict=True):
        assert torch.equal(ours["exp_avg"], theirs["exp_avg"])
    assert found.state.train_config().model == "DiT-XXS/2"


def test_renaming_the_folder_changes_nothing(saved):
    run_dir, *_ = saved
    moved = step_dir(run_dir, 2).rename(run_dir / "chosen")
    assert checkpoints.load(moved).state.step == 2


@pytest.mark.parametrize("name", [*checkpoints.CONTENT, checkpoints.MANIFEST])
@pytest.mark.parametrize("how", ["removed", "cut", "one byte changed"])
def test_a_damaged_checkpoint_is_passed_over_or_refused_by_name(saved, name, how, capsys):
    run_dir, *_ = saved
    path = step_dir(run_dir, 3) / name
    content = bytearray(path.read_bytes())
    if how == "removed":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[:-7])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"is not whole: .*{name}"):
        checkpoints.load(step_dir(run_dir, 3))
    assert checkpoints.load(run_dir).state.step == 2
    assert "passing over" in capsys.readouterr().out


def test_every_damaged_part_is_named(saved):
    run_dir, *_ = saved
    folder = step_dir(run_dir, 1)
    (folder / "ema.safetensors").unlink()
    (folder / "state.json").write_text("{}")
    problem = checkpoints.damage(folder)
    assert "ema.safetensors is missing" in problem
    assert "state.json has 2 bytes" in problem
    (folder / "optimizer.pt").unlink()
    (folder / checkpoints.MANIFEST).write_text('{"model.safetensors": 3}')
    problem = checkpoints.damage(folder)
    for part in ("ema.safetensors is missing", "optimizer.pt is missing", "manifest.json is unr"):
        assert part in problem


def test_where_every_checkpoint_is_damaged_nothing_begins_again_in_silence(saved):
    run_dir, *_ = saved
    for step, name in enumerate(("model.safetensors", "state.json", "manifest.json"), start=1):
        (step_dir(run_dir, step) / name).unlink()
    with pytest.raises(UserError) as caught:
        checkpoints.newest_whole(run_dir)
    for name in ("model.safetensors", "state.json", "manifest.json"):
        assert f"{name} is missing" in str(caught.value)


def test_neither_kind_of_weights_stands_in_for_the_other(saved):
    run_dir, *_ = saved
    found = checkpoints.load(run_dir)
    for kind, name in (("raw", "model.safetensors"), ("ema", "ema.safetensors")):
        (found.path / name).unlink()
        with pytest.raises(FileNotFoundError, match=name):
            found.weights(kind)


def test_a_stray_file_is_ignored_and_a_half_written_folder_is_no_checkpoint(saved):
    run_dir, *_ = saved
    (step_dir(run_dir, 3) / "stray.txt").write_text("x")
    (run_dir / "checkpoints" / ".step-0000004.partial").mkdir()
    assert checkpoints.load(run_dir).state.step == 3


def test_missing_places_are_named(tmp_path):
    with pytest.raises(UserError, match="no checkpoint or run folder"):
        checkpoints.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no checkpoint in"):
        checkpoints.load(tmp_path)


def test_identity_changes_with_every_byte(saved):
    run_dir, *_ = saved
    first, second = (checkpoints.load(step_dir(run_dir, step)).identity for step in (1, 2))
    assert first != second


def test_saving_again_replaces_the_folder_as_a_whole(saved):
    run_dir, network, optimizer = saved
    checkpoints.save(
        step_dir(run_dir, 3),
        STATE,
        network.state_dict(),
        network.state_dict(),
        optimizer.state_dict(),
    )
    found = checkpoints.load(run_dir)
    assert torch.equal(found.weights("ema")["bias"], network.bias)
    assert json.loads((found.path / "state.json").read_text())["step"] == 3
