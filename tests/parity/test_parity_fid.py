"""The metrics against exact values, and the whole evaluator on a synthetic Inception network.

Left out, because no metric of ours uses them: ``mind``, the logits with bias, and the tools' own
numbers (``adm_*``, ``torch_fidelity*``), which the README lists for comparison. The exact values
of the same quantities are all tested.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from golden import Golden, error, norm_error

from runtime.extraction import extract
from runtime.factory import METRICS
from runtime.features import FeatureSet, Wanted
from runtime.frechet import FrechetTerms, frechet_terms
from runtime.image_sets import NpzImages
from runtime.inception import InceptionExtractor, flatten_spatial
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
from runtime.references import open_reference

SECTIONS = {
    "feature_pair": "features",
    "spatial_pair": "spatial",
    "probability_set": "inception_score",
    "point_pair": "precision_recall",
    "image_pair": "end_to_end",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    expected = Golden.of(metafunc.config).json("fid/expected.json") or {}
    cases = {argument: list(expected.get(section, {})) for argument, section in SECTIONS.items()}
    cases["kid_pair"] = [
        name for name, exact in expected.get("features", {}).items() if exact["kid"] is not None
    ]
    cases["reference_file"] = [expected["reference_file"]] if "reference_file" in expected else []
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


# --- the whole evaluator, on a network of synthetic weights --------------------------------------

EVERYTHING = Wanted(
    gaussians=frozenset({"pool", "spatial"}), rows=frozenset(InceptionExtractor.dims)
)


@pytest.fixture(scope="module")
def network(inputs: Any, tmp_path_factory: pytest.TempPathFactory) -> InceptionExtractor:
    path = tmp_path_factory.mktemp("weights") / "synthetic.pth"
    torch.save({key: torch.from_numpy(w) for key, w in inputs.inception_weights().items()}, path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return InceptionExtractor(path, torch.device("cpu"), sha256)


@pytest.fixture(scope="module")
def features_of(
    inputs: Any, network: InceptionExtractor, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], FeatureSet]:
    """Features of a named image set, from an ``.npz``; each set passes the network once."""
    folder, known = tmp_path_factory.mktemp("images"), dict[str, FeatureSet]()

    def features(name: str) -> FeatureSet:
        if name not in known:
            path = folder / f"{name}.npz"
            np.savez(path, arr_0=inputs.images(name))
            known[name] = extract(
                network, NpzImages(path), EVERYTHING, 16, Accelerator(cpu=True), name
            ).features
        return known[name]

    return features


def scores(metric: str, sample: FeatureSet, reference: FeatureSet) -> list[float]:
    return [score.value for score in METRICS[metric](sample, reference)]


def check_inception_scores(sample: FeatureSet, exact: dict[str, float]) -> None:
    logits = sample.rows["logits"]
    for key, value in exact.items():
        size = re.fullmatch(r"sample_(?:single_split|split_of_(\d+))", key)
        if size is not None:
            chunks = consecutive_chunks(len(logits), int(size[1] or len(logits)))
            assert inception_score(logits, chunks)[0] == pytest.approx(value, rel=1e-4)


@pytest.mark.slow
def test_scores_of_images(
    image_pair: str, expected: dict[str, Any], features_of: Callable[[str], FeatureSet]
) -> None:
    exact = expected["end_to_end"][image_pair]
    sample, reference = features_of(exact["sample"]), features_of(exact["reference"])
    assert scores("fid", sample, reference)[0] == pytest.approx(exact["fid"]["frechet"], rel=5e-5)
    assert scores("sfid", sample, reference)[0] == pytest.approx(exact["sfid"]["frechet"], rel=5e-5)
    assert scores("precision_recall", sample, reference) == [exact["precision"], exact["recall"]]
    check_inception_scores(sample, exact["inception_score"])
    kid = exact["kid"]
    pools = [features.rows["pool"].numpy() for features in (sample, reference)]
    found = kernel_distance(*pools, kid["subset_size"], kid["subsets"], seed=kid["rng_seed"])
    assert found == pytest.approx((kid["mean"], kid["std"]), abs=3e-5)
    everything = discrepancy(*pools)
    assert everything == pytest.approx(kid["all_samples_unbiased"], abs=3e-5)


@pytest.mark.slow
def test_scores_against_a_reference_file(
    reference_file: dict[str, Any],
    golden: Golden,
    network: InceptionExtractor,
    features_of: Callable[[str], FeatureSet],
) -> None:
    """Distances from the stored statistics, precision and recall from the stored images."""
    exact, sample = reference_file, features_of(reference_file["sample"])
    path = str(golden.path / "fid" / exact["file"])
    reference = open_reference(path, network, image_size=None)
    reference = reference.read(network, EVERYTHING, 16, Accelerator(cpu=True))
    stored = reference.stored
    assert scores("fid", sample, stored)[0] == pytest.approx(exact["fid"]["frechet"], rel=5e-5)
    assert scores("sfid", sample, stored)[0] == pytest.approx(exact["sfid"]["frechet"], rel=5e-5)
    assert scores("precision_recall", sample, stored) == [exact["precision"], exact["recall"]]
    check_inception_scores(sample, exact["inception_score"])


@pytest.mark.slow
def test_features_of_images(golden: Golden, features_of: Callable[[str], FeatureSet]) -> None:
    files = [golden.npz(f"fid/{path.name}") for path in golden.path.glob("fid/e2e_features_*.npz")]
    for whole in files:
        for key, array in whole.items():
            name, tap = key.split("/")
            assert norm_error(features_of(name).rows[tap], array) < 1e-4
    slices = golden.npz("fid/e2e_slices.npz")
    for key, array in slices.items():
        check_slice(key, array, features_of)


SLICES = {  # how the names in the file map to ours; the logits with bias are no feature of ours
    "pool": ("pool", ...),
    "spatial": ("spatial", ...),
    "spatial_full_image0": ("spatial", 0),
    "logits_unbiased": ("logits", ...),
}


def check_slice(key: str, array: np.ndarray, features_of: Callable[[str], FeatureSet]) -> None:
    name, part = key.split("/")
    features = features_of(name)
    if part.endswith("_mean"):
        found = features.gaussians[part.removesuffix("_mean")].mean[: len(array)]
    elif part in SLICES:
        tap, index = SLICES[part]
        rows = features.rows[tap][index] if index is not ... else features.rows[tap]
        found = rows[tuple(map(slice, array.shape))]
    else:
        return
    assert norm_error(found, array) < 1e-4
