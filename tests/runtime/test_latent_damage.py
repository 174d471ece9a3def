"""No byte of a latent data set changes unnoticed: who reads it and who verifies it says where."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_latents import CLASS_NAMES, NUM_IMAGES, SHARD_SIZE

from runtime.autoencoder import AutoencoderIdentity
from runtime.batches import training_loader
from runtime.errors import UserError
from runtime.latents import LatentDataset
from runtime.passport import MANIFEST, Passport
from runtime.shard_proof import measure_shard
from runtime.shards import write_shard
from tools.latents import main

FIRST, SHARD, LAST = (f"shard-{number:05d}.safetensors" for number in range(3))
LATENTS = ("moments", "moments_mirrored")
TENSORS = ("crc", "id", "label", *LATENTS)


@pytest.fixture
def latents(make_latents: Any) -> Path:
    return make_latents()


def read_everything(folder: Path) -> None:
    """As training does, sooner or later."""
    dataset = LatentDataset(folder)
    everything = np.arange(len(dataset))
    for mirrored in (False, True):
        dataset.read(everything, np.full(len(dataset), mirrored))


def verify(folder: Path) -> None:
    main(["verify", str(folder)])


def refusal(action: Callable[[Path], None], folder: Path) -> str:
    with pytest.raises(UserError) as raised:
        action(folder)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def flip(path: Path, place: int, bits: int = 0x10) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= bits
    path.write_bytes(content)


def places(path: Path) -> dict[str, range]:
    """Where the parts of a shard lie."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    text = content[8 : 8 + length]
    written = len(text.rstrip())
    header = json.loads(text)
    parts = {"length": range(8), "header": range(8, 8 + written)}
    if written < length:
        parts["padding"] = range(8 + written, 8 + length)
    for name in TENSORS:
        start, end = header[name]["data_offsets"]
        parts[name] = range(8 + length + start, 8 + length + end)
    return parts


# --- a flipped byte ---------------------------------------------------------------------------


def test_the_parts_are_the_whole_file(latents: Path) -> None:
    covered = sorted(place for part in places(latents / SHARD).values() for place in part)
    assert covered == list(range((latents / SHARD).stat().st_size))


