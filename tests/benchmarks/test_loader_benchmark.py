"""The loader's benchmark at toy size: what it measures and writes. Not how fast."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.loader import LoaderBenchmarkConfig, make_up_latents
from benchmarks.loader import main as loader
from runtime.errors import UserError
from runtime.latents import LatentDataset

SMALL = (
    "num_images=16", "latent_side=4", "num_workers=[0,1]", "batch=8", "batches=2", "rounds=1",
    "memory_batches=20", "memory_batch=4",
)  # fmt: skip


def results(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "results.json").read_text())["results"]


def test_speed_parts_and_memory_are_measured(tmp_path: Path) -> None:
    loader([*SMALL, f"output_dir={tmp_path}"])
    found = results(tmp_path)
    speeds = {r["num_workers"]: r["latents_per_second"] for r in found if "num_workers" in r}
    assert set(speeds) == {0, 1} and min(speeds.values()) > 0
    parts = {r["name"]: r["share"] for r in found if "share" in r}
    assert parts["whole batch"] == 1 and {"read and prove", "posterior"} < set(parts)
    memory = [r for r in found if "workers" in r]
    assert [r["batches"] for r in memory] == [1, 10, 20]
    assert all(r["main"] > 1e6 and r["workers"] > 1e6 for r in memory)


def test_it_reads_a_data_set_that_is_there(tmp_path: Path) -> None:
    config = LoaderBenchmarkConfig(num_images=9, latent_side=2, latent_channels=3, dtype="bfloat16")
    make_up_latents(config, tmp_path / "latents")
    assert LatentDataset(tmp_path / "latents").passport.stored_shape == (6, 2, 2)
    arguments = [*SMALL, f"latents_dir={tmp_path}/latents", f"output_dir={tmp_path}/out"]
    loader([*arguments, "num_workers=[0]", "memory_batches=0"])
    assert results(tmp_path / "out")
    with pytest.raises(UserError, match="9 images, fewer than global_batch_size 10"):
        loader([*arguments, "batch=10"])
