"""The same images, whatever holds them; damaged ones are named."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runtime.errors import UserError
from runtime.image_sets import keys_of, open_images, read_array

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "pngs"
    path.mkdir()
    for i, image in enumerate(IMAGES):
        Image.fromarray(image).save(path / f"{i:04d}.png")
    return path


def test_folder_zip_and_npz_hold_the_same(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    np.savez(tmp_path / "stored.npz", arr_0=IMAGES)
    np.savez_compressed(tmp_path / "compressed.npz", arr_0=IMAGES)
    for name in ("pngs", "images.zip", "stored.npz", "compressed.npz"):
        images = open_images(str(tmp_path / name))
        assert len(images) == 5
        assert all(np.array_equal(images.read(i), IMAGES[i]) for i in range(5)), name


def test_a_size_crops_a_folder(folder: Path) -> None:
    assert open_images(str(folder), image_size=4).read(0).shape == (4, 4, 3)


def test_lossy_files_are_counted(folder: Path) -> None:
    Image.fromarray(IMAGES[0]).save(folder / "photo.JPG")
    assert open_images(str(folder)).num_lossy == 1


def test_a_flat_folder_knows_no_classes(folder: Path) -> None:
    assert open_images(str(folder)).labels is None


@pytest.mark.parametrize("kept", [0, 60])
def test_a_damaged_image_is_named(folder: Path, kept: int) -> None:
    path = folder / "0003.png"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"0003\.png"):
        open_images(str(folder)).read(3)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no images"):
        open_images(str(tmp_path))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (IMAGES.astype(np.float32), "not uint8"),
        (IMAGES[..., 0], "of shape"),
        (IMAGES[:0], "no images"),
    ],
)
def test_an_npz_of_something_else_is_refused(
    tmp_path: Path, array: np.ndarray, message: str
) -> None:
    np.savez(tmp_path / "other.npz", arr_0=array)
    with pytest.raises(UserError, match=message):
        open_images(str(tmp_path / "other.npz"))


def test_a_missing_array_is_named_with_those_that_exist(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", pictures=IMAGES)
    with pytest.raises(UserError, match=r"no array 'arr_0'; it has: pictures"):
        open_images(str(tmp_path / "other.npz"))


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(UserError, match=r"no readable \.npz"):
        keys_of(tmp_path / "cut.npz")


def test_large_arrays_stay_on_the_disk(tmp_path: Path) -> None:
    np.savez(tmp_path / "stored.npz", first=np.zeros(3), second=IMAGES)
    array = read_array(tmp_path / "stored.npz", "second")
    assert isinstance(array, np.memmap)
    assert np.array_equal(array, IMAGES)
