"""docs/data.md is right about sizes, keys of the manifest, and its ten lines."""

import re
from pathlib import Path

import pytest
import torch

from runtime.latents import LatentDataset
from runtime.passport import Passport
from tools.latents import main as latents_tool

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
NUM_IMAGES = 1_281_167


def sizes() -> list[tuple[str, str]]:
    """Latent shape, and the four sizes in GB, of each row of the table."""
    return re.findall(r"^\| \d+ px \| (\d+ x \d+ x \d+) \(.*?\) \| (.*) \|$", PAGE, re.MULTILINE)


def test_the_table_has_rows() -> None:
    assert len(sizes()) == 8


@pytest.mark.parametrize(("shape", "stated"), sizes())
def test_a_size_is_that_of_its_bytes(shape: str, stated: str) -> None:
    values = 1
    for length in shape.split(" x "):
        values *= int(length)
    for versions, size in zip((4, 2, 2, 1), stated.split(" | "), strict=True):
        if size != "-":
            assert float(size) == pytest.approx(NUM_IMAGES * values * versions * 2 / 1e9, abs=0.06)


def test_it_names_every_key_of_the_manifest(make_latents) -> None:
    passport = LatentDataset(make_latents()).passport
    keys = {*passport.to_json(), *passport.to_json()["shards"][0]}
    assert {key for key in keys if f"`{key}`" not in PAGE} <= {"shards", "format_version"}


def test_the_ten_lines_write_a_sound_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    latents_tool(["verify", "data/mine"])
    assert "3,000 images in 3 shards, all sound" in capsys.readouterr().out
    dataset = LatentDataset(Path("data/mine"))
    assert (
        isinstance(dataset.passport, Passport) and dataset.passport.label_histogram == (300,) * 10
    )
    for index in (0, 1024, 2999):
        record = dataset.record(index)
        assert (record.label, record.id) == (index % 10, index)
        assert torch.equal(record.values, names["latents"][index])
