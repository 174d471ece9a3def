"""A Hugging Face data set reads row by row, with the labels that it states."""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value
from datasets import disable_progress_bars as silence
from PIL import Image as Pillow

from runtime.errors import UserError
from runtime.hub_images import HubConfig
from runtime.image_source import BadImageError
from runtime.sources import open_source

silence()
PICTURES = [np.full((4 + i, 5, 3), 40 * i, np.uint8) for i in range(5)]
NAMED = ClassLabel(names=["zebra", "ant", "unused"])


def table(label: Any, labels: list[Any], **more: Any) -> Dataset:
    columns = {"picture": [Pillow.fromarray(pixels) for pixels in PICTURES], "kind": labels}
    features = Features({"picture": Image(), "kind": label} | {name: Image() for name in more})
    return Dataset.from_dict(columns | more, features=features)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    table(NAMED, [0, 1, 1, 0, 1]).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


def opened(path: Path, **settings: str) -> Any:
    return open_source(f"hf:{path}", HubConfig(**settings))


def refusal(path: Path, **settings: str) -> str:
    with pytest.raises(UserError) as raised:
        opened(path, **settings)
    return str(raised.value)


def test_rows_keep_order_labels_and_pixels(saved: Path) -> None:
    source = opened(saved)
    assert list(source.class_names) == ["zebra", "ant", "unused"]
    assert source.labels.tolist() == [0, 1, 1, 0, 1]
    again = pickle.loads(pickle.dumps(source))
    for index, pixels in enumerate(PICTURES):
        np.testing.assert_array_equal(np.asarray(source.read(index)), pixels)
        np.testing.assert_array_equal(np.asarray(again.read(index)), pixels)


@pytest.mark.parametrize(
    ("kind", "labels", "class_names", "numbers"),
    [
        (Value("int64"), [2, 0, 0, 2, 4], ["0", "1", "2", "3", "4"], [2, 0, 0, 2, 4]),
        (Value("string"), ["b", "a", "c", "a", "b"], ["a", "b", "c"], [1, 0, 2, 0, 1]),
    ],
)
def test_columns_without_a_class_list_are_labels_when_named(
    tmp_path: Path, kind: Any, labels: list[Any], class_names: list[str], numbers: list[int]
) -> None:
    table(kind, labels).save_to_disk(tmp_path / "saved")
    source = opened(tmp_path / "saved", label="kind")
    assert (list(source.class_names), source.labels.tolist()) == (class_names, numbers)
    assert "give hf.label=COLUMN, one of: picture (Image), kind (Value)" in refusal(
        tmp_path / "saved"
    )


def test_one_of_several_splits_has_to_be_named(tmp_path: Path) -> None:
    rows = table(NAMED, [0, 1, 1, 0, 1])
    parts = DatasetDict({"train": rows, "test": rows.select([4, 2])})
    parts.save_to_disk(tmp_path / "parts")
    source = opened(tmp_path / "parts", split="test")
    assert source.labels.tolist() == [1, 1] and source.read(0).size == (5, 8)
    for split in ({}, {"split": "validation"}):
        assert "has: train, test" in refusal(tmp_path / "parts", **split)


def test_a_folder_of_images_is_read_by_its_own_classes(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "files" / name).mkdir(parents=True)
        Pillow.fromarray(PICTURES[0]).save(tmp_path / "files" / name / "1.png")
    source = opened(tmp_path / "files")
    assert (list(source.class_names), source.labels.tolist()) == (["cat", "dog"], [0, 1])
    np.testing.assert_array_equal(np.asarray(source.read(1)), PICTURES[0])


def test_columns_that_do_not_fit_are_refused_by_name(saved: Path, tmp_path: Path) -> None:
    assert "hf.image = kind is no image column" in refusal(saved, image="kind")
    assert "hf.label = class is no label column" in refusal(saved, label="class")
    assert "hf.split = train, but" in refusal(saved, split="train")
    table(NAMED, [0] * 5, other=[None] * 5).save_to_disk(tmp_path / "two")
    assert "2 columns of type Image: give hf.image=COLUMN" in refusal(tmp_path / "two")
    assert len(opened(tmp_path / "two", image="picture")) == 5
    table(NAMED, [0, -1, 0, 0, 0]).save_to_disk(tmp_path / "unlabelled")
    assert "-1 to 0, which are no labels of 3 classes" in refusal(tmp_path / "unlabelled")


def test_rows_without_a_whole_image_are_named(tmp_path: Path) -> None:
    table(NAMED, [0] * 5, other=[None, *[{"bytes": b"x", "path": None}] * 4]).save_to_disk(
        tmp_path / "holes"
    )
    source = opened(tmp_path / "holes", image="other")
    for index, reason in ((0, "row 0: the row has no image"), (1, "row 1: its content is no")):
        with pytest.raises(BadImageError, match=reason):
            source.read(index)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot load the data set" in refusal(tmp_path / "nowhere")
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install datasets" in refusal(tmp_path / "nowhere")
