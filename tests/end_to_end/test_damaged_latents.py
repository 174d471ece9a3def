"""A damaged record ends training in one line with status 2, whichever process meets it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Program


@pytest.mark.parametrize(("processes", "num_workers"), [(0, 2), (2, 1)])
def test_a_damaged_record_costs_one_line(
    program: Program,
    train_config: Callable[[str], Path],
    latents: Path,
    tmp_path: Path,
    processes: int,
    num_workers: int,
) -> None:
    """Met on the way by a worker of one process: the mirrored copy of the last of 27 images."""
    damaged = shutil.copytree(latents, tmp_path / "latents")
    (shard,) = damaged.glob("*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    finished = program(
        "train.py", train_config("SiT"), f"output_dir={tmp_path}/run", f"latents_dir={damaged}",
        "mirror=true", f"num_workers={num_workers}", processes=processes, status=None,
    )  # fmt: skip
    ours, _, launchers = finished.stderr.partition("Traceback")  # accelerate's launcher has one
    assert f"{shard}: the mirrored copy of record 26 (id 26) is damaged; python -m tools" in ours
    if processes:
        assert finished.returncode != 0 and "commands/launch.py" in launchers.splitlines()[-3]
        assert "returned non-zero exit status 2" in launchers
        assert "another process ended, see its error" in ours or ours.count("is damaged") == 2
    else:
        assert finished.returncode == 2 and not launchers
        assert ours.count("\nerror: ") == 1
