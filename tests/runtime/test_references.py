"""A reference is read for what it is, and used as its makers meant."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from runtime.errors import UserError
from runtime.features import Wanted
from runtime.references import Reference, open_reference

WANTED = Wanted(gaussians=frozenset({"pool", "spatial"}), rows=frozenset({"pool"}))
MOMENTS = {
    "mu": np.arange(2.0),
    "sigma": np.eye(2),
    "mu_s": np.arange(3.0),
    "sigma_s": np.eye(3),
}
IMAGES = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)


class Corners:
    name, weights_sha256, is_published = "corners", "1" * 64, False
    dims = {"pool": 2, "spatial": 3}  # noqa: RUF012

    def features(self, images: Tensor) -> dict[str, Tensor]:
        return {"pool": images[:, 0, 0, :2].float(), "spatial": images[:, -1, -1].float()}


def read(path: Path, **arrays: np.ndarray) -> Reference:
    np.savez(path / "reference.npz", **arrays)
    reference = open_reference(str(path / "reference.npz"), Corners(), image_size=None)
    return reference.read(Corners(), WANTED, 4, Accelerator(cpu=True))


def test_stored_statistics_give_distances_and_images_the_rest(tmp_path: Path) -> None:
    reference = read(tmp_path, arr_0=IMAGES, **MOMENTS)
    assert reference.stored.gaussians["pool"].mean.tolist() == [0, 1]
    assert reference.stored.gaussians["spatial"].mean.tolist() == [0, 1, 2]
    assert torch.equal(reference.stored.rows["pool"], torch.from_numpy(IMAGES[:, 0, 0, :2]).float())
    assert reference.num_images is None
    assert reference.parts() == [
        "distances: stored mu, sigma, mu_s, sigma_s (number of images not stated)",
        "per-image pool features: arr_0 (6 images)",
    ]


def test_images_alone_give_everything(tmp_path: Path) -> None:
    reference = read(tmp_path, arr_0=IMAGES)
    mean = IMAGES[:, 0, 0, :2].mean(axis=0)
    assert np.allclose(reference.stored.gaussians["pool"].mean, mean)
    assert reference.num_images == 6


def test_statistics_of_one_tap_are_not_completed_from_the_images(tmp_path: Path) -> None:
    """They are of another set of images than the statistics."""
    reference = read(tmp_path, arr_0=IMAGES, mu=MOMENTS["mu"], sigma=MOMENTS["sigma"])
    assert set(reference.stored.gaussians) == {"pool"}


def test_float32_statistics_are_accepted(tmp_path: Path) -> None:
    reference = read(
        tmp_path, mu=MOMENTS["mu"].astype(np.float32), sigma=MOMENTS["sigma"].astype(np.float32)
    )
    assert reference.stored.gaussians["pool"].covariance.dtype == torch.float64


def test_statistics_that_may_be_of_another_resize_are_doubted(tmp_path: Path) -> None:
    plain = read(tmp_path, mu=MOMENTS["mu"], sigma=MOMENTS["sigma"])
    assert "another rule" in plain.doubts[0]
    assert read(tmp_path, **MOMENTS).doubts == ()


def test_a_file_of_ours_says_how_many_images_and_from_what(tmp_path: Path) -> None:
    about = {"extractor": "corners", "weights_sha256": "1" * 64, "images": "images of DIR"}
    reference = read(
        tmp_path,
        **MOMENTS,
        pool=np.ones((4, 2), np.float32),
        num_images=np.array(1234),
        about=np.array(json.dumps(about)),
    )
    assert reference.num_images == 1234
    assert reference.stored.rows["pool"].shape == (4, 2)
    assert "stored mu, sigma, mu_s, sigma_s, images of DIR (1,234 images)" in reference.parts()[0]


def test_statistics_of_another_network_are_refused(tmp_path: Path) -> None:
    about = {"extractor": "edges", "weights_sha256": "2" * 64, "images": ""}
    with pytest.raises(UserError, match="made by edges"):
        read(tmp_path, **MOMENTS, about=np.array(json.dumps(about)))


def test_a_folder_is_cropped_like_the_training_images() -> None:
    reference = open_reference("digits/train", Corners(), image_size=32)
    assert reference.images is not None
    assert reference.images.read(0).shape == (32, 32, 3)
    assert "center crop to 32 x 32" in reference.statistics_from


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"mu": np.zeros(2)}, "no array 'sigma'"),
        ({"pictures": IMAGES}, "neither mu and sigma nor arr_0; it has: pictures"),
        ({"mu": np.zeros(3), "sigma": np.eye(3)}, r"\(3,\) and \(3, 3\); corners gives 2 pool"),
        ({"mu": np.zeros(2), "sigma": np.eye(3)}, r"\(2,\) and \(3, 3\)"),
        ({"mu": np.array([0.0, np.nan]), "sigma": np.eye(2)}, "not finite"),
        ({**MOMENTS, "pool": np.ones((4, 5))}, r"pool has shape \(4, 5\)"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, **arrays)


def test_a_missing_reference_is_named() -> None:
    with pytest.raises(UserError, match=r"nowhere\.npz"):
        open_reference("nowhere.npz", Corners(), None)
    with pytest.raises(UserError, match="nowhere"):
        open_reference("nowhere", Corners(), None)
