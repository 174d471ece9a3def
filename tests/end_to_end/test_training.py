"""A run depends on its config alone: not on processes, micro-batches, workers or interruptions."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from programs import ROOT, logged, losses

from benchmarks.count import main as count
from runtime import checkpoint as checkpoints
from runtime.errors import UserError
from train import main as train

FAMILIES = ("DiT", "SiT")
CURVES = Path(__file__).with_name("golden_curves.json")  # losses of steps 1 to 20


def assert_same_curve(ours, expected, steps=50):
    assert sorted(ours) == list(range(1, steps + 1))
    for step, loss in expected.items():
        assert ours[step] == pytest.approx(loss, rel=1e-5), f"step {step}"


@pytest.fixture(scope="module", params=FAMILIES)
def straight(request, program, train_config, tmp_path_factory):
    """One process, 50 steps without a break."""
    run_dir = tmp_path_factory.mktemp(request.param) / "straight"
    config = train_config(request.param)
    program("train.py", config, f"output_dir={run_dir}")
    return request.param, config, run_dir


@pytest.mark.slow
def test_loss_falls(straight):
    _, _, run_dir = straight
    curve = losses(run_dir)
    assert sum(curve[s] for s in range(46, 51)) < 0.9 * sum(curve[s] for s in range(1, 6))


@pytest.mark.slow
def test_the_curve_is_the_stored_one(straight):
    """A change that moves it needs a reason in CHANGELOG.md, and the new curve here."""
    family, _, run_dir = straight
    stored = json.loads(CURVES.read_text())[family]
    curve = losses(run_dir)
    assert [curve[step] for step in range(1, 21)] == pytest.approx(stored, rel=1e-3)


@pytest.mark.slow
def test_two_processes_give_the_same_curve(straight, program, tmp_path):
    _, config, run_dir = straight
    finished = program("train.py", config, f"output_dir={tmp_path}/two", processes=2)
    assert "2 processes x 4 per micro-batch" in finished.stdout
    assert_same_curve(losses(tmp_path / "two"), losses(run_dir))
    first, expected = (logged(folder)[0] for folder in (tmp_path / "two", run_dir))
    assert first["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-6)


@pytest.mark.slow
def test_micro_batches_and_workers_change_nothing(straight, program, tmp_path):
    _, config, run_dir = straight
    program(
        "train.py", config, f"output_dir={tmp_path}/micro", "micro_batch_size=2", "num_workers=2"
    )
    assert_same_curve(losses(tmp_path / "micro"), losses(run_dir))


@pytest.mark.slow
def test_interrupted_and_resumed_is_uninterrupted(straight, program, tmp_path):
    """Stopped after 17 steps, killed beyond 30, and finished by another number of processes."""
    _, config, run_dir = straight
    broken = tmp_path / "broken"
    program("train.py", config, f"output_dir={broken}", "num_steps=17", "log_every=5")
    command = [
        sys.executable,
        "train.py",
        str(config),
        f"output_dir={broken}",
        "checkpoint_every=10",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    killed = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    wait_for(lambda: (broken / "checkpoints" / "step-0000030").exists(), killed)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    program("train.py", config, f"output_dir={broken}", processes=2)
    curve, expected = losses(broken), losses(run_dir)
    for step in range(18, 51):  # the first 17 were logged as means of intervals
        assert curve[step] == pytest.approx(expected[step], rel=1e-5), f"step {step}"
    assert curve[15] == pytest.approx(sum(expected[s] for s in range(11, 16)) / 5, rel=1e-5)
    ours, straight_run = checkpoints.load(broken), checkpoints.load(run_dir)
    assert ours.state.step == straight_run.state.step == 50
    assert ours.state.ema_updates == 50
    for name, weight in straight_run.weights("ema").items():
        difference = (ours.weights("ema")[name] - weight).abs()
        if name.endswith(
            "qkv.bias"
        ):  # the key third has no true gradient; Adam amplifies round-off
            difference = difference.unflatten(0, (3, -1))[[0, 2]]
        assert difference.max() < 1e-5, name


def test_a_signal_ends_the_step_saves_and_exits_with_status_3(program, train_config, tmp_path):
    command = [
        sys.executable, "train.py", str(train_config("SiT")), f"output_dir={tmp_path}/run",
        "num_steps=100000",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    log = tmp_path / "run" / "log.jsonl"
    wait_for(lambda: log.exists() and log.stat().st_size > 0, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 3
    last_logged = json.loads(log.read_text().splitlines()[-1])["step"]
    assert checkpoints.load(tmp_path / "run").state.step == last_logged


def test_the_launcher_with_one_process_is_plain_python(straight, program, tmp_path):
    _, config, run_dir = straight
    program("train.py", config, f"output_dir={tmp_path}/one", "num_steps=3", processes=1)
    expected = losses(run_dir)
    assert losses(tmp_path / "one") == {step: expected[step] for step in (1, 2, 3)}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=1", "seed was 0, is 1"),
        ("attention=softmax", "attention was vca, is softmax"),
        ("global_batch_size=4", "global_batch_size was 8, is 4"),
        ("num_steps=20", "is beyond num_steps = 20"),
        ("resume=never", "holds checkpoints and resume=never"),
    ],
)
def test_a_run_goes_on_as_itself_or_not_at_all(straight, override, message):
    _, config, run_dir = straight
    before = (run_dir / "config.yaml").read_text()
    with pytest.raises(UserError, match=message):
        train([str(config), f"output_dir={run_dir}", override])
    assert (run_dir / "config.yaml").read_text() == before


def test_a_single_process_starts_no_process_group(straight, tmp_path):
    _, config, _ = straight
    train([str(config), f"output_dir={tmp_path}/run", "num_steps=1"])
    assert not torch.distributed.is_initialized()


def test_a_run_starts_by_saying_what_its_network_costs(straight, tmp_path, capsys):
    _, config, _ = straight
    count([str(config)])
    table = capsys.readouterr().out
    assert "vca" in table and "softmax" in table
    train([str(config), f"output_dir={tmp_path}/run", "num_steps=1"])
    assert table in capsys.readouterr().out


def test_the_average_is_saved_and_is_not_the_raw_weights(straight):
    _, _, run_dir = straight
    found = checkpoints.load(run_dir)
    raw, average = found.weights("raw"), found.weights("ema")
    assert raw.keys() == average.keys()
    assert any(not raw[name].equal(average[name]) for name in raw)
    assert raw["pos_embed"].equal(average["pos_embed"])


def wait_for(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the program ended early"
        assert time.monotonic() < deadline
        time.sleep(0.02)
