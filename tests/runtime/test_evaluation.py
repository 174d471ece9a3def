"""Scores say how many images they are of, what made them, and why one is missing."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from runtime import evaluation
from runtime.errors import UserError
from runtime.eval_config import EvalConfig
from runtime.evaluation import evaluate
from runtime.factory import METRICS
from runtime.images import save_png
from runtime.results import Result, default_path


class FewNumbers:
    """Features under the names of the Inception network's, small enough for a test."""

    name, weights_sha256, is_published = "few-numbers", "abcdef01" * 8, True
    dims = {"pool": 6, "spatial": 4, "logits": 5}  # noqa: RUF012

    def features(self, images: Tensor) -> dict[str, Tensor]:
        pixels = images.float().flatten(1)
        return {tap: pixels[:, 10 : 10 + dim] / 64 for tap, dim in self.dims.items()}


@pytest.fixture(autouse=True)
def _without_inception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "build_extractor", lambda *args: FewNumbers())


def pixels(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)


def write(path: Path, count: int, seed: int) -> str:
    np.savez(path, arr_0=pixels(count, seed))
    return str(path)


def scored(tmp_path: Path, samples: str, **settings: object) -> Result:
    reference = write(tmp_path / "reference.npz", 30, seed=1)
    config = replace(EvalConfig(reference=reference, batch_size=8), **settings)  # type: ignore[arg-type]
    return evaluate(config, Path(samples), Accelerator(cpu=True))


def test_every_score_carries_its_number_of_images(tmp_path: Path) -> None:
    result = scored(tmp_path, write(tmp_path / "samples.npz", 25, seed=0))
    names = [score.name for score in result.scores]
    assert names == ["FID-25", "sFID-25", "IS-25", "precision-25", "recall-25", "KID-25"]
    assert [score.num_reference for score in result.scores] == [30, 30, None, 30, 30, 30]
    assert not any(line.startswith("FID ") for line in result.lines())
    assert result.lines()[0].startswith("FID-25") and "against 30 images" in result.lines()[0]


def test_result_names_network_reference_and_images(tmp_path: Path) -> None:
    result = scored(tmp_path, write(tmp_path / "samples.npz", 25, seed=0))
    told = json.loads(json.dumps(result.to_json()))
    assert told["extractor"] == "few-numbers" and told["weights_sha256"] == "abcdef01" * 8
    assert told["reference"].endswith("reference.npz") and len(told["reference_sha256"]) == 64
    assert len(told["samples_sha256"]) == 64 and told["image_sizes"] == ["8 x 8"]
    assert told["scores"][0]["name"] == "FID-25"
    assert "few-numbers abcdef01" in result.conditions()


def test_few_images_are_warned_of(tmp_path: Path) -> None:
    result = scored(tmp_path, write(tmp_path / "samples.npz", 25, seed=0))
    assert any("25 generated images" in warning for warning in result.warnings)
    assert any("30 reference images" in warning for warning in result.warnings)


def sample_folder(path: Path, num_images: int = 25, **settings: object) -> Path:
    for i, image in enumerate(pixels(25, seed=0)):
        save_png(image, path / "images" / f"{i:06d}.png")
    stated = {"num_images": num_images, "rounding": "truncate", "labels": "balanced", **settings}
    (path / "settings.json").write_text(json.dumps(stated))
    (path / "labels.json").write_text(json.dumps({"labels": [i % 3 for i in range(25)]}))
    (path / "grid.png").write_bytes((path / "images" / "000000.png").read_bytes())
    return path


def test_a_sample_folder_scores_as_its_npz_and_brings_its_settings(tmp_path: Path) -> None:
    folder = sample_folder(tmp_path / "run" / "samples" / "one", guidance={"scale": 1.5})
    from_folder = scored(tmp_path, str(folder))
    from_npz = scored(tmp_path, write(tmp_path / "plain.npz", 25, seed=0))
    assert from_folder.scores == from_npz.scores
    assert from_folder.samples_sha256 == from_npz.samples_sha256
    assert from_folder.settings["rounding"] == "truncate"
    assert "guidance scale=1.5" in from_folder.conditions()
    assert "rounding truncate" in from_folder.conditions()


