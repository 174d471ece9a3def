"""References of one's own images: what is stored is what the images give."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime.errors import UserError
from runtime.features import Wanted
from runtime.images import save_png
from runtime.moments import Moments
from runtime.references import open_reference
from tools import statistics


class Corners:
    name, weights_sha256, is_published = "corners", "1" * 64, False
    dims = {"pool": 2, "spatial": 3}  # noqa: RUF012

    def features(self, images: Tensor) -> dict[str, Tensor]:
        return {"pool": images[:, 0, 0, :2].float(), "spatial": images[:, -1, -1].float()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(statistics, "build_extractor", lambda *args: Corners())
    random = np.random.default_rng(0)
    for i in range(11):
        save_png(random.integers(0, 256, (12, 9, 3), dtype=np.uint8), tmp_path / f"in/{i:02d}.png")
    return tmp_path / "in"


@pytest.mark.parametrize("batch_size", [3, 11])
def test_what_is_stored_is_what_the_images_give(folder: Path, batch_size: int) -> None:
    output = folder.parent / "own.npz"
    arguments = [f"output={output}", "image_size=6", "num_features=4", f"batch_size={batch_size}"]
    statistics.main(["build", str(folder), *arguments])
    reference = open_reference(str(output), Corners(), None)
    source = open_reference(str(folder), Corners(), 6).images
    assert source is not None
    pixels = torch.from_numpy(np.stack([source.read(i) for i in range(11)]))
    expected = Moments.of(Corners().features(pixels)["spatial"]).gaussian()
    assert reference.num_images == 11
    assert torch.allclose(reference.stored.gaussians["spatial"].covariance, expected.covariance)
    assert torch.equal(
        reference.stored.rows["pool"], Corners().features(pixels)["pool"][[0, 2, 5, 8]]
    )
    assert "center crop to 6 x 6 (11 images)" in reference.parts()[0]
    wanted = Wanted(frozenset({"pool", "spatial"}), frozenset({"pool"}))
    assert wanted.not_in(reference.stored) == []


def test_two_builds_write_the_same_bytes(folder: Path) -> None:
    for name in ("one", "two"):
        output = folder.parent / name / "own.npz"
        statistics.main(["build", str(folder), f"output={output}", "image_size=6"])
    one, two = (folder.parent / name / "own.npz" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_a_file_of_another_network_is_refused(folder: Path) -> None:
    output = folder.parent / "own.npz"
    statistics.main(["build", str(folder), f"output={output}", "image_size=6"])
    other = Corners()
    other.weights_sha256 = "2" * 64
    with pytest.raises(UserError, match="made by corners with weights 1111"):
        open_reference(str(output), other, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["make", "DIR"], "unknown verb 'make'"),
        (["build", "DIR", "output=own.txt"], r"has to end in \.npz"),
        (["build", "nowhere", "output=own.npz"], "no images at 'nowhere'"),
    ],
)
def test_mistakes_are_named(folder: Path, arguments: list[str], message: str) -> None:
    named = [str(folder) if argument == "DIR" else argument for argument in arguments]
    with pytest.raises(UserError, match=message):
        statistics.main(named)
