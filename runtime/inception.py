"""The Inception network behind FID, as torch-fidelity ports it, read at the ADM evaluator's taps.

``pool`` (2048) is the last average pool, ``spatial`` (2023) the first 7 channels of the third
17 x 17 block's 1 x 1 branch flattened as (row, column, channel), ``logits`` (1008) the last layer
without its bias. Images go in as 8-bit numbers; the network itself resizes them to 299 x 299 the
way TensorFlow 1 did.
"""

import hashlib
import io
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch_fidelity.feature_extractor_inceptionv3 import (
    URL_INCEPTION_V3,
    FeatureExtractorInceptionV3,
)

from runtime.errors import UserError

PUBLISHED_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
WEIGHTS_VARIABLE = "INCEPTION_WEIGHTS"  # environment variable with the path of the weights file
SPATIAL_CHANNELS = 7
CONNECT_TIMEOUT = 20  # seconds without a byte from the server


class InceptionExtractor:
    """A :class:`~runtime.features.FeatureExtractor`."""

    name = "inception-v3-compat"
    dims = {"pool": 2048, "spatial": 17 * 17 * SPATIAL_CHANNELS, "logits": 1008}  # noqa: RUF012

    def __init__(self, weights: Path, device: torch.device, sha256: str = PUBLISHED_SHA256) -> None:
        self.device = device
        self.weights_sha256 = sha256
        self.is_published = sha256 == PUBLISHED_SHA256
        network = _build(self.name, weights, _tensors(weights, sha256))
        # Convolutions are faster in this layout: 0.8 of the time on two CPU cores.
        self.network = network.to(device=device, memory_format=torch.channels_last)
        self.network.Mixed_6d.branch1x1.register_forward_hook(self._keep_spatial)

    @torch.inference_mode()
    def features(
        self, images: UInt8[Tensor, "batch height width 3"]
    ) -> dict[str, Float[Tensor, "batch _"]]:
        images = images.to(self.device).permute(0, 3, 1, 2)
        with full_precision(self.device):
            pool, logits = self.network(images)
        return {"pool": pool, "spatial": self._spatial, "logits": logits}

    def _keep_spatial(self, module: object, arguments: object, output: Tensor) -> None:
        self._spatial = flatten_spatial(output)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Neither TF32, which moves a feature by about 1e-3 of its size, nor autocast."""
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    allowed = convolutions.allow_tf32, products.allow_tf32
    convolutions.allow_tf32 = products.allow_tf32 = False
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        convolutions.allow_tf32, products.allow_tf32 = allowed


def flatten_spatial(
    maps: Float[Tensor, "batch channels height width"],
) -> Float[Tensor, "batch _"]:
    """The first 7 channels, channels last, as one row per image: the order of stored statistics."""
    return maps[:, :SPATIAL_CHANNELS].permute(0, 2, 3, 1).flatten(start_dim=1)


def find_weights(path: str | None) -> Path:
    """The weights file: the path given, else the environment's, else torch-fidelity's cached one.

    Where there is none it is downloaded, and kept only if its hash is the published one. Raises
    UserError without a network.
    """
    path = path or os.environ.get(WEIGHTS_VARIABLE)
    if path is not None:
        if not Path(path).is_file():
            raise UserError(f"there is no Inception weights file {path}")
        return Path(path)
    cached = Path(torch.hub.get_dir()) / "checkpoints" / Path(URL_INCEPTION_V3).name
    if not cached.is_file():
        _download(cached)
    return cached


def _download(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(CONNECT_TIMEOUT)
    try:
        torch.hub.download_url_to_file(URL_INCEPTION_V3, str(target), hash_prefix=PUBLISHED_SHA256)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"no Inception weights: {target} is absent and could not be downloaded ({error}); "
            f"fetch {URL_INCEPTION_V3} (sha256 {PUBLISHED_SHA256}) and name it by "
            f"inception_weights=FILE or the environment variable {WEIGHTS_VARIABLE}"
        ) from error
    finally:
        socket.setdefaulttimeout(patience)


def _tensors(weights: Path, sha256: str) -> dict[str, Tensor]:
    """The file's tensors, after its hash has been checked. No code in it can run."""
    content = weights.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise UserError(
            f"the Inception weights {weights} have sha256 {found} instead of {sha256}; other "
            f"weights give other numbers (inception_sha256={found} accepts them; results say so)"
        )
    try:
        return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:  # damage shows in many ways
        raise UserError(f"{weights} is no plain file of tensors: {error}") from error


def _build(name: str, weights: Path, tensors: dict[str, Tensor]) -> FeatureExtractorInceptionV3:
    # torch-fidelity unpickles whatever its file holds, so it gets one that we have written.
    packed = io.BytesIO()
    torch.save(tensors, packed)
    packed.seek(0)
    try:
        return FeatureExtractorInceptionV3(
            name, ["2048", "logits_unbiased"], feature_extractor_weights_path=packed
        )
    except RuntimeError as error:
        raise UserError(f"{weights} holds not the weights of {name}: {str(error)[:200]}") from error
