"""Images have the same names, labels and pixels wherever they are read from."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runtime.errors import UserError
from runtime.image_source import BadImageError
from runtime.sources import Digits, open_source

FILES = ("b/2.png", "b/10.png", "a/x.PNG", "a/deep/c/y.jpg", "z/._2.png", "z/1.bmp", "b/notes.txt")
NAMES = ["a/x.PNG", "b/10.png", "b/2.png", "a/deep/c/y.jpg", "z/1.bmp"]
LABELS = [0, 1, 1, 2, 3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    for number, name in enumerate(FILES):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".txt":
            path.write_text("no image")
        else:
            Image.new("RGB", (4 + number, 5), (number * 30, 0, 0)).save(path)
    (root / ".cache").mkdir()
    (root / ".cache" / "1.png").write_bytes(b"hidden")
    return root


def zipped(folder: Path, prefix: str = "") -> Path:
    archive = folder.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*"), reverse=True):  # in another order
            if path.is_file():
                file.write(path, prefix + path.relative_to(folder).as_posix())
        file.writestr(f"__MACOSX/{prefix}a/._x.PNG", b"no image")
    return archive


def test_class_is_the_folder_that_holds_the_image(folder: Path) -> None:
    source = open_source(str(folder))
    assert source.names == NAMES
    assert list(source.class_names) == ["a", "b", "c", "z"]
    assert source.labels.tolist() == LABELS


@pytest.mark.parametrize("inside", ["", "data/train/"])
def test_a_zip_reads_as_the_folder_does(folder: Path, inside: str) -> None:
    archive = zipped(folder, inside)
    from_folder, from_zip = open_source(str(folder)), open_source(str(archive / inside))
    assert from_zip.names == from_folder.names
    assert from_zip.labels.tolist() == from_folder.labels.tolist()
    for index in range(len(from_folder)):
        pixels = [np.asarray(source.read(index)) for source in (from_folder, from_zip)]
        np.testing.assert_array_equal(*pixels)


def test_a_source_may_be_sent_to_another_process(folder: Path) -> None:
    for name in (folder, zipped(folder)):
        source = open_source(str(name))
        source.read(0)
        again = pickle.loads(pickle.dumps(source))
        np.testing.assert_array_equal(np.asarray(again.read(1)), np.asarray(source.read(1)))


def test_images_without_class_folders_are_one_class(tmp_path: Path) -> None:
    (tmp_path / "flowers").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "flowers" / "1.png")
    source = open_source(str(tmp_path / "flowers"))
    assert (list(source.class_names), source.labels.tolist()) == (["flowers"], [0])


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n"])
def test_a_damaged_image_is_named(folder: Path, content: bytes) -> None:
    (folder / "b" / "2.png").write_bytes(content)
    with pytest.raises(UserError, match=r"b/2\.png"):
        open_source(str(folder)).read(2)


def test_an_image_cut_short_is_named(folder: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    path = folder / "b" / "2.png"
    Image.fromarray(noise).save(path, format="JPEG")
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(UserError, match=r"b/2\.png"):
        open_source(str(folder)).read(2)


def test_images_beside_class_folders_are_refused(folder: Path) -> None:
    Image.new("RGB", (2, 2)).save(folder / "stray.png")
    with pytest.raises(UserError, match=r"stray\.png"):
        open_source(str(folder))


def test_a_class_folder_without_images_is_refused(folder: Path) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no images"):
        open_source(str(folder))


def test_a_zip_refuses_an_empty_class_as_a_folder_does(folder: Path) -> None:
    (folder / "empty").mkdir()
    archive = folder.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as file:
        for path in folder.rglob("*"):
            file.write(path, path.relative_to(folder).as_posix())
    with pytest.raises(UserError, match="empty holds no images"):
        open_source(str(archive))


def test_links_are_followed_once(folder: Path) -> None:
    (folder / "d").symlink_to("b", target_is_directory=True)
    assert open_source(str(folder)).names == [*NAMES[:4], "d/10.png", "d/2.png", NAMES[4]]
    (folder / "b" / "again").symlink_to(folder, target_is_directory=True)
    with pytest.raises(UserError, match=r"again is a link to a folder that holds it"):
        open_source(str(folder))


def test_a_pipe_is_no_image(folder: Path) -> None:
    (folder / "b" / "2.png").unlink()
    os.mkfifo(folder / "b" / "2.png")
    with pytest.raises(BadImageError, match=r"b/2\.png: it is no regular file"):
        open_source(str(folder)).read(2)


def test_synsets_are_numbered_as_everywhere(tmp_path: Path) -> None:
    """ImageNet's 1,000 training folders in alphabetical order are labels 0 to 999."""
    synsets = ["n15075141", "n01440764", "n01443537", "n02119789"]
    for name in synsets:
        (tmp_path / name).mkdir()
        Image.new("RGB", (2, 2)).save(tmp_path / name / f"{name}_1.JPEG")
    source = open_source(str(tmp_path))
    assert list(source.class_names) == sorted(synsets)
    assert (
        dict(zip(source.names, source.labels.tolist(), strict=True))["n01440764/n01440764_1.JPEG"]
        == 0
    )


def test_the_hash_tells_names_and_labels_apart(folder: Path) -> None:
    before = open_source(str(folder)).sha256
    assert open_source(str(zipped(folder))).sha256 == before
    (folder / "b" / "2.png").rename(folder / "b" / "3.png")
    renamed = open_source(str(folder)).sha256
    (folder / "b" / "3.png").rename(folder / "a" / "3.png")
    assert len({before, renamed, open_source(str(folder)).sha256}) == 3


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("text")
    for name, message in (
        (tmp_path / "nowhere", "no such folder or zip"),
        (tmp_path / "file.txt", "no readable zip"),
        (tmp_path, r"no images in|holds no images"),
        ("digits/test", "there are: train, held_out"),
    ):
        (tmp_path / "none").mkdir(exist_ok=True)
        with pytest.raises(UserError, match=message):
            open_source(str(name))


def test_digits_are_split_without_overlap() -> None:
    whole, train, held_out = Digits(), Digits("train"), Digits("held_out")
    assert len(whole) == 1797 and len(train) == 1498 and len(held_out) == 299
    assert sorted([*train.names, *held_out.names]) == list(whole.names)
    index = list(whole.names).index(held_out.names[3])
    np.testing.assert_array_equal(np.asarray(whole.read(index)), np.asarray(held_out.read(3)))
    assert whole.labels[index] == held_out.labels[3]
    assert np.asarray(whole.read(0)).shape == (8, 8, 3)
    assert max(np.asarray(whole.read(i)).max() for i in range(20)) == 255
