"""Any file becomes one RGB square; values become 8 bits once, whatever container holds them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from runtime.errors import UserError
from runtime.images import (
    center_crop,
    draw_grid,
    from_uint8,
    save_grid,
    save_npz,
    save_png,
    to_rgb,
    to_uint8,
)


def single_values(values: list[float]) -> torch.Tensor:
    return torch.tensor(values)[:, None, None, None]


def levels(values: list[float], rounding: str) -> list[int]:
    return to_uint8(single_values(values), rounding).flatten().tolist()


def test_nearest_rounds_half_up_and_clamps() -> None:
    assert levels([-2.0, -1.0, 0.0, 1.0, 2.0], "nearest") == [0, 0, 128, 255, 255]
    just_below_a_half = (127 / 255) * 2 - 1 + 0.99 / 255
    assert levels([just_below_a_half], "nearest") == [127]


def test_truncate_rounds_down_and_clamps() -> None:
    assert levels([-2.0, -1.0, 0.0, 1.0, 2.0], "truncate") == [0, 0, 127, 255, 255]
    just_below_the_next = (128 / 255) * 2 - 1 - 0.01 / 255
    assert levels([just_below_the_next], "truncate") == [127]


def test_8_bits_survive_the_way_to_the_network_and_back() -> None:
    every_level = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1)
    assert torch.equal(to_uint8(from_uint8(every_level)), every_level)


def test_half_precision_is_rounded_as_float32_is() -> None:
    images = torch.linspace(-1, 1, 300).bfloat16()[None, None, None]
    assert torch.equal(to_uint8(images), to_uint8(images.float()))


def test_undefined_images_are_refused_by_index() -> None:
    images = torch.zeros(4, 3, 2, 2)
    images[1, 0, 0, 0] = float("nan")
    images[3, 2, 1, 1] = float("inf")
    with pytest.raises(UserError, match="image 1, image 3"):
        to_uint8(images)


def test_unknown_rounding_names_the_choices() -> None:
    with pytest.raises(UserError, match="nearest, truncate"):
        to_uint8(torch.zeros(1, 3, 2, 2), "floor")


def test_png_npz_and_memory_hold_the_same_bytes(tmp_path: Path) -> None:
    images = to_uint8(torch.randn(5, 3, 8, 12)).numpy()
    for index, image in enumerate(images):
        save_png(image, tmp_path / f"{index}.png")
    save_npz([images[:2], images[2:]], tmp_path / "all.npz", images.shape)
    from_png = [np.asarray(Image.open(tmp_path / f"{index}.png")) for index in range(5)]
    with np.load(tmp_path / "all.npz") as arrays:
        assert arrays.files == ["arr_0"]
        np.testing.assert_array_equal(arrays["arr_0"], images)
    np.testing.assert_array_equal(np.stack(from_png), images)


def test_npz_depends_on_the_images_alone(tmp_path: Path) -> None:
    images = to_uint8(torch.randn(6, 3, 4, 4)).numpy()
    for name, sizes in (("a", (3, 6)), ("b", (1, 4, 6))):
        parts = np.split(images, sizes[:-1])
        save_npz(parts, tmp_path / name, images.shape)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_npz_with_too_few_images_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="3 images expected, 2 found"):
        save_npz([np.zeros((2, 4, 4, 3), np.uint8)], tmp_path / "x.npz", (3, 4, 4, 3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [(64, 64), (65, 130), (200, 33), (5, 9), (1, 40)])
def test_crop_is_a_square_of_the_size_asked_for(size: tuple[int, int]) -> None:
    assert center_crop(Image.new("RGB", size), 32).size == (32, 32)


def test_crop_commutes_with_mirroring_where_the_margin_is_even() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))
    mirror = Image.Transpose.FLIP_LEFT_RIGHT
    after = np.asarray(center_crop(image, 40).transpose(mirror))
    before = np.asarray(center_crop(image.transpose(mirror), 40))
    np.testing.assert_array_equal(after, before)


GRAY = np.array([[0, 100], [200, 255]], np.uint8)


def as_rgb(gray: np.ndarray) -> np.ndarray:
    return np.repeat(gray[:, :, None], 3, axis=2)


@pytest.mark.parametrize("mode", ["L", "RGB", "LA", "RGBA", "P", "I;16", "I"])
def test_the_same_grays_in_every_mode_are_the_same_image(mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(GRAY.astype(np.uint16) * 257)
    elif mode == "I":
        image = Image.fromarray(GRAY.astype(np.int32) * 257)
    else:
        image = Image.fromarray(GRAY).convert(mode)
    assert image.mode == mode
    np.testing.assert_array_equal(np.asarray(to_rgb(image)), as_rgb(GRAY))


def test_cmyk_and_bilevel_become_rgb() -> None:
    assert to_rgb(Image.new("CMYK", (2, 2), (0, 0, 0, 0))).getpixel((0, 0)) == (255, 255, 255)
    assert to_rgb(Image.new("1", (2, 2), 1)).getpixel((0, 0)) == (255, 255, 255)


def test_transparent_pixels_show_white_whatever_colour_they_hide() -> None:
    image = Image.new("RGBA", (2, 1), (200, 0, 0, 0))
    image.putpixel((1, 0), (200, 0, 0, 255))
    assert np.asarray(to_rgb(image)).tolist() == [[[255, 255, 255], [200, 0, 0]]]


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    image = Image.fromarray(as_rgb(np.tile(np.array([0, 255], np.uint8), (1, 1))))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to view
    image.save(tmp_path / "turned.png", exif=exif)
    turned = to_rgb(Image.open(tmp_path / "turned.png"))
    assert turned.size == (1, 2)
    assert np.asarray(turned)[:, 0, 0].tolist() == [0, 255]


def test_floating_point_images_are_refused() -> None:
    with pytest.raises(ValueError, match="no known range"):
        to_rgb(Image.fromarray(np.zeros((2, 2), np.float32)))


def test_grid_places_images_row_by_row_at_a_whole_factor(tmp_path: Path) -> None:
    images = np.zeros((5, 32, 32, 3), np.uint8)
    images += np.arange(5, dtype=np.uint8)[:, None, None, None] * 40
    images[:, ::2] += 7  # stripes would blur if a pixel were stretched
    save_grid(images, tmp_path / "grid.png", columns=3, row_labels=["first", "second"])
    grid = np.asarray(Image.open(tmp_path / "grid.png"))
    for level in np.unique(images):
        rows = images[:, :, :, 0] == level
        assert (grid[:, :, 0] == level).sum() >= 4 * rows.sum()  # each pixel became 2 x 2
    unlabelled = np.asarray(draw_grid(images, columns=3))
    assert unlabelled.shape[0] == grid.shape[0] and unlabelled.shape[1] < grid.shape[1]
    np.testing.assert_array_equal(unlabelled[2:66, 2:66], images[0].repeat(2, 0).repeat(2, 1))


def test_grid_needs_a_label_for_each_row() -> None:
    with pytest.raises(ValueError, match="1 row labels for 2 rows"):
        draw_grid(np.zeros((5, 4, 4, 3), np.uint8), columns=3, row_labels=["only"])
