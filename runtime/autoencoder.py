"""Autoencoders: images to latents and back, with the scaling that their own config states.

A name is a folder, a name on the Hugging Face hub (OWNER/NAME, or OWNER/NAME/FOLDER), or
``identity`` (pixels as latents). No scaling is written in code: it comes with the weights, and
then with the latents they made.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from runtime.errors import UserError, unknown
from runtime.scaling import Scaling

FAMILIES = ("AutoencoderDC", "AutoencoderKL", "AutoencoderTiny")  # classes of diffusers
CONFIG, WEIGHTS = "config.json", "diffusion_pytorch_model.safetensors"
SPLIT_WEIGHTS = "diffusion_pytorch_model-*.safetensors"  # of large ones, with an index
SPLIT_WEIGHTS_INDEX = f"{WEIGHTS}.index.json"
LOG_VARIANCES = (-30.0, 20.0)  # beyond, the log-variance of a posterior is clamped


@dataclass(frozen=True)
class AutoencoderIdentity:
    """Which autoencoder: the name it was asked for by, and what its weights are."""

    name: str
    revision: str | None
    sha256: str  # of the contents of its weight files

    def is_same_as(self, other: "AutoencoderIdentity") -> bool:
        """Whether the weights are the same, whatever they are called."""
        return self.sha256 == other.sha256

    def __str__(self) -> str:
        revision = "" if self.revision is None else f" at {self.revision}"
        return f"{self.name}{revision} (weights {self.sha256[:12]})"


@dataclass(frozen=True)
class Autoencoder:
    """An autoencoder without gradients; latents leave and enter it in float32."""

    model: Any  # with `encode` and `decode` as in diffusers
    identity: AutoencoderIdentity
    scaling: Scaling  # as its config states it
    downsampling: int  # pixels per latent along each side
    latent_channels: int
    has_posterior: bool  # else it encodes to one latent, without a spread
    device: torch.device
    dtype: torch.dtype

    @torch.no_grad()
    def moments(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch moments rows columns"]:
        """Mean, then log-variance, of the latents of images in [-1, 1]; not scaled.

        The log-variance of an autoencoder without a posterior is the least, -30.
        """
        encoded = self.model.encode(images.to(self.device, self.dtype))
        if hasattr(encoded, "latent_dist"):
            mean, log_variance = encoded.latent_dist.parameters.float().chunk(2, dim=1)
            return torch.cat([mean, log_variance.clamp(*LOG_VARIANCES)], dim=1)
        mean = (encoded.latents if hasattr(encoded, "latents") else encoded.latent).float()
        return torch.cat([mean, torch.full_like(mean, LOG_VARIANCES[0])], dim=1)

    @torch.no_grad()
    def decode(
        self,
        latents: Float[Tensor, "batch channels rows columns"],
        scaling: Scaling,
        batch_size: int,
    ) -> Float[Tensor, "batch 3 height width"]:
        """Images, about in [-1, 1], of latents that were normalised by ``scaling``.

        At most ``batch_size`` images at a time: a decoder needs far more memory per image than
        the network that made the latents.
        """
        latents = scaling.denormalise(latents.float()).to(self.device, self.dtype)
        parts = [self.model.decode(part).sample.float() for part in latents.split(batch_size)]
        return torch.cat(parts)


def load_autoencoder(
    name: str,
    revision: str | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Autoencoder:
    """The autoencoder of that name. Raises UserError, saying what to download, if it is absent."""
    device = torch.device(device)
    if name == "identity":
        identity = AutoencoderIdentity(name, None, hashlib.sha256().hexdigest())
        return Autoencoder(_Pixels(), identity, Scaling(), 1, 3, False, device, dtype)
    folder = _local_folder(name, revision)
    config = _read_config(folder)
    if dtype == torch.float16 and config.get("force_upcast"):
        raise UserError(
            f"autoencoder {name!r} overflows in fp16, as its config says (force_upcast); use "
            "precision=fp32 or bf16, or weights that were mended for fp16"
        )
    model = _load_model(folder, config["_class_name"], dtype)
    completed = dict(model.config)  # with diffusers' defaults where the file is silent
    stages = completed.get("encoder_block_out_channels") or completed["block_out_channels"]
    return Autoencoder(
        model=model.to(device).eval().requires_grad_(False),
        identity=AutoencoderIdentity(name, revision, _weights_sha256(folder)),
        scaling=scaling_of(config, completed),
        downsampling=2 ** (len(stages) - 1),
        latent_channels=completed["latent_channels"],
        has_posterior=config["_class_name"] == "AutoencoderKL",
        device=device,
        dtype=dtype,
    )


def scaling_of(config: dict[str, Any], completed: dict[str, Any]) -> Scaling:
    """The scaling that an autoencoder's config states.

    Where it states statistics per channel and no factor, the factor is 1; where it states
    neither, diffusers' default for that class holds, which is in the ``completed`` config.
    """
    shift = config.get("shift_factor") or 0.0
    if config.get("latents_mean") is not None and config.get("latents_std") is not None:
        mean, std = (tuple(map(float, config[key])) for key in ("latents_mean", "latents_std"))
        return Scaling(float(config.get("scaling_factor") or 1.0), float(shift), mean, std)
    return Scaling(float(completed["scaling_factor"]), float(shift))


def _local_folder(name: str, revision: str | None) -> Path:
    """The folder with config and weights: the one named, or the hub's copy of that name."""
    if Path(name).is_dir():
        return Path(name)
    owner, _, rest = name.partition("/")
    repository, _, inside = rest.partition("/")
    if not repository or owner in ("", ".", "..", "~"):
        raise UserError(
            f"autoencoder {name!r}: no such folder, and no name on the hub (OWNER/NAME) or "
            f"`identity`; a folder needs {CONFIG} and {WEIGHTS}"
        )
    from huggingface_hub import snapshot_download

    files = [CONFIG, WEIGHTS, SPLIT_WEIGHTS, SPLIT_WEIGHTS_INDEX]
    wanted = [f"{inside}/{file}" if inside else file for file in files]
    try:
        copy = snapshot_download(f"{owner}/{repository}", revision=revision, allow_patterns=wanted)
        return Path(copy) / inside
    except Exception as error:  # the hub's client raises errors of several libraries
        offline = " and HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE") else ""
        pinned = f" --revision {revision}" if revision else ""
        raise UserError(
            f"autoencoder {name!r} is neither a folder nor in the hub's cache{offline}, and could "
            f"not be downloaded ({type(error).__name__}); where there is a network, run "
            f"`hf download {owner}/{repository}{pinned}`, or name a folder with its {CONFIG} and "
            f"{WEIGHTS}"
        ) from error


