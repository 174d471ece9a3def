"""Writing in the background changes no byte, and no moment leaves a run without a checkpoint."""

import hashlib
import os
import threading
from dataclasses import replace

import pytest
import torch
from test_checkpoint import STATE
from torch import nn

from runtime import checkpoint as checkpoints
from runtime.checkpoint_writer import CheckpointWriter, Snapshot, copied_to_cpu
from runtime.errors import UserError
from runtime.run_folder import (
    checkpoints_dir,
    partial_of,
    remove_leftovers,
    saved_steps,
    step_dir,
    step_of,
)


class Run:
    """A network under AdamW, one optimizer step per call of ``step``."""

    def __init__(self):
        self.network = nn.Linear(4, 3)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=0.1, fused=True)
        self.average = {name: 2 * p for name, p in self.network.state_dict().items()}

    def step(self):
        self.network(torch.ones(4)).sum().backward()
        self.optimizer.step()
        for value in self.average.values():
            value.lerp_(torch.ones_like(value), 0.5)

    def parts(self):
        return self.network.state_dict(), self.average, self.optimizer.state_dict()

    def snapshot(self, step):
        return Snapshot.of(replace(STATE, step=step), *self.parts())


@pytest.fixture
def run():
    torch.manual_seed(0)
    run = Run()
    run.step()
    return run


def steps_in(run_dir):
    return [step_of(folder) for folder in saved_steps(run_dir)]


def hashes(folder):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def test_what_is_written_is_the_step_and_not_what_training_made_of_it(run, tmp_path, monkeypatch):
    """Training goes on, in place, before the first byte is written."""
    checkpoints.save(step_dir(tmp_path / "now", 3), STATE, *run.parts())
    trained, save = threading.Event(), checkpoints.save

    def late(*arguments):
        assert trained.wait(10)
        save(*arguments)

    monkeypatch.setattr(checkpoints, "save", late)
    writer = CheckpointWriter(tmp_path / "later", None, None)
    writer.start(run.snapshot(3))
    run.step()
    trained.set()
    writer.wait()
    assert hashes(step_dir(tmp_path / "later", 3)) == hashes(step_dir(tmp_path / "now", 3))


def test_a_snapshot_shares_no_memory_with_the_run(run):
    ours = list(_tensors(list(run.parts())))
    copies = list(_tensors(copied_to_cpu(list(run.parts()))))
    assert len(copies) == len(ours) > 6
    assert not {t.data_ptr() for t in ours} & {t.data_ptr() for t in copies}
    assert all(a.equal(b) and a.dtype == b.dtype for a, b in zip(ours, copies, strict=True))


def _tensors(tree):
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict | list):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(value)


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "kept"),
    [
        (None, None, [6, 5, 4, 3, 2, 1]),
        (2, None, [6, 5]),
        (1, 2, [6, 4, 2]),
        (2, 5, [6, 5]),
        (9, 1, [6, 5, 4, 3, 2, 1]),
    ],
)
def test_the_last_ones_and_every_so_many_are_kept(run, tmp_path, keep_last, keep_every, kept):
    writer = CheckpointWriter(tmp_path, keep_last, keep_every)
    for step in range(1, 7):
        writer.start(run.snapshot(step))
    writer.wait()
    assert steps_in(tmp_path) == kept
    assert {f.name for f in checkpoints_dir(tmp_path).iterdir()} == {
        step_dir(tmp_path, step).name for step in kept
    }
    assert all(checkpoints.damage(folder) is None for folder in saved_steps(tmp_path))


def test_a_named_checkpoint_stays(run, tmp_path):
    writer = CheckpointWriter(tmp_path, 1, None)
    writer.start(run.snapshot(1))
    writer.wait()
    step_dir(tmp_path, 1).rename(checkpoints_dir(tmp_path) / "best")
    for step in (2, 3):
        writer.start(run.snapshot(step))
    writer.wait()
    assert steps_in(tmp_path) == [3]
    assert checkpoints.load(checkpoints_dir(tmp_path) / "best").state.step == 1


def test_nothing_is_removed_for_a_checkpoint_that_does_not_verify(run, tmp_path, monkeypatch):
    writer = CheckpointWriter(tmp_path, 1, None)
    writer.start(run.snapshot(1))
    writer.wait()
    save = checkpoints.save

    def damaging(folder, *arguments):
        save(folder, *arguments)
        (folder / "ema.safetensors").write_bytes(b"x")

    monkeypatch.setattr(checkpoints, "save", damaging)
    writer.start(run.snapshot(2))
    with pytest.raises(UserError, match=r"step-0000002.*does not verify: ema.safetensors has 1 b"):
        writer.wait()
    assert checkpoints.newest_whole(tmp_path).state.step == 1


def test_a_failure_in_the_background_is_one_line_of_the_next_step(run, tmp_path):
    checkpoints_dir(tmp_path).write_text("a file where the folder should be")
    writer = CheckpointWriter(tmp_path, 1, None)
    writer.raise_failure()
    writer.start(run.snapshot(1))
    with pytest.raises(UserError, match=r"saving .*step-0000001' failed: \w+Error: ") as caught:
        for _ in range(1000):
            threading.Event().wait(0.01)
            writer.raise_failure()
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError):
        writer.start(run.snapshot(2))


def test_no_moment_is_without_a_whole_checkpoint(run, tmp_path, monkeypatch):
    """A kill may come between any two operations on files: each time the newest verifies."""
    writer = CheckpointWriter(tmp_path, 1, None)
    writer.start(run.snapshot(1))
    writer.wait()
    seen = []

    def watch(name):
        operation = getattr(os, name)

        def watched(*arguments, **options):
            operation(*arguments, **options)
            seen.append(checkpoints.newest_whole(tmp_path).state.step)

        monkeypatch.setattr(os, name, watched)

    for name in ("mkdir", "rename", "replace", "fsync", "unlink", "rmdir"):
        watch(name)
    for step in (2, 3):
        writer.start(run.snapshot(step))
        writer.wait()
    assert seen == sorted(seen)
    assert set(seen) == {1, 2, 3}
    assert len(seen) > 30


def test_what_a_kill_left_behind_is_removed_and_nothing_else(run, tmp_path):
    writer = CheckpointWriter(tmp_path, None, None)
    for step in (1, 2):
        writer.start(run.snapshot(step))
    writer.wait()
    partial_of(step_dir(tmp_path, 3)).mkdir()
    step_dir(tmp_path, 1).rename(checkpoints_dir(tmp_path) / ".step-0000001.removed")
    (checkpoints_dir(tmp_path) / "best").mkdir()
    remove_leftovers(tmp_path)
    assert {f.name for f in checkpoints_dir(tmp_path).iterdir()} == {"step-0000002", "best"}
    remove_leftovers(tmp_path / "no run at all")
