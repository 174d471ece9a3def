"""Odd files become what they show, or are refused for a reason that is the same in every run."""

from pathlib import Path

import numpy as np
import pytest
from odd_images import DAMAGED, NUM_READABLE, READABLE, write_odd_images

from runtime.errors import UserError
from runtime.image_source import BadImageError, ImageSource
from runtime.sources import open_source


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageSource:
    return open_source(str(write_odd_images(tmp_path_factory.mktemp("odd"))))


def number(source: ImageSource, name: str) -> int:
    return list(source.names).index(name)


def test_every_image_is_listed_and_nothing_else(source: ImageSource) -> None:
    expected = {*READABLE, *DAMAGED, "a/link.png", "linked/inside.png"}
    assert sorted(source.names) == sorted(expected)
    assert list(source.class_names) == ["a", "b", "folder.png", "linked"]


@pytest.mark.parametrize("name", READABLE)
def test_an_odd_file_becomes_what_it_shows(source: ImageSource, name: str) -> None:
    shown = np.asarray(source.read(number(source, name))).astype(int)
    lossy = name.lower().endswith((".jpg", ".jpeg")) or name == "b/jpeg_named.gif"
    expected = READABLE[name][1]
    assert shown.shape == expected.shape
    assert np.abs(shown - expected).max() <= (4 if lossy else 0)
    assert source.square(number(source, name), 8).size == (8, 8)


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_for_a_repeatable_reason(source: ImageSource, name: str) -> None:
    reasons = []
    for _ in range(2):
        with pytest.raises(BadImageError) as raised:
            source.square(number(source, name), 8)
        assert raised.value.name == name and name in str(raised.value)
        reasons.append(raised.value.reason)
    assert reasons[0] == reasons[1] and DAMAGED[name][1] in reasons[0]
    assert "0x" not in reasons[0] and "/" not in reasons[0].replace("/O", "")


def test_what_cannot_be_had_is_no_damaged_image(tmp_path: Path) -> None:
    """A disk that is gone must not be skipped as if its images were bad."""
    write_odd_images(tmp_path / "odd")
    source = open_source(str(tmp_path / "odd"))
    (tmp_path / "odd" / "a" / "rgb.png").unlink()
    for name in ("a/rgb.png", "a/link.png"):  # a link to nothing is no better
        with pytest.raises(UserError, match="No such file") as raised:
            source.read(number(source, name))
        assert not isinstance(raised.value, BadImageError)


def test_the_order_of_the_files_does_not_matter(source: ImageSource, tmp_path: Path) -> None:
    other = open_source(str(write_odd_images(tmp_path / "odd", lambda names: names[::-1])))
    assert list(other.names) == list(source.names) and other.sha256 == source.sha256
    assert len(source) == NUM_READABLE + len(DAMAGED)
