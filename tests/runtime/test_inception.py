"""The Inception network takes only the weights that it is told to take, and says which."""

import hashlib
import re
from pathlib import Path

import pytest
import torch
from torch_fidelity import feature_extractor_inceptionv3 as port

from runtime import inception
from runtime.errors import UserError
from runtime.inception import InceptionExtractor, find_weights, flatten_spatial

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the right names and shapes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(port, "load_state_dict_from_url", lambda *args, **kwargs: {})
        patch.setattr(port.FeatureExtractorInceptionV3, "load_state_dict", lambda *args: None)
        network = port.FeatureExtractorInceptionV3("inception-v3-compat", ["2048"])
    path = tmp_path_factory.mktemp("weights") / "random.pth"
    torch.save(network.state_dict(), path)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def network(weights: Path) -> InceptionExtractor:
    return InceptionExtractor(weights, CPU, sha256(weights))


def test_features_have_the_stated_sizes(network: InceptionExtractor) -> None:
    images = torch.randint(0, 256, (2, 40, 30, 3), dtype=torch.uint8)
    features = network.features(images)
    assert {tap: tuple(rows.shape) for tap, rows in features.items()} == {
        tap: (2, dim) for tap, dim in network.dims.items()
    }
    assert all(rows.dtype == torch.float32 for rows in features.values())


def test_an_image_does_not_depend_on_its_batch(network: InceptionExtractor) -> None:
    images = torch.randint(0, 256, (3, 32, 32, 3), dtype=torch.uint8)
    together, alone = network.features(images), network.features(images[1:2])
    for tap in network.dims:
        assert torch.allclose(together[tap][1:2], alone[tap], rtol=1e-4, atol=1e-5)


def test_a_surrounding_precision_does_not_matter(network: InceptionExtractor) -> None:
    images = torch.randint(0, 256, (1, 32, 32, 3), dtype=torch.uint8)
    expected, before = network.features(images)["pool"], torch.backends.cudnn.allow_tf32
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(network.features(images)["pool"], expected)
    assert torch.backends.cudnn.allow_tf32 == before


def test_other_weights_are_not_published_ones(network: InceptionExtractor) -> None:
    assert not network.is_published


def test_spatial_features_are_rows_columns_channels() -> None:
    maps = torch.randn(2, 9, 17, 17)
    flat = flatten_spatial(maps)
    assert flat.shape == (2, 2023)
    assert flat[1, (3 * 17 + 5) * 7 + 2] == maps[1, 2, 3, 5]


def test_weights_of_another_hash_are_refused_before_they_are_unpickled(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: pytest.fail("was unpickled"))
    with pytest.raises(UserError, match=re.escape(sha256(weights))):
        InceptionExtractor(weights, CPU)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "sprung",)

    path = tmp_path / "trap.pth"
    torch.save({"fc.weight": Trap()}, path)
    with pytest.raises(UserError, match="no plain file of tensors"):
        InceptionExtractor(path, CPU, sha256(path))
    assert not (tmp_path / "sprung").exists()


def test_a_file_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "part.pth"
    torch.save({"fc.bias": torch.zeros(1008)}, path)
    with pytest.raises(UserError, match="not the weights of"):
        InceptionExtractor(path, CPU, sha256(path))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(UserError, match=r"nowhere\.pth"):
        find_weights("nowhere.pth")


def test_the_environment_may_name_the_file(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(inception.WEIGHTS_VARIABLE, str(weights))
    assert find_weights(None) == weights


def test_without_network_the_file_and_its_source_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv(inception.WEIGHTS_VARIABLE, raising=False)
    monkeypatch.setattr(inception, "URL_INCEPTION_V3", "http://127.0.0.1:9/weights.pth")
    with pytest.raises(UserError, match=r"inception_weights=FILE") as caught:
        find_weights(None)
    assert inception.PUBLISHED_SHA256 in str(caught.value)
    assert not list(tmp_path.rglob("*.pth*"))


def test_a_download_of_another_hash_is_not_kept(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv(inception.WEIGHTS_VARIABLE, raising=False)
    monkeypatch.setattr(inception, "URL_INCEPTION_V3", weights.as_uri())
    with pytest.raises(UserError, match="could not be downloaded"):
        find_weights(None)
    assert not list(tmp_path.rglob("*.pth*"))
