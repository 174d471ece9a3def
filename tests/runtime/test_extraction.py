"""One pass over the images: each image once, whatever the batches and the number of processes."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from runtime.extraction import Extraction, extract, share_of
from runtime.features import FeatureExtractor, Wanted
from runtime.image_sets import ImageSet, open_images

EVERYTHING = Wanted(gaussians=frozenset({"pool"}), rows=frozenset({"pool", "logits"}))


class MeanColours:
    """Features that anyone can recompute: the mean of each colour, in thirds of the image."""

    name, weights_sha256, is_published = "mean-colours", "0" * 64, False
    dims = {"pool": 9, "logits": 3}  # noqa: RUF012

    def features(self, images: Tensor) -> dict[str, Tensor]:
        thirds = images.float().tensor_split(3, dim=1)
        means = torch.stack([third.mean(dim=(1, 2)) for third in thirds], dim=1)
        return {"pool": means.flatten(1), "logits": means.mean(dim=1)}


def make_images(folder: Path, count: int = 23) -> ImageSet:
    pixels = np.random.default_rng(1).integers(0, 256, (count, 12, 12, 3), dtype=np.uint8)
    np.savez(folder / "images.npz", arr_0=pixels)
    return open_images(str(folder / "images.npz"))


def run(images: ImageSet, batch_size: int = 4) -> Extraction:
    return extract(MeanColours(), images, EVERYTHING, batch_size, Accelerator(cpu=True), "images")


def test_the_stand_in_is_a_feature_extractor() -> None:
    assert isinstance(MeanColours(), FeatureExtractor)


@pytest.mark.parametrize("num_images", [0, 1, 7, 50_000])
@pytest.mark.parametrize("num_processes", [1, 2, 8])
def test_shares_cover_all_images_once(num_images: int, num_processes: int) -> None:
    shares = [share_of(num_images, p, num_processes) for p in range(num_processes)]
    assert [i for share in shares for i in share] == list(range(num_images))
    sizes = list(map(len, shares))
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("batch_size", [1, 5, 23, 100])
def test_the_batch_size_does_not_matter(tmp_path: Path, batch_size: int) -> None:
    images = make_images(tmp_path)
    found, expected = run(images, batch_size), run(images, 7)
    assert torch.equal(found.features.rows["pool"], expected.features.rows["pool"])
    assert found.features.gaussians["pool"].num_images == 23
    assert found.sha256 == expected.sha256
    assert torch.allclose(
        found.features.gaussians["pool"].covariance,
        expected.features.gaussians["pool"].covariance,
        rtol=1e-12,
    )


def test_rows_stand_in_the_order_of_the_images(tmp_path: Path) -> None:
    images = make_images(tmp_path)
    rows = run(images).features.rows["pool"]
    for i in (0, 11, 22):
        alone = MeanColours().features(torch.from_numpy(images.read(i))[None])["pool"]
        assert torch.allclose(rows[i], alone[0])


def test_images_of_several_sizes_are_scored_and_their_sizes_reported(tmp_path: Path) -> None:
    class TwoSizes:
        labels, num_lossy = None, 0

        def __len__(self) -> int:
            return 5

        def read(self, index: int) -> np.ndarray:
            return np.full((6 + index // 2, 8, 3), index, dtype=np.uint8)

    found = run(TwoSizes(), batch_size=4)
    assert found.features.rows["logits"][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert found.sizes == [(6, 8), (7, 8), (8, 8)]


def test_the_hash_is_that_of_the_set(tmp_path: Path) -> None:
    """Order and container leave it; one grey level changes it."""

    class Listed:
        labels, num_lossy = None, 0

        def __init__(self, pixels: np.ndarray) -> None:
            self.pixels = pixels

        def __len__(self) -> int:
            return len(self.pixels)

        def read(self, index: int) -> np.ndarray:
            return self.pixels[index]

    pixels = np.random.default_rng(2).integers(0, 255, (6, 4, 4, 3), dtype=np.uint8)
    changed = pixels.copy()
    changed[3, 2, 1, 0] += 1
    ours = run(Listed(pixels)).sha256
    assert run(Listed(pixels[::-1].copy())).sha256 == ours
    assert run(Listed(changed)).sha256 != ours
    digests = sorted(hashlib.sha256(b"(4, 4, 3)" + p.tobytes()).digest() for p in pixels)
    assert ours == hashlib.sha256(b"".join(digests)).hexdigest()
