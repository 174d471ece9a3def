"""The tables of everything that a config can name. A new part is one line here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from backbone.site import AttentionSite
from backbone.sizes import SIZES
from backbone.softmax import SoftmaxAttention, SoftmaxConfig
from backbone.transformer import DiffusionTransformer
from baselines.agent import AgentAttention, AgentConfig
from baselines.differential import DifferentialAttention, DifferentialConfig
from care.mixer import CARE, CAREConfig
from dit.diffusion import DiffusionConfig, DiffusionSamplerConfig, GaussianDiffusion
from dit.model import DiT
from process.process import Process
from runtime.errors import unknown
from runtime.metrics import (
    ClassAccuracy,
    FrechetDistance,
    InceptionScore,
    KernelDistance,
    Metric,
    PrecisionRecall,
)
from sit.flow import FlowConfig, FlowSamplerConfig, InterpolantFlow
from sit.model import SiT
from vca.attention import VCAConfig, VisualContrastAttention
from vca.split import SplitContrastAttention, VCASplitConfig


@dataclass(frozen=True)
class AttentionEntry:
    """A layer, built from its own config, which is the section of the layer's name."""

    config: type
    layer: Callable[[Any, AttentionSite], nn.Module]


@dataclass(frozen=True)
class FamilyEntry:
    """What DiT and SiT differ in: the process, its settings, and the network's defaults."""

    network: type[DiffusionTransformer]
    process: Callable[[Any, Any], Process]
    process_config: type
    sampler_config: type
    learned_variance: Callable[[Any], bool]  # default of the key, by the process's settings
    time_scale: float  # default of the key of this name


@dataclass(frozen=True)
class ModelEntry:
    family: str
    size: str
    patch_size: int


ATTENTIONS = {
    "softmax": AttentionEntry(SoftmaxConfig, SoftmaxAttention),
    "vca": AttentionEntry(VCAConfig, VisualContrastAttention),
    "vca_split": AttentionEntry(VCASplitConfig, SplitContrastAttention),
    "differential": AttentionEntry(DifferentialConfig, DifferentialAttention),
    "agent": AttentionEntry(AgentConfig, AgentAttention),
    "care": AttentionEntry(CAREConfig, CARE),
}

FAMILIES = {
    "DiT": FamilyEntry(
        DiT,
        GaussianDiffusion,
        DiffusionConfig,
        DiffusionSamplerConfig,
        learned_variance=lambda process: process.variance == "learned_range",
        time_scale=1.0,
    ),
    "SiT": FamilyEntry(
        SiT,
        InterpolantFlow,
        FlowConfig,
        FlowSamplerConfig,
        learned_variance=lambda process: False,
        time_scale=1000.0,
    ),
}

MODELS = {  # DiT-XL/2 and so on
    f"{family}-{size}/{patch_size}": ModelEntry(family, size, patch_size)
    for family in FAMILIES
    for size in SIZES
    for patch_size in (2, 4, 8)
}

METRICS: dict[str, Metric] = {
    "fid": FrechetDistance("FID", "pool"),
    "sfid": FrechetDistance("sFID", "spatial"),
    "inception_score": InceptionScore(),
    "precision_recall": PrecisionRecall(),
    "kid": KernelDistance(),
    "frechet_digits": FrechetDistance("frechet_digits", "digits"),
    "class_accuracy": ClassAccuracy(),
}


def family_of(model: Any) -> FamilyEntry:
    """The family of a model's name; a one-line error for a name that is not in ``MODELS``."""
    if not isinstance(model, str) or model not in MODELS:
        raise unknown("model", str(model), MODELS)
    return FAMILIES[MODELS[model].family]
