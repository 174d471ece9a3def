"""From settings to objects."""

from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from backbone.site import AttentionSite
from backbone.sizes import SIZES
from backbone.transformer import DiffusionTransformer, TransformerConfig
from dit.diffusion import DiffusionConfig
from process.process import Process
from runtime.errors import UserError
from runtime.factory import ATTENTIONS, MODELS, family_of
from runtime.seeding import Purpose, generator
from runtime.training_config import TrainConfig


def build_network(config: TrainConfig) -> DiffusionTransformer:
    """The network with its initial weights, which depend on the seed alone."""
    model, family = MODELS[config.model], family_of(config.model)
    entry, settings = ATTENTIONS[config.attention], getattr(config, config.attention)

    def attention(site: AttentionSite) -> nn.Module:
        return entry.layer(settings, site)

    _check_variance(config)
    channels, rows, columns = config.latent_shape
    assert config.learned_variance is not None and config.time_scale is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(config.seed, Purpose.INITIALISATION).integers(2**63)))
        try:
            return family.network(
                TransformerConfig(
                    latent_size=(rows, columns),
                    in_channels=channels,
                    patch_size=model.patch_size,
                    num_classes=config.num_classes,
                    label_drop=config.label_drop,
                    learned_variance=config.learned_variance,
                    time_scale=config.time_scale,
                    qk_norm=config.qk_norm,
                    gradient_checkpointing=config.gradient_checkpointing,
                    **asdict(SIZES[model.size]),
                ),
                attention,
            )
        except ValueError as error:
            raise UserError(f"{config.model} with attention={config.attention}: {error}") from None


def _check_variance(config: TrainConfig) -> None:
    needed = family_of(config.model).learned_variance(config.process)
    if isinstance(config.process, DiffusionConfig) and config.learned_variance != needed:
        raise UserError(
            f"process.variance = {config.process.variance} needs learned_variance="
            f"{str(needed).lower()} (or null)"
        )


def build_process(config: TrainConfig, sampler: Any = None) -> Process:
    """The process that a network is trained for, with its own sampler or another one."""
    try:
        return family_of(config.model).process(
            config.process, config.sampler if sampler is None else sampler
        )
    except ValueError as error:
        raise UserError(f"process or sampler: {error}") from None
