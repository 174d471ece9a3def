"""Images from a checkpoint: image i depends on (seed, i), checkpoint and settings alone."""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from backbone.transformer import DiffusionTransformer
from process.denoiser import CountingDenoiser
from process.guidance import GuidedDenoiser
from process.process import Process
from runtime.autoencoder import Autoencoder, AutoencoderIdentity, load_autoencoder
from runtime.build import build_network
from runtime.checkpoint import Checkpoint
from runtime.config_schema import to_yaml
from runtime.ema import initial_share
from runtime.errors import UserError
from runtime.sample_config import SampleConfig
from runtime.seeding import Purpose, normal, uniform
from runtime.training_config import TrainConfig


def load_network(checkpoint: Checkpoint, weights: str) -> DiffusionTransformer:
    """The checkpoint's network in evaluation mode, on the CPU."""
    network = build_network(checkpoint.state.train_config())
    network.load_state_dict(checkpoint.weights(weights))
    return network.eval().requires_grad_(False)


def label_of(index: int, config: SampleConfig, num_classes: int) -> int:
    """The class of image ``index``."""
    classes = range(num_classes) if config.classes is None else config.classes
    if config.labels == "balanced":
        return classes[index % len(classes)]
    u = uniform(config.seed, Purpose.SAMPLING_LABEL, 0, index)
    return classes[min(int(u * len(classes)), len(classes) - 1)]


def check(checkpoint: Checkpoint, config: SampleConfig) -> list[str]:
    """Refuses what this checkpoint cannot do; returns what its user should know."""
    trained = checkpoint.state.train_config()
    for label in config.classes or ():
        if label >= trained.num_classes:
            raise UserError(
                f"classes: {label} is no class; the checkpoint has classes 0 to "
                f"{trained.num_classes - 1}"
            )
    if config.classes == ():
        raise UserError("classes = [] leaves no class to draw; null draws all")
    guided, channels = config.guidance.guided_channels, trained.latent_channels
    if guided is not None and guided > channels:
        raise UserError(
            f"guidance.guided_channels = {guided}, but the latents have {channels} channels"
        )
    if config.guidance.scale != 1 and trained.label_drop == 0:
        raise UserError(
            f"guidance.scale = {config.guidance.scale}, but the checkpoint was trained with "
            "label_drop = 0 and knows no unconditional prediction; use guidance.scale=1"
        )
    share = initial_share(trained.ema, checkpoint.state.ema_updates)
    if config.weights == "ema" and share > 0.05:  # e^-3: updates x (1 - decay) below 3
        return [
            f"the averaged weights still hold {share:.0%} of the initial ones after "
            f"{checkpoint.state.ema_updates} updates; weights=raw may look better"
        ]
    return []


def open_autoencoder(
    checkpoint: Checkpoint, config: SampleConfig, device: torch.device
) -> tuple[Autoencoder, list[str]]:
    """The autoencoder to decode with, and what its user should know.

    Another one than that of the latents is refused, unless the settings allow it.
    """
    stated = AutoencoderIdentity(**checkpoint.state.passport["autoencoder"])
    autoencoder = load_autoencoder(
        config.autoencoder or stated.name,
        config.autoencoder_revision or (None if config.autoencoder else stated.revision),
        device,
    )
    _require_shape(autoencoder, checkpoint)
    if autoencoder.identity.is_same_as(stated):
        return autoencoder, []
    if not config.allow_other_autoencoder:
        raise UserError(
            f"the latents were made by {stated}, not by {autoencoder.identity}; give "
            "autoencoder=NAME_OR_FOLDER, or allow_other_autoencoder=true to decode all the same"
        )
    return autoencoder, [f"decoding with {autoencoder.identity}, not with {stated}"]


