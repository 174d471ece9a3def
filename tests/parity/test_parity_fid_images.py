"""The whole evaluator on images, with an Inception network of synthetic weights.

Features, slices of features and every score are compared with exact values; the logits with bias
are no feature of ours, and what the README lists of other tools is left out.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from golden import Golden, norm_error

from runtime.extraction import extract
from runtime.factory import METRICS
from runtime.features import FeatureSet, Wanted
from runtime.image_sets import NpzImages
from runtime.inception import InceptionExtractor
from runtime.inception_score import consecutive_chunks, inception_score
from runtime.kernel_distance import discrepancy, kernel_distance
from runtime.references import open_reference

pytestmark = pytest.mark.slow


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    golden = Golden.of(metafunc.config)
    expected = golden.json("fid/expected.json") or {}
    cases = {
        "image_pair": list(expected.get("end_to_end", {})),
        "reference_file": [expected["reference_file"]] if "reference_file" in expected else [],
        "feature_file": _names(golden, "fid/e2e_features_*.npz"),
        "slice_file": _names(golden, "fid/e2e_slices*.npz"),
    }
    for argument in metafunc.fixturenames:
        if argument in cases:
            metafunc.parametrize(argument, cases[argument])


def _names(golden: Golden, pattern: str) -> list[str]:
    return sorted(path.relative_to(golden.path).as_posix() for path in golden.path.glob(pattern))


@pytest.fixture(scope="module")
def expected(request: pytest.FixtureRequest) -> dict[str, Any]:
    return Golden.of(request.config).json("fid/expected.json")


@pytest.fixture(scope="module")
def inputs(request: pytest.FixtureRequest) -> Any:
    return Golden.of(request.config).module("fid/golden_inputs.py")


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


def test_features_of_images(
    feature_file: str, golden: Golden, features_of: Callable[[str], FeatureSet]
) -> None:
    for key, array in golden.npz(feature_file).items():
        name, tap = key.split("/")
        assert norm_error(features_of(name).rows[tap], array) < 1e-4


def test_slices_of_features(
    slice_file: str, golden: Golden, features_of: Callable[[str], FeatureSet]
) -> None:
    for key, array in golden.npz(slice_file).items():
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
