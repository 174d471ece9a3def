"""contrast.jsonl: what it holds, when it exists, and that a run does not notice it."""

import json
import math
import shutil

import pytest
import torch
from programs import logged

from runtime import checkpoint as checkpoints
from train import main as train


def entries(run_dir):
    return [json.loads(line) for line in (run_dir / "contrast.jsonl").read_text().splitlines()]


def curve(run_dir):
    return [(entry["step"], entry["loss"], entry["grad_norm"]) for entry in logged(run_dir)]


@pytest.mark.parametrize("family", ["DiT", "SiT"])
def test_a_run_that_is_looked_at_stays_the_same_bit_for_bit(train_config, tmp_path, family):
    """Also where the network draws random numbers of its own."""
    for every in ("1", "null"):
        torch.manual_seed(0)  # of the dropout
        train([
            str(train_config(family)), f"output_dir={tmp_path}/{every}", "num_steps=4",
            f"contrast_every={every}", "vca.proj_drop=0.2", "micro_batch_size=4",
        ])  # fmt: skip
    assert len(curve(tmp_path / "1")) == 4
    assert curve(tmp_path / "1") == curve(tmp_path / "null")
    ours, expected = (checkpoints.load(tmp_path / every).weights("ema") for every in ("1", "null"))
    assert all(weight.equal(expected[name]) for name, weight in ours.items())
    assert [entry["step"] for entry in entries(tmp_path / "1")] == [1, 2, 3, 4]
    assert not (tmp_path / "null" / "contrast.jsonl").exists()


def test_the_recorded_lambda_is_that_of_the_saved_weights(train_config, tmp_path):
    train([str(train_config("SiT")), f"output_dir={tmp_path}/run", "num_steps=3", "lr=0.05"])
    (entry,) = entries(tmp_path / "run")  # 1000 steps apart, and at the end
    assert entry["step"] == 3
    weights = checkpoints.load(tmp_path / "run").weights("raw")
    for block in (0, 1):
        for stage in ("stage1", "stage2"):
            prefix = f"blocks.{block}.attn.{stage}.lambda_weights"
            q1, k1, q2, k2 = (
                weights[f"{prefix}.{name}"].double() for name in ("q1", "k1", "q2", "k2")
            )
            start = 0.8 - 0.6 * math.exp(-0.3 * block)
            expected = float((q1 @ k1).exp() - (q2 @ k2).exp()) + start
            found = entry[f"block{block:02}"][stage]
            assert found["lambda"] == pytest.approx(expected, abs=1e-6)
            assert found["lambda_init"] == pytest.approx(start)


def test_a_resumed_run_holds_each_step_once_and_may_look_more_often(train_config, tmp_path):
    run_dir = tmp_path / "run"
    command = [str(train_config("SiT")), f"output_dir={run_dir}", "checkpoint_every=2"]
    train([*command, "num_steps=5", "contrast_every=2"])
    assert [entry["step"] for entry in entries(run_dir)] == [2, 4, 5]
    shutil.rmtree(run_dir / "checkpoints" / "step-0000005")
    shutil.rmtree(run_dir / "checkpoints" / "step-0000004")
    with (run_dir / "contrast.jsonl").open("a") as file:
        file.write('{"step": 6, "blo')  # killed while it wrote
    train([*command, "num_steps=5", "contrast_every=1"])
    assert [entry["step"] for entry in entries(run_dir)] == [2, 3, 4, 5]
    assert [entry["step"] for entry in logged(run_dir)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("attention", "stages"),
    [("differential", ["heads"]), ("vca_split", ["stage1", "stage2"]), ("softmax", None)],
)
def test_only_layers_with_contrast_write(train_config, tmp_path, attention, stages):
    run_dir = tmp_path / "run"
    train([
        str(train_config("SiT")), f"output_dir={run_dir}", "num_steps=1", f"attention={attention}"
    ])  # fmt: skip
    if stages is None:
        assert not (run_dir / "contrast.jsonl").exists()
        return
    (entry,) = entries(run_dir)
    assert list(entry) == ["step", "block00", "block01"]
    assert list(entry["block01"]) == stages


def test_tensorboard_has_a_curve_per_block_stage_and_quantity(train_config, tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run_dir = tmp_path / "run"
    train([
        str(train_config("SiT")), f"output_dir={run_dir}", "num_steps=2", "contrast_every=1",
        "tracker.tensorboard=true",
    ])  # fmt: skip
    events = accumulators.EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    curve = events.Scalars("contrast/block01/stage2/positive_share")
    written = [entry["block01"]["stage2"]["positive_share"] for entry in entries(run_dir)]
    assert [point.step for point in curve] == [1, 2]
    assert [point.value for point in curve] == pytest.approx(written, rel=1e-6)