def test_a_folder_with_another_number_of_images_than_it_says_is_refused(tmp_path: Path) -> None:
    folder = sample_folder(tmp_path / "samples", num_images=50)
    with pytest.raises(UserError, match="holds 25 images, but its settings"):
        scored(tmp_path, str(folder))


def test_a_metric_that_the_reference_cannot_give_is_skipped_with_its_reason(tmp_path: Path) -> None:
    np.savez(tmp_path / "statistics.npz", mu=np.zeros(6), sigma=np.eye(6))
    samples = write(tmp_path / "samples.npz", 25, seed=0)
    result = scored(tmp_path, samples, reference=str(tmp_path / "statistics.npz"))
    assert [score.quantity for score in result.scores] == ["FID", "IS"]
    assert result.skipped == {
        "sfid": "the reference gives no statistics of spatial",
        "precision_recall": "the reference gives no images for pool",
        "kid": "the reference gives no images for pool",
    }


def test_too_few_images_for_one_metric_cost_no_other(tmp_path: Path) -> None:
    result = scored(tmp_path, write(tmp_path / "samples.npz", 3, seed=0))
    assert "FID-3" in [score.name for score in result.scores]
    assert list(result.skipped) == ["precision_recall"]


def test_kernel_distance_says_when_its_subsets_are_smaller(tmp_path: Path) -> None:
    result = scored(tmp_path, write(tmp_path / "samples.npz", 25, seed=0))
    assert "subsets of 25" in result.scores[-1].note


def test_metrics_can_be_chosen(tmp_path: Path) -> None:
    samples = write(tmp_path / "samples.npz", 25, seed=0)
    result = scored(tmp_path, samples, metrics=("fid",))
    assert [score.name for score in result.scores] == ["FID-25"]
    with pytest.raises(UserError, match="few-numbers cannot give class_accuracy"):
        scored(tmp_path, samples, metrics=("class_accuracy",))


def test_no_metric_of_the_digits_classifier_is_a_fid() -> None:
    inception, digits = {"pool", "spatial", "logits"}, {"digits", "digits_logits"}
    of_digits = [
        n for n, m in METRICS.items() if (m.of_sample.taps | m.of_reference.taps) <= digits
    ]
    of_inception = [n for n, m in METRICS.items() if m.of_sample.taps <= inception]
    assert sorted(of_digits) == ["class_accuracy", "frechet_digits"]
    assert sorted(of_digits + of_inception) == sorted(METRICS)


def test_lossy_samples_are_warned_of(tmp_path: Path) -> None:
    from PIL import Image

    folder = tmp_path / "photos"
    folder.mkdir()
    for i, image in enumerate(pixels(5, seed=0)):
        Image.fromarray(image).save(folder / f"{i}.jpg")
    result = scored(tmp_path, str(folder))
    assert any("5 samples images are lossy" in warning for warning in result.warnings)


def test_features_that_are_not_finite_stop_the_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: FewNumbers, images: Tensor) -> dict[str, Tensor]:
        return {tap: torch.full((len(images), dim), torch.nan) for tap, dim in self.dims.items()}

    monkeypatch.setattr(FewNumbers, "features", broken)
    with pytest.raises(UserError, match="not finite"):
        scored(tmp_path, write(tmp_path / "samples.npz", 5, seed=0))


@pytest.mark.parametrize(
    ("samples", "result"),
    [
        ("runs/dit/samples/one", "runs/dit/results/one-inception.json"),
        ("runs/dit/samples/one/samples.npz", "runs/dit/results/one-inception.json"),
        ("elsewhere/images.zip", "elsewhere/results/images-inception.json"),
    ],
)
def test_results_lie_in_the_run_folder(samples: str, result: str) -> None:
    assert default_path(Path(samples), "inception") == Path(result).absolute()
