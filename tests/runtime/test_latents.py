"""A latent data set comes back as it was written, and is continued by the same plan alone."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file
from tiny_latents import CLASS_NAMES, NUM_IMAGES, SHARD_SIZE, draft, mean_of

from runtime.errors import UserError
from runtime.latent_writer import DRAFT, LatentWriter
from runtime.latents import LatentDataset
from runtime.open_files import OpenFiles
from runtime.passport import FORMAT_VERSION, MANIFEST, Passport
from runtime.scaling import Scaling
from runtime.shard_proof import is_proven

FIRST = "shard-00000.safetensors"


@pytest.fixture
def latents(make_latents: Any) -> Path:
    return make_latents()


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_passport_round_trip() -> None:
    for passport in (draft(), draft(scaling=None), draft(mean=0.1, std=1 / 3)):
        text = json.dumps(passport.to_json())
        assert Passport.from_json(json.loads(text)) == passport


def test_records_come_back_as_written(latents: Path) -> None:
    dataset = LatentDataset(latents)
    assert len(dataset) == NUM_IMAGES
    for index in (0, SHARD_SIZE - 1, SHARD_SIZE, NUM_IMAGES - 1):
        record, mirrored = dataset.record(index), dataset.record(index, mirrored=True)
        assert (record.id, record.label) == (index, index % len(CLASS_NAMES))
        assert torch.equal(record.values[:2], mean_of(index, dataset.passport))
        assert torch.equal(mirrored.values, record.values.flip(-1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["moments", "latents"])
def test_every_kind_and_dtype(make_latents: Any, kind: str, dtype: str) -> None:
    folder = make_latents(kind=kind, dtype=dtype, mirrored_copies=False)
    dataset = LatentDataset(folder)
    record = dataset.record(7)
    assert record.values.dtype == getattr(torch, dtype)
    mean = mean_of(7, dataset.passport).to(record.values.dtype)
    assert torch.equal(record.values[:2], mean)
    assert len(record.values) == (4 if kind == "moments" else 2)


def test_a_dataset_may_be_sent_to_another_process(latents: Path) -> None:
    dataset = LatentDataset(latents)
    here = dataset.record(5)
    there = pickle.loads(pickle.dumps(dataset)).record(5)
    assert torch.equal(here.values, there.values)


def test_statistics_are_those_of_what_a_network_sees(make_latents: Any) -> None:
    log_variance = -1.0
    passport = LatentDataset(make_latents(log_variance=log_variance)).passport
    means = torch.stack([mean_of(i, passport) for i in range(NUM_IMAGES)]).double()
    seen = passport.scaling.normalise(means)
    posterior = (passport.scaling.factor**2) * torch.tensor(log_variance).exp()
    assert passport.mean == pytest.approx(float(seen.mean()), abs=1e-6)
    variance = float(seen.var(correction=0) + posterior)
    assert passport.std == pytest.approx(variance**0.5, rel=1e-6)


def test_measured_scaling_makes_every_channel_standard(make_latents: Any) -> None:
    passport = LatentDataset(make_latents(log_variance=-30.0, scaling=None)).passport
    means = torch.stack([mean_of(i, passport) for i in range(NUM_IMAGES)]).double()
    seen = passport.scaling.normalise(means)
    torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(2).double(), rtol=0, atol=1e-6)
    spread = seen.std((0, 2, 3), correction=0)
    torch.testing.assert_close(spread, torch.ones(2).double(), rtol=1e-5, atol=0)
    assert passport.std == pytest.approx(1)


def test_reading_takes_any_order_and_both_versions_at_once(latents: Path) -> None:
    dataset = LatentDataset(latents)
    indices, mirrored = np.array([9, 0, 4, 4, 3]), np.array([True, False, False, True, True])
    read = dataset.read(indices, mirrored)
    for values, index, mirror in zip(read, indices.tolist(), mirrored.tolist(), strict=True):
        assert torch.equal(values, dataset.record(index, mirror).values)


def test_reading_leaves_nothing_behind(latents: Path) -> None:
    """Storage that cannot be written to will do."""
    paths = [latents, *latents.iterdir()]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = [(path.stat().st_mtime_ns, path.stat().st_size) for path in paths]
    dataset = LatentDataset(latents)
    dataset.read(np.arange(NUM_IMAGES), np.ones(NUM_IMAGES, bool))
    assert sorted(latents.iterdir()) == sorted(paths[1:])
    assert [(path.stat().st_mtime_ns, path.stat().st_size) for path in paths] == before
    latents.chmod(0o755)


def test_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(20)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number, number + 100]))
    files, process = OpenFiles(limit=3), psutil.Process()
    before, buffer = process.num_fds(), bytearray(1)
    for number in (*range(20), 19, 3, 3, *reversed(range(20))):
        assert files.read_into(memoryview(buffer), paths[number], 1) == 1
        assert buffer[0] == number + 100
        assert process.num_fds() <= before + 3
    del files
    assert process.num_fds() == before


# --- not a data set ---------------------------------------------------------------------------


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as raised:
        LatentDataset(folder)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_missing_folder(tmp_path: Path) -> None:
    assert "no such folder" in refusal(tmp_path / "nowhere")


def test_missing_manifest(latents: Path) -> None:
    (latents / MANIFEST).unlink()
    assert MANIFEST in refusal(latents)


def test_another_shape_or_dtype_than_the_manifest_says(latents: Path) -> None:
    passport = Passport.load(latents / MANIFEST)
    replace(passport, latent_shape=(2, 4, 3)).save(latents / MANIFEST)
    assert FIRST in refusal(latents)
    replace(passport, dtype="float16").save(latents / MANIFEST)
    assert '"F32"' in refusal(latents) and '"F16"' in refusal(latents)


def test_latents_of_an_older_format_are_to_be_encoded_again(latents: Path) -> None:
    change_manifest(latents, format_version=1)
    expected = f"format version 1, but this program reads {FORMAT_VERSION}; encode again"
    assert expected in refusal(latents)


def test_manifest_that_says_too_little(latents: Path) -> None:
    values = json.loads((latents / MANIFEST).read_text())
    del values["scaling"]
    (latents / MANIFEST).write_text(json.dumps(values))
    assert "no scaling" in refusal(latents)


# --- the proof of a shard, and continuing ------------------------------------------------------


def test_one_flipped_bit_anywhere_breaks_the_proof(latents: Path) -> None:
    passport, path = LatentDataset(latents).passport, latents / FIRST
    assert is_proven(path, passport)
    content = bytearray(path.read_bytes())
    for position in range(0, len(content), 41):
        content[position] ^= 1
        path.write_bytes(content)
        assert not is_proven(path, passport), position
        content[position] ^= 1


def test_shard_of_another_recipe_is_no_proof(latents: Path) -> None:
    passport = LatentDataset(latents).passport
    other = replace(passport, autoencoder=replace(passport.autoencoder, sha256="1" * 64))
    assert is_proven(latents / FIRST, passport) and not is_proven(latents / FIRST, other)


def test_a_finished_data_set_is_continued_by_the_same_plan_alone(latents: Path) -> None:
    before = (latents / MANIFEST).read_bytes()
    writer = LatentWriter(latents, draft())
    assert all(writer.has(shard) for shard in range(3))
    writer.finish([writer.measure(shard) for shard in range(3)])
    assert (latents / MANIFEST).read_bytes() == before
    with pytest.raises(UserError, match="image_size is 64 instead of 32"):
        LatentWriter(latents, draft(image_size=64))
    with pytest.raises(UserError, match=r"scaling is .* instead of"):
        LatentWriter(latents, draft(scaling=Scaling(factor=0.7)))


def test_an_unfinished_data_set_is_continued_by_the_same_plan_alone(tmp_path: Path) -> None:
    LatentWriter(tmp_path / "new", draft())
    assert (tmp_path / "new" / DRAFT).exists()
    LatentWriter(tmp_path / "new", draft())
    with pytest.raises(UserError, match="kind is latents instead of moments"):
        LatentWriter(tmp_path / "new", draft(kind="latents"))


def test_a_folder_of_other_things_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        LatentWriter(tmp_path, draft())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_undefined_latents_are_found(latents: Path) -> None:
    content = load_file(latents / FIRST)
    values = {name: content[name].clone() for name in ("moments", "moments_mirrored")}
    values["moments"][2, 0, 0, 0] = float("nan")
    writer = LatentWriter(latents, draft())
    writer.write(0, values, content["label"], content["id"])
    with pytest.raises(UserError, match="image with id 2 has undefined moments"):
        writer.measure(0)