def _require_shape(autoencoder: Autoencoder, checkpoint: Checkpoint) -> None:
    """Raises UserError if the autoencoder cannot decode latents of the checkpoint's shape."""
    channels, rows, _ = checkpoint.state.passport["latent_shape"]
    downsampling = checkpoint.state.passport["image_size"] // rows
    if (autoencoder.latent_channels, autoencoder.downsampling) != (channels, downsampling):
        raise UserError(
            f"the latents have {channels} channels and downsampling {downsampling}, but "
            f"{autoencoder.identity} has {autoencoder.latent_channels} and "
            f"{autoencoder.downsampling}; give autoencoder=NAME_OR_FOLDER of the latents' own"
        )


class Sampler:
    """Draws the latents of numbered images."""

    def __init__(
        self,
        network: nn.Module,
        process: Process,
        trained: TrainConfig,
        config: SampleConfig,
        device: torch.device,
    ) -> None:
        self.process = process
        self.trained = trained
        self.config = config
        self.device = device
        self.counter = CountingDenoiser(network)
        self.denoiser = GuidedDenoiser(self.counter, config.guidance, trained.num_classes)
        self.num_images = 0

    def labels(self, indices: list[int]) -> Int[Tensor, " batch"]:
        labels = [label_of(i, self.config, self.trained.num_classes) for i in indices]
        return torch.tensor(labels, device=self.device)

    @torch.inference_mode()
    def latents(self, indices: list[int]) -> Float[Tensor, "batch channels height width"]:
        """Clean latents, in the units that the network was trained on."""
        start = self._noise(Purpose.SAMPLING_START, indices)(0)
        step_noise = self._noise(Purpose.SAMPLING_STEP, indices)
        self.num_images += len(indices)
        try:
            return self.process.sample(self.denoiser, start, self.labels(indices), step_noise)
        except ValueError as error:  # an adaptive step that cannot meet its tolerance
            raise UserError(f"images {indices[0]} to {indices[-1]}: {error}") from None

    @property
    def evaluations_per_image(self) -> float:
        """Network evaluations, both halves of a guided one counted."""
        return self.counter.num_evaluations / max(self.num_images, 1)

    def _noise(self, purpose: Purpose, indices: list[int]) -> Callable[[int], Tensor]:
        def noise(step: int) -> Tensor:
            shape = self.trained.latent_shape
            draws = [normal(self.config.seed, purpose, step, index, shape) for index in indices]
            return torch.stack(draws).to(self.device)

        return noise


def settings_of(
    checkpoint: Checkpoint, config: SampleConfig, autoencoder: AutoencoderIdentity
) -> dict[str, Any]:
    """All that the images depend on, as plain values; results copy it."""
    trained = checkpoint.state.train_config()
    return {
        "model": trained.model,
        "attention": trained.attention,
        "step": checkpoint.state.step,
        "checkpoint": checkpoint.identity,
        "weights": config.weights,
        "num_images": config.num_images,
        "seed": config.seed,
        "labels": config.labels,
        "classes": None if config.classes is None else list(config.classes),
        "preset": config.preset,
        "process": asdict(trained.process),
        "sampler": asdict(config.sampler.resolved()),
        "guidance": asdict(config.guidance),
        "precision": config.precision,
        "rounding": config.rounding,
        "autoencoder": asdict(autoencoder),
        "scaling": checkpoint.state.passport["scaling"],
        "image_size": trained.image_size,
    }


def default_dir(checkpoint: Checkpoint, config: SampleConfig) -> Path:
    """``samples/NAME`` in the run folder, where NAME tells the settings apart."""
    if config.output_dir is not None:
        return Path(config.output_dir)
    same_place = replace(config, npz=True, batch_size=1, decode_batch_size=1, timeout_minutes=1)
    digest = hashlib.sha256(to_yaml(same_place).encode()).hexdigest()[:8]
    name = (
        f"{checkpoint.path.name}-{config.weights}-{config.num_images}"
        f"-guidance{config.guidance.scale:g}-seed{config.seed}-{digest}"
    )
    folder = checkpoint.path.resolve()
    in_a_run = folder.parent.name == "checkpoints"
    return (folder.parent.parent if in_a_run else folder.parent) / "samples" / name
