"""encode_latents.py gives the same bytes in one process, in two, and after a kill."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from odd_images import DAMAGED, NUM_READABLE, write_odd_images
from programs import ROOT, Program

COMMAND = (
    "encode_latents.py",
    "configs/demo/encode.yaml",
    "mirrored_copies=true",
    "shard_size=100",
)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def expected(program: Program, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("one") / "latents"
    finished = program(*COMMAND, f"latents_dir={folder}")
    assert "1,797 of 1,797 images encoded now" in finished.stdout
    return content(folder)


def test_the_manifest_counts_every_image(expected: dict[str, bytes]) -> None:
    manifest = json.loads(expected["manifest.json"])
    assert manifest["num_images"] == sum(shard["count"] for shard in manifest["shards"]) == 1797
    assert set(expected) == {"manifest.json", *(shard["file"] for shard in manifest["shards"])}
    assert 0.5 < manifest["std"] < 2


def test_two_processes_write_the_same_bytes(
    program: Program, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    program(*COMMAND, f"latents_dir={tmp_path / 'latents'}", processes=2)
    assert content(tmp_path / "latents") == expected


def test_killed_and_started_again_it_writes_the_same_bytes(
    program: Program, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    folder = tmp_path / "latents"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    running = subprocess.Popen(
        [sys.executable, *COMMAND, f"latents_dir={folder}"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    third = folder / "shard-00002.safetensors"
    while not third.exists() and running.poll() is None:
        time.sleep(0.005)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert third.exists() and not (folder / "manifest.json").exists()

    kept = (folder / "shard-00000.safetensors").stat().st_mtime_ns
    damaged = bytearray((folder / "shard-00001.safetensors").read_bytes())
    damaged[-1] ^= 1
    (folder / "shard-00001.safetensors").write_bytes(damaged)
    finished = program(*COMMAND, f"latents_dir={folder}")
    assert "1,797 of 1,797" not in finished.stdout
    kept_shards = int(re.match(r"(\d+) of 18 shards are finished and kept", finished.stdout)[1])
    assert 2 <= kept_shards < 18
    assert (folder / "shard-00000.safetensors").stat().st_mtime_ns == kept
    assert content(folder) == expected


@pytest.fixture(scope="module")
def odd_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_odd_images(tmp_path_factory.mktemp("odd"))


@pytest.fixture
def odd_command(odd_images: Path, tmp_path: Path) -> tuple[str, ...]:
    config = tmp_path / "odd.yaml"
    config.write_text(f"images: {odd_images}\nautoencoder: identity\nimage_size: 8\n")
    return "encode_latents.py", str(config), "shard_size=7"


def test_odd_files_give_the_same_bytes_however_they_are_encoded(
    program: Program, tmp_path: Path, odd_command: tuple[str, ...]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    skipping = (*odd_command, "on_bad_image=skip")
    finished = program(*skipping, f"latents_dir={one}", "batch_size=2", "num_workers=0")
    for name, (_, reason) in DAMAGED.items():
        assert re.search(rf"skipped '{re.escape(name)}': .*{re.escape(reason)}", finished.stdout)
    assert f"{NUM_READABLE} of {NUM_READABLE} images encoded now" in finished.stdout
    program(*skipping, f"latents_dir={two}", processes=2)
    assert content(two) == content(one)
    manifest = json.loads((one / "manifest.json").read_text())
    skipped = [image["name"] for shard in manifest["shards"] for image in shard["skipped"]]
    assert sorted(skipped) == sorted(DAMAGED) and manifest["num_images"] == NUM_READABLE

    (two / "shard-00001.safetensors").unlink()
    finished = program(*skipping, f"latents_dir={two}")
    assert finished.stdout.startswith("5 of 6 shards are finished and kept")
    assert content(two) == content(one)


def test_a_damaged_file_stops_it_by_name(
    program: Program, tmp_path: Path, odd_command: tuple[str, ...]
) -> None:
    finished = program(*odd_command, f"latents_dir={tmp_path / 'latents'}", status=2)
    error = finished.stderr.strip().splitlines()[-1]
    first = min(DAMAGED)
    assert error.startswith(f"error: cannot read the image {first}: ")
    assert DAMAGED[first][1] in error
    assert not (tmp_path / "latents" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("images=/no/such/folder", "no images at '/no/such/folder'"),
        ("autoencoder=/no/such/folder", "autoencoder '/no/such/folder': no such folder"),
        ("image_size=30", "image_size 30 is not a multiple of 4"),
        ("kind=moment", "moments"),
        ("batchsize=3", "batch_size"),
    ],
)
def test_mistakes_cost_one_line_and_write_nothing(
    program: Program, tmp_path: Path, setting: str, message: str
) -> None:
    finished = program(*COMMAND, f"latents_dir={tmp_path / 'latents'}", setting, status=2)
    error = finished.stderr.strip().splitlines()
    assert error[-1].startswith("error: ") and message in error[-1]
    assert not list(tmp_path.iterdir())
