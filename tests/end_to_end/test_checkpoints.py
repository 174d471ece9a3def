"""Which checkpoints a run leaves, goes on from and begins with."""

import json

import pytest
from programs import losses

from runtime import checkpoint as checkpoints
from runtime.errors import UserError
from runtime.run_folder import checkpoints_dir, step_dir
from train import main as train


@pytest.fixture(scope="module")
def trained(train_config, tmp_path_factory):
    """A run of six steps that saves each of them, and keeps some."""
    run_dir = tmp_path_factory.mktemp("checkpoints") / "run"
    config = train_config("SiT")
    train([str(config), f"output_dir={run_dir}", *["num_steps=6", "checkpoint_every=1"],
           *["keep_last=2", "keep_every=4"]])  # fmt: skip
    return config, run_dir


def files(folder):
    return json.loads((folder / "manifest.json").read_text())


def test_the_last_ones_and_every_so_many_stay(trained):
    _, run_dir = trained
    names = {folder.name for folder in checkpoints_dir(run_dir).iterdir()}
    assert names == {"step-0000004", "step-0000005", "step-0000006"}


def test_saving_each_step_on_two_processes_is_saving_once(trained, program, tmp_path):
    """Both leave when the last one is whole; no write in the background changes a weight."""
    config, run_dir = trained
    program(
        "train.py", config, f"output_dir={tmp_path}/two", "num_steps=6", "checkpoint_every=1",
        "keep_last=null", processes=2,
    )  # fmt: skip
    assert len(list(checkpoints_dir(tmp_path / "two").iterdir())) == 6
    for step in range(1, 7):
        assert checkpoints.damage(step_dir(tmp_path / "two", step)) is None
    assert losses(tmp_path / "two") == pytest.approx(losses(run_dir), rel=1e-5)
    train([str(config), f"output_dir={tmp_path}/once", "num_steps=6"])
    once, each = (files(step_dir(folder, 6)) for folder in (tmp_path / "once", run_dir))
    for name in ("model.safetensors", "ema.safetensors", "optimizer.pt"):
        assert once[name] == each[name]


def test_a_disk_that_fails_ends_the_run_with_one_line(trained, program, tmp_path):
    config, _ = trained
    checkpoints_dir(tmp_path / "run").parent.mkdir()
    checkpoints_dir(tmp_path / "run").write_text("a file where the folder should be")
    finished = program(
        "train.py", config, f"output_dir={tmp_path}/run", "num_steps=9999", "checkpoint_every=2",
        status=2,
    )  # fmt: skip
    assert finished.stderr.count("error: saving") == 1
    assert "Traceback" not in finished.stderr
    assert len(losses(tmp_path / "run")) < 9999


def test_a_run_goes_on_from_the_checkpoint_that_it_is_told(trained, tmp_path):
    config, run_dir = trained
    named = f"resume={step_dir(run_dir, 4)}"
    train([str(config), f"output_dir={tmp_path}/run", "num_steps=6", named])
    expected = losses(run_dir)
    assert losses(tmp_path / "run") == {step: expected[step] for step in (5, 6)}
    ours, theirs = (files(step_dir(folder, 6)) for folder in (tmp_path / "run", run_dir))
    assert ours["model.safetensors"] == theirs["model.safetensors"]


def test_a_new_run_begins_with_the_weights_of_another(trained, tmp_path, capsys):
    config, run_dir = trained
    arguments = [str(config), f"output_dir={tmp_path}/run", f"init_from={run_dir}", "lr=1e-30"]
    train([*arguments, "num_steps=2"])
    assert "begins with the ema weights of" in capsys.readouterr().out
    origin, ours = checkpoints.load(run_dir), checkpoints.load(tmp_path / "run")
    for kind in ("raw", "ema"):
        for name, weight in origin.weights("ema").items():
            assert ours.weights(kind)[name].equal(weight), name
    record = json.loads((tmp_path / "run" / "init_from.json").read_text())
    assert (record["identity"], record["step"]) == (origin.identity, 6)
    assert record["not_loaded"] == {}

    train([*arguments, "num_steps=3"])  # goes on as itself, and is not begun again
    assert "begins with" not in capsys.readouterr().out
    assert sorted(losses(tmp_path / "run")) == [1, 2, 3]
    with pytest.raises(UserError, match="init_weights was ema, is raw"):
        train([*arguments, "num_steps=3", "init_weights=raw"])
    assert (tmp_path / "run" / "init_from.json").exists()


def test_what_does_not_fit_is_refused_before_anything_is_written(trained, tmp_path):
    config, run_dir = trained
    for override, message in (
        (f"init_from={tmp_path}/nowhere", "no checkpoint or run folder"),
        (
            f"init_from={run_dir} model=SiT-XS/2",
            "init_from = .*: the weights are of another network",
        ),
        (f"resume={tmp_path}/step-0000001", r"is not whole: manifest.json is missing"),
        ("resume=atuo", "neither auto, never nor a step folder"),
    ):
        with pytest.raises(UserError, match=message):
            train([str(config), f"output_dir={tmp_path}/run", "num_steps=1", *override.split()])
        assert not (tmp_path / "run").exists()