def _read_config(folder: Path) -> dict[str, Any]:
    if not (folder / CONFIG).exists():
        raise UserError(f"the autoencoder folder {folder} has no {CONFIG}; download it there")
    config: dict[str, Any] = json.loads((folder / CONFIG).read_text())
    family = config.get("_class_name", "")
    if family not in FAMILIES:
        raise unknown(f"autoencoder class in {folder / CONFIG}", family, FAMILIES)
    return config


def _weight_files(folder: Path) -> list[Path]:
    files = sorted([*folder.glob(WEIGHTS), *folder.glob(SPLIT_WEIGHTS)])
    if not files:
        raise UserError(f"the autoencoder folder {folder} has no {WEIGHTS}; download it there")
    return files


def _weights_sha256(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in _weight_files(folder):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _load_model(folder: Path, family: str, dtype: torch.dtype) -> Any:
    import diffusers  # takes seconds, which a mistyped key should not wait for

    _weight_files(folder)
    try:
        return getattr(diffusers, family).from_pretrained(
            folder, torch_dtype=dtype, local_files_only=True
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"cannot load the autoencoder in {folder}: {error}") from error


class _Pixels(nn.Module):
    """Pixels as latents."""

    @dataclass
    class Encoded:
        latents: Tensor

    @dataclass
    class Decoded:
        sample: Tensor

    def encode(self, images: Tensor) -> "_Pixels.Encoded":
        return self.Encoded(images)

    def decode(self, latents: Tensor) -> "_Pixels.Decoded":
        return self.Decoded(latents)