@pytest.mark.parametrize("action", [read_everything, verify])
@pytest.mark.parametrize("part", ["length", "header", *TENSORS])
def test_a_flipped_byte_is_refused_anywhere(
    latents: Path, part: str, action: Callable[[Path], None]
) -> None:
    where = places(latents / SHARD)[part]
    for place in (where[0], where[len(where) // 2], where[-1]):
        flip(latents / SHARD, place)
        assert SHARD in refusal(action, latents), place
        flip(latents / SHARD, place)
    action(latents)


def test_so_is_one_in_every_byte_of_the_header(latents: Path) -> None:
    where = places(latents / SHARD)
    end = where["padding"].stop if "padding" in where else where["header"].stop
    for place in range(0, end, 3):
        flip(latents / SHARD, place, 1 << place % 8)
        assert SHARD in refusal(LatentDataset, latents), place
        flip(latents / SHARD, place, 1 << place % 8)


@pytest.mark.parametrize("part", TENSORS)
def test_verify_names_the_record(latents: Path, part: str) -> None:
    where = places(latents / SHARD)[part]
    for record in range(SHARD_SIZE):
        place = where[len(where) // SHARD_SIZE * record]
        flip(latents / SHARD, place)
        assert f"record {record} (id " in refusal(verify, latents)
        flip(latents / SHARD, place)


@pytest.mark.parametrize("part", LATENTS)
def test_reading_names_the_record_and_what_to_do(latents: Path, part: str) -> None:
    where = places(latents / SHARD)[part]
    flip(latents / SHARD, where[-1])
    message = refusal(read_everything, latents)
    assert f"record 3 (id {2 * SHARD_SIZE - 1})" in message
    assert f"python -m tools.latents verify {latents}" in message
    assert ("mirrored" in message) == (part == "moments_mirrored")


def test_only_what_is_read_is_refused(latents: Path) -> None:
    """The others of a shard with one damaged record are sound."""
    flip(latents / SHARD, places(latents / SHARD)["moments"][0])
    dataset = LatentDataset(latents)
    for index in set(range(NUM_IMAGES)) - {SHARD_SIZE}:
        dataset.record(index)
    dataset.record(SHARD_SIZE, mirrored=True)
    with pytest.raises(UserError, match=rf"{SHARD}: record 0 \(id {SHARD_SIZE}\)"):
        dataset.record(SHARD_SIZE)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_refuses_in_one_line(latents: Path, num_workers: int) -> None:
    flip(latents / SHARD, places(latents / SHARD)["moments_mirrored"][-1])
    loader = training_loader(
        LatentDataset(latents), seed=0, global_batch_size=4, num_processes=1, process_index=0,
        micro_batch_size=4, first_step=0, num_steps=100, mirror=True, num_workers=num_workers,
    )  # fmt: skip
    message = refusal(lambda folder: list(loader) and None, latents)
    assert SHARD in message and f"id {2 * SHARD_SIZE - 1}" in message


def test_a_changed_manifest_is_refused_or_says_the_same(latents: Path) -> None:
    """Any of its bytes; a blank between two words carries nothing."""
    path = latents / MANIFEST
    expected, size = Passport.load(path), path.stat().st_size
    refused = 0
    for place in range(size):
        flip(path, place, 1 << place % 7)
        try:
            assert Passport.load(path) == expected, place
        except UserError as error:
            assert str(path) in str(error)
            refused += 1
        flip(path, place, 1 << place % 7)
    assert refused > size / 2


@pytest.mark.parametrize(
    "change",
    [
        {"num_images": NUM_IMAGES + 1},
        {"label_histogram": [4, 4, 2]},
        {"class_names": ["bee", "ant", "cat"]},
        {"std": 1.0},
        {"scaling": {"factor": 1.0, "shift": 0.25, "mean": [], "std": []}},
        {"sha256": "0" * 64},
        {"shards": []},
    ],
)
@pytest.mark.parametrize("action", [read_everything, verify])
def test_no_statement_of_the_manifest_can_be_changed(
    latents: Path, change: dict[str, object], action: Callable[[Path], None]
) -> None:
    path = latents / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert f"{path} was changed after it was written" in refusal(action, latents)


# --- a manifest that agrees with itself, and not with the shards --------------------------------


def restate(folder: Path, **changes: Any) -> None:
    """Writes the manifest anew, with these changes and a hash that fits."""
    replace(Passport.load(folder / MANIFEST), **changes).save(folder / MANIFEST)


def name_in_manifest(folder: Path, number: int) -> None:
    """Makes the manifest state the hashes of a shard as it is now."""
    passport = Passport.load(folder / MANIFEST)
    shards = list(passport.shards)
    measure = measure_shard(folder / shards[number].file, passport)
    shards[number] = replace(
        shards[number], sha256=measure.sha256, index_sha256=measure.index_sha256
    )
    restate(folder, shards=tuple(shards))


def rewrite(folder: Path, file: str, num_records: int | None = None, **changes: Any) -> None:
    """Writes a shard anew, sound in itself, with other labels or ids or fewer records."""
    content = load_file(folder / file)
    content = {name: tensor[:num_records].clone() for name, tensor in content.items()} | changes
    passport = Passport.load(folder / MANIFEST)
    passport = replace(passport, class_names=(*CLASS_NAMES, "one more"))
    (folder / file).unlink()
    latents = {name: content[name] for name in LATENTS}
    write_shard(folder / file, passport, latents, content["label"], content["id"])


@pytest.mark.parametrize("action", [read_everything, verify])
class TestNamed:
    """Each of these is refused by training and by verify, by name."""

    def test_missing_shard(
        self, latents: Path, action: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        (latents / LAST).unlink()
        said = refusal(action, latents) + capsys.readouterr().out
        assert "10 images expected, 8 found, 2 missing" in said and f"{LAST} is gone" in said

    def test_extra_shard(self, latents: Path, action: Callable[[Path], None]) -> None:
        shutil.copy(latents / LAST, latents / "shard-00003.safetensors")
        assert "shard-00003.safetensors is no part of" in refusal(action, latents)

    def test_exchanged_shards(self, latents: Path, action: Callable[[Path], None]) -> None:
        (latents / FIRST).rename(latents / "aside")
        (latents / SHARD).rename(latents / FIRST)
        (latents / "aside").rename(latents / SHARD)
        assert FIRST in refusal(action, latents)

    @pytest.mark.parametrize("kept", [0, 5, 200, -100, -1])
    def test_file_cut_short(self, latents: Path, action: Callable[[Path], None], kept: int) -> None:
        content = (latents / SHARD).read_bytes()
        (latents / SHARD).write_bytes(content[:kept])
        message = refusal(action, latents)
        assert SHARD in message and "cut short" in message

    def test_file_with_something_appended(
        self, latents: Path, action: Callable[[Path], None]
    ) -> None:
        with (latents / SHARD).open("ab") as file:
            file.write(b"\0")
        assert SHARD in refusal(action, latents)

    def test_fewer_records(
        self, latents: Path, action: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        rewrite(latents, FIRST, num_records=3)
        said = refusal(action, latents) + capsys.readouterr().out
        assert "10 images expected, 9 found, 1 missing" in said and f"{FIRST} has 3 of 4" in said

    def test_id_that_is_there_twice(
        self, latents: Path, action: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        rewrite(latents, LAST, id=torch.tensor([8, 1]))
        for _ in range(2):
            said = refusal(action, latents) + capsys.readouterr().out
            assert f"id 1 more than once: in {FIRST} and {LAST}" in said
            name_in_manifest(latents, 2)

    def test_label_outside_the_classes(self, latents: Path, action: Callable[[Path], None]) -> None:
        rewrite(latents, LAST, label=torch.tensor([2, 3]))
        message = refusal(action, latents)
        assert f"{LAST}: record 1 (id 9) has label 3" in message and "are 0 to 2" in message

    def test_label_of_another_class(self, latents: Path, action: Callable[[Path], None]) -> None:
        rewrite(latents, LAST, label=torch.tensor([0, 1]))
        assert LAST in refusal(action, latents)
        name_in_manifest(latents, 2)
        assert "images with label" in refusal(action, latents)

    def test_shard_of_another_autoencoder(
        self, latents: Path, make_latents: Any, action: Callable[[Path], None]
    ) -> None:
        identity = AutoencoderIdentity("another/autoencoder", None, "1" * 64)
        other = make_latents("other", autoencoder=identity)
        shutil.copy(other / SHARD, latents / SHARD)
        expected = f"{SHARD} is of another data set: its autoencoder is {'1' * 64} instead of 0000"
        assert expected in refusal(action, latents)
        theirs = Passport.load(other / MANIFEST).shards[1]
        shards = list(Passport.load(latents / MANIFEST).shards)
        restate(latents, shards=(shards[0], theirs, shards[2]))
        assert expected in refusal(action, latents)

    def test_other_counts_than_stated(self, latents: Path, action: Callable[[Path], None]) -> None:
        restate(latents, label_histogram=(4, 2, 4))
        assert "images with label" in refusal(action, latents)
        restate(latents, num_images=NUM_IMAGES + 1)
        assert "11 images expected, 10 found, 1 missing" in refusal(action, latents)


def test_verify_finds_hashes_and_statistics_that_are_not_those_of_the_latents(
    latents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passport = Passport.load(latents / MANIFEST)
    shards = [replace(shard, sha256="0" * 64) for shard in passport.shards]
    restate(latents, shards=(passport.shards[0], shards[1], passport.shards[2]))
    assert f"{SHARD} is not the file" in refusal(verify, latents)
    restate(latents, shards=passport.shards, std=1.01 * passport.std)
    assert "std is" in refusal(verify, latents)


# --- while it is being read -------------------------------------------------------------------


def test_a_file_that_is_cut_short_meanwhile_ends_in_one_line(latents: Path) -> None:
    dataset = LatentDataset(latents)
    dataset.record(SHARD_SIZE)
    (latents / SHARD).write_bytes((latents / SHARD).read_bytes()[:-600])
    with pytest.raises(UserError, match=rf"{SHARD}: .*record 3 \(id 7\) is damaged"):
        dataset.record(SHARD_SIZE + 3, mirrored=True)


def test_a_file_that_is_gone_meanwhile_ends_in_one_line(latents: Path) -> None:
    dataset = LatentDataset(latents)
    (latents / SHARD).unlink()
    with pytest.raises(UserError, match=f"{SHARD} cannot be read"):
        dataset.record(SHARD_SIZE)
