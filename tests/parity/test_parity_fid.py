"""The metrics against exact values, on features that the folder gives as recipes.

Left out: ``mind``, a metric that we do not have, and the tools' own numbers (``adm_*``,
``torch_fidelity_0_4_0``), which the README lists for comparison. The exact values of the same
quantities are all tested.
"""

import re
from typing import Any

import numpy as np
import pytest
import torch
from golden import Golden, error

from runtime.frechet import FrechetTerms, frechet_terms
from runtime.inception import flatten_spatial
from runtime.inception_score import (
    consecutive_chunks,
    equal_splits,
    inception_score,
    shuffled,
)
from runtime.kernel_distance import (
    discrepancy,
    gaussian_kernel,
    kernel_distance,
    polynomial_kernel,
)
from runtime.moments import Gaussian, Moments
from runtime.precision_recall import neighbour_radii, precision_recall

SECTIONS = {
    "feature_pair": "features",
    "spatial_pair": "spatial",
    "probability_set": "inception_score",
    "point_pair": "precision_recall",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    expected = Golden.of(metafunc.config).json("fid/expected.json") or {}
    cases = {argument: list(expected.get(section, {})) for argument, section in SECTIONS.items()}
    cases["kid_pair"] = [
        name for name, exact in expected.get("features", {}).items() if exact["kid"] is not None
    ]
    for argument in metafunc.fixturenames:
        if argument in cases:
            metafunc.parametrize(argument, cases[argument])


@pytest.fixture(scope="module")
def expected(request: pytest.FixtureRequest) -> dict[str, Any]:
    return Golden.of(request.config).json("fid/expected.json")


@pytest.fixture(scope="module")
def inputs(request: pytest.FixtureRequest) -> Any:
    return Golden.of(request.config).module("fid/golden_inputs.py")


@pytest.fixture(scope="module")
def arrays(request: pytest.FixtureRequest) -> dict[str, np.ndarray]:
    return Golden.of(request.config).npz("fid/feature_arrays.npz")


def gaussian(rows: np.ndarray) -> Gaussian:
    return Moments.of(torch.from_numpy(rows)).gaussian()


def check_terms(found: FrechetTerms, exact: dict[str, float], relative: float) -> None:
    size = exact["trace_reference"] + exact["trace_sample"]
    assert found.mean_term == pytest.approx(exact["mean_term"], rel=relative, abs=1e-9)
    assert found.trace_a == pytest.approx(exact["trace_sample"], rel=relative)
    assert found.trace_b == pytest.approx(exact["trace_reference"], rel=relative)
    assert found.trace_sqrt == pytest.approx(exact["trace_sqrt"], rel=relative)
    floor = 1e-6 if exact["frechet"] < 1e-6 * size else 0.0  # identical sets
    assert found.distance == pytest.approx(exact["frechet"], rel=relative, abs=floor)


def check_gaussian(found: Gaussian, arrays: dict[str, np.ndarray], case: str, part: str) -> None:
    if f"{case}/mu_{part}" in arrays:
        mean, corner = arrays[f"{case}/mu_{part}"], arrays[f"{case}/sigma_{part}"]
        assert error(found.mean[: len(mean)], mean) < 1e-9
        assert error(found.covariance[: len(corner), : len(corner)], corner) < 1e-9


def test_frechet_distance(
    feature_pair: str, expected: dict[str, Any], inputs: Any, arrays: dict[str, np.ndarray]
) -> None:
    reference, sample = inputs.features(feature_pair)
    singular = min(len(reference), len(sample)) <= reference.shape[1]
    check_gaussian(gaussian(reference), arrays, feature_pair, "ref")
    check_gaussian(gaussian(sample), arrays, feature_pair, "sample")
    check_terms(
        frechet_terms(gaussian(sample), gaussian(reference)),
        expected["features"][feature_pair],
        relative=1e-5 if singular else 1e-6,
    )


def test_frechet_distance_of_spatial_features(
    spatial_pair: str, expected: dict[str, Any], inputs: Any, arrays: dict[str, np.ndarray]
) -> None:
    reference, sample = (
        flatten_spatial(torch.from_numpy(maps)).numpy() for maps in inputs.spatial(spatial_pair)
    )
    singular = min(len(reference), len(sample)) <= reference.shape[1]
    if f"{spatial_pair}/flat_ref0" in arrays:
        assert np.array_equal(reference[0], arrays[f"{spatial_pair}/flat_ref0"])
    check_gaussian(gaussian(reference), arrays, spatial_pair, "ref")
    check_gaussian(gaussian(sample), arrays, spatial_pair, "sample")
    check_terms(
        frechet_terms(gaussian(sample), gaussian(reference)),
        expected["spatial"][spatial_pair],
        relative=1e-5 if singular else 1e-6,
    )


def test_kernel_distance(kid_pair: str, expected: dict[str, Any], inputs: Any) -> None:
    exact = expected["features"][kid_pair]["kid"]
    reference, sample = inputs.features(kid_pair)
    kernels = {"poly": polynomial_kernel, "rbf": gaussian_kernel(exact["rbf"]["sigma"])}
    for name, kernel in kernels.items():
        found = kernel_distance(
            sample, reference, exact["subset_size"], exact["subsets"], kernel, exact["rng_seed"]
        )
        assert found == pytest.approx((exact[name]["mean"], exact[name]["std"]), abs=1e-9)
    everything = discrepancy(sample, reference)
    assert everything == pytest.approx(exact["poly_all_samples_unbiased"], abs=1e-9)


def test_inception_score_in_consecutive_chunks(
    probability_set: str, expected: dict[str, Any], inputs: Any
) -> None:
    logits = torch.from_numpy(inputs.probabilities(probability_set)).double().log()
    for size, exact in expected["inception_score"][probability_set]["finite"].items():
        score, _ = inception_score(logits, consecutive_chunks(len(logits), int(size)))
        assert score == pytest.approx(exact, rel=1e-5)


def test_inception_score_in_equal_splits(
    probability_set: str, expected: dict[str, Any], inputs: Any
) -> None:
    for key, exact in (
        expected["inception_score"][probability_set].get("torch_fidelity", {}).items()
    ):
        num_splits, shuffle = map(int, re.findall(r"\d+", key))
        logits = torch.from_numpy(inputs.logits(probability_set)).float()
        ordered = shuffled(logits) if shuffle else logits
        found = inception_score(ordered, equal_splits(len(logits), num_splits))
        assert found == pytest.approx(exact, rel=1e-5, abs=1e-7)


def test_precision_and_recall(
    point_pair: str, expected: dict[str, Any], inputs: Any, arrays: dict[str, np.ndarray]
) -> None:
    exact = expected["precision_recall"][point_pair]
    reference, sample = map(torch.from_numpy, inputs.points(point_pair))
    if "error" in exact:
        with pytest.raises(ValueError, match="neighbours need"):
            precision_recall(sample, reference)
        return
    assert precision_recall(sample, reference) == (exact["precision"], exact["recall"])
    for part, points in (("ref", reference), ("sample", sample)):
        if f"{point_pair}/radii2_{part}" in arrays:
            radii = arrays[f"{point_pair}/radii2_{part}"]
            assert error(neighbour_radii(points.double(), k=3), radii) < 1e-9
