"""eval_fid.py gives one result in one process and in two, and one line for a mistake."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import Program

from runtime.images import center_crop, save_npz, save_png
from runtime.sources import open_source

COUNT = 101  # divides by no number of processes
SCORING = ("extractor=digits", "reference=digits/train", "batch_size=16")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Held-out digits in the form of a sample folder."""
    folder = tmp_path_factory.mktemp("run") / "samples" / "real"
    source = open_source("digits/held_out")
    images = [np.asarray(center_crop(source.read(i), 32)) for i in range(COUNT)]
    for i, image in enumerate(images):
        save_png(image, folder / "images" / f"{i:06d}.png")
    save_npz([np.stack(images)], folder / "samples.npz", (COUNT, 32, 32, 3))
    settings = {"num_images": COUNT, "guidance": {"scale": 1.5}, "weights": "ema"}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "labels.json").write_text(json.dumps({"labels": source.labels[:COUNT].tolist()}))
    return folder


@pytest.fixture(scope="module")
def expected(program: Program, samples: Path) -> dict[str, Any]:
    finished = program("eval_fid.py", samples, *SCORING)
    stored = samples.parents[1] / "results" / "real-digits-classifier.json"
    assert str(stored) in finished.stdout
    assert f"class_accuracy-{COUNT}" in finished.stdout
    assert "guidance scale=1.5" in finished.stdout
    return json.loads(stored.read_text())


def numbers(result: dict[str, Any]) -> dict[str, float]:
    return {score["name"]: score["value"] for score in result["scores"]}


def test_real_digits_are_recognised(expected: dict[str, Any]) -> None:
    found = numbers(expected)
    assert found[f"class_accuracy-{COUNT}"] > 0.95
    assert expected["scores"][0]["num_reference"] == 1498
    assert expected["settings"]["weights"] == "ema"
    assert any("compare only with one another" in warning for warning in expected["warnings"])


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_do_not_matter(
    program: Program, samples: Path, tmp_path: Path, expected: dict[str, Any], processes: int
) -> None:
    output = tmp_path / "result.json"
    program("eval_fid.py", samples, *SCORING, f"output={output}", processes=processes)
    found = json.loads(output.read_text())
    assert numbers(found) == pytest.approx(numbers(expected), rel=1e-5)
    assert {**found, "scores": None} == {**expected, "scores": None}
    counts = [(score["num_generated"], score["num_reference"]) for score in found["scores"]]
    assert counts == [(COUNT, 1498), (COUNT, None)]


def test_the_npz_scores_as_the_folder(
    program: Program, samples: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    output = tmp_path / "result.json"
    program("eval_fid.py", samples / "samples.npz", *SCORING, f"output={output}")
    found = json.loads(output.read_text())
    assert numbers(found) == pytest.approx(numbers(expected), rel=1e-9)
    assert found["samples_sha256"] == expected["samples_sha256"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("SAMPLES", "extractor=digits"), "reference is not set"),
        (("SAMPLES", *SCORING, "refrence=x"), "did you mean 'reference'"),
        (("SAMPLES", "reference=digits/train", "inception_weights=no.pth"), "no.pth"),
    ],
)
def test_a_mistake_costs_one_line(
    program: Program, samples: Path, arguments: tuple[str, ...], message: str
) -> None:
    named = [str(samples) if argument == "SAMPLES" else argument for argument in arguments]
    lines = program("eval_fid.py", *named, status=2).stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ") and message in lines[0]


@pytest.mark.slow
def test_a_damaged_image_in_one_process_ends_all(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "pngs"
    for i in range(8):
        save_png(np.full((32, 32, 3), 30 * i, dtype=np.uint8), folder / f"{i}.png")
    (folder / "7.png").write_bytes((folder / "7.png").read_bytes()[:50])
    finished = program("eval_fid.py", folder, *SCORING, processes=2, status=None)
    assert finished.returncode != 0
    assert "cannot read the image 7.png" in finished.stderr
    assert not (tmp_path / "results").exists()
