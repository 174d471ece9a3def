"""Files of statistics: mean and covariance over a data set, in the ADM evaluator's keys.

``mu`` and ``sigma`` are of the pooled features, ``mu_s`` and ``sigma_s`` of the spatial ones. A
file of ours also has ``num_images``, ``about`` (the network and the images, as JSON) and, if
wanted, ``pool``: the features of some images, which precision, recall and KID need.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from runtime.atomic import written_whole
from runtime.errors import UserError
from runtime.features import FeatureExtractor, FeatureSet
from runtime.image_sets import read_array
from runtime.moments import Gaussian

STATISTICS = {"pool": ("mu", "sigma"), "spatial": ("mu_s", "sigma_s")}  # names in files, by tap


def save_statistics(
    path: Path, features: FeatureSet, extractor: FeatureExtractor, images: str, images_sha256: str
) -> None:
    """``images`` says in words which images they are and what was done to them."""
    arrays: dict[str, np.ndarray] = {}
    for tap, gaussian in features.gaussians.items():
        mean_key, covariance_key = STATISTICS[tap]
        arrays[mean_key], arrays[covariance_key] = (
            gaussian.mean.numpy(),
            gaussian.covariance.numpy(),
        )
        arrays["num_images"] = np.array(gaussian.num_images)
    arrays |= {tap: rows.numpy() for tap, rows in features.rows.items()}
    about = {
        "extractor": extractor.name,
        "weights_sha256": extractor.weights_sha256,
        "images": images,
        "images_sha256": images_sha256,
    }
    with written_whole(path) as part, part.open("wb") as file:
        np.savez(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]


def read_statistics(
    path: Path, keys: list[str], extractor: FeatureExtractor
) -> tuple[FeatureSet, dict[str, str]]:
    """What the file says of the features that the extractor has, and ``about``; empty if absent.

    Raises UserError where it is of another network.
    """
    about = json.loads(str(read_array(path, "about"))) if "about" in keys else {}
    _check_network(path, about, extractor)
    gaussians = _read_gaussians(path, keys, extractor)
    return FeatureSet(gaussians, _read_rows(path, keys, extractor)), about


def _check_network(path: Path, about: dict[str, str], extractor: FeatureExtractor) -> None:
    """A statistics file that names its network has to name ours."""
    found = about.get("extractor"), about.get("weights_sha256")
    if about and found != (extractor.name, extractor.weights_sha256):
        raise UserError(
            f"{path} was made by {found[0]} with weights {found[1]}, the samples are scored by "
            f"{extractor.name} with weights {extractor.weights_sha256}"
        )


def _read_gaussians(
    path: Path, keys: list[str], extractor: FeatureExtractor
) -> dict[str, Gaussian]:
    num_images = int(read_array(path, "num_images")) if "num_images" in keys else None
    gaussians = {}
    for tap, (mean_key, covariance_key) in STATISTICS.items():
        if mean_key not in keys and covariance_key not in keys:
            continue
        mean, covariance = read_array(path, mean_key), read_array(path, covariance_key)
        dim = extractor.dims.get(tap)
        if mean.shape != (dim,) or covariance.shape != (dim, dim):
            raise UserError(
                f"{path}: {mean_key} and {covariance_key} have the shapes {mean.shape} and "
                f"{covariance.shape}; {extractor.name} gives {dim or 'no'} {tap} features"
            )
        try:
            gaussians[tap] = Gaussian(_float64(mean), _float64(covariance), num_images)
        except ValueError as error:
            raise UserError(f"{path}: {mean_key}, {covariance_key}: {error}") from None
    return gaussians


def _read_rows(path: Path, keys: list[str], extractor: FeatureExtractor) -> dict[str, Tensor]:
    rows = {}
    for tap, dim in extractor.dims.items():
        if tap in keys:
            found = read_array(path, tap)
            if found.ndim != 2 or found.shape[1] != dim:
                raise UserError(f"{path}: {tap} has shape {found.shape} instead of (N, {dim})")
            rows[tap] = torch.from_numpy(np.array(found, dtype=np.float32))
    return rows


def _float64(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float64))
