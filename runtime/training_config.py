"""The settings of a training run, each stated once."""

from dataclasses import dataclass, field

from backbone.softmax import SoftmaxConfig
from baselines.agent import AgentConfig
from baselines.differential import DifferentialConfig
from care.mixer import CAREConfig
from dit.diffusion import DiffusionConfig, DiffusionSamplerConfig
from process.guidance import GuidanceConfig
from runtime.config_schema import Sections
from runtime.config_text import Tree
from runtime.ema import EmaConfig
from runtime.factory import ATTENTIONS, MODELS, family_of
from runtime.launch import PRECISIONS
from sit.flow import FlowConfig, FlowSamplerConfig
from vca.attention import VCAConfig
from vca.split import VCASplitConfig


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW; its learning rate is the key ``lr``."""

    beta1: float = field(default=0.9, metadata={"min": 0, "below": 1})
    beta2: float = field(default=0.999, metadata={"min": 0, "below": 1})
    eps: float = field(default=1e-8, metadata={"above": 0})
    weight_decay: float = field(default=0.0, metadata={"min": 0})
    warmup_steps: int = field(
        default=0, metadata={"min": 0, "help": "optimizer steps over which lr rises from 0"}
    )
    max_grad_norm: float | None = field(
        default=None, metadata={"above": 0, "help": "clips the gradient to this norm; null: never"}
    )


@dataclass(frozen=True)
class TrackerConfig:
    tensorboard: bool = field(
        default=True, metadata={"help": "log to TensorBoard as well, where it is installed"}
    )


@dataclass(frozen=True)
class TrainConfig:
    # The network.
    model: str = field(default="DiT-S/2", metadata={"choices": tuple(MODELS)})
    attention: str = field(default="softmax", metadata={"choices": tuple(ATTENTIONS)})
    qk_norm: bool = field(default=False, metadata={"help": "normalise queries and keys per head"})
    learned_variance: bool | None = field(
        default=None, metadata={"help": "2C output channels; null: as process.variance needs"}
    )
    time_scale: float | None = field(
        default=None,
        metadata={
            "above": 0,
            "help": "factor on the time before its embedding; null: DiT 1, SiT 1000",
        },
    )
    gradient_checkpointing: bool = field(
        default=False, metadata={"help": "recompute blocks in the backward pass to save memory"}
    )
    compile: bool = field(
        default=False, metadata={"help": "compile the network with torch.compile"}
    )

    # The data.
    latents_dir: str = field(default="data/latents", metadata={"help": "made by encode_latents.py"})
    image_size: int = field(default=256, metadata={"min": 1, "help": "pixels per side"})
    downsampling: int = field(
        default=8, metadata={"min": 1, "help": "pixels per latent along a side, of the autoencoder"}
    )
    latent_channels: int = field(default=4, metadata={"min": 1})
    num_classes: int = field(default=1000, metadata={"min": 1, "help": "1: unconditional"})
    mirror: bool = field(
        default=True, metadata={"help": "show each image mirrored half of the time"}
    )
    num_workers: int = field(default=2, metadata={"min": 0, "help": "loader processes per process"})

    # The training.
    num_steps: int = field(default=400_000, metadata={"min": 1, "help": "optimizer steps"})
    global_batch_size: int = field(
        default=256, metadata={"min": 1, "help": "images per optimizer step, over all processes"}
    )
    micro_batch_size: int | None = field(
        default=None,
        metadata={"min": 1, "help": "images per process and forward pass; null: all at once"},
    )
    lr: float = field(default=1e-4, metadata={"above": 0})
    label_drop: float = field(
        default=0.1,
        metadata={
            "min": 0,
            "below": 1,
            "help": "share of labels replaced by the null label; 0 rules out guidance",
        },
    )
    precision: str = field(default="fp32", metadata={"choices": tuple(PRECISIONS)})
    seed: int = field(default=0, metadata={"min": 0, "max": 2**64 - 1})
    timeout_minutes: int = field(
        default=30, metadata={"min": 1, "help": "how long processes wait for one another"}
    )

    # The files.
    output_dir: str = field(default="runs/run", metadata={"help": "the run folder"})
    resume: str = field(
        default="auto",
        metadata={
            "help": "auto: from the newest whole checkpoint of the run folder; never: afresh, in "
            "an empty folder; or a step folder: from exactly this checkpoint",
        },
    )
    init_from: str | None = field(
        default=None,
        metadata={
            "help": "checkpoint of another run whose weights a new run begins with, but for the "
            "classes; null: initial weights"
        },
    )
    init_weights: str = field(
        default="ema", metadata={"choices": ("ema", "raw"), "help": "which weights of init_from"}
    )
    checkpoint_every: int = field(default=50_000, metadata={"min": 1, "help": "optimizer steps"})
    keep_last: int | None = field(
        default=3,
        metadata={"min": 1, "help": "newest checkpoints that stay, older ones go; null: all stay"},
    )
    keep_every: int | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "checkpoints of a multiple of this many optimizer steps stay for ever",
        },
    )
    log_every: int = field(default=100, metadata={"min": 1, "help": "optimizer steps"})
    contrast_every: int | None = field(
        default=1000,
        metadata={
            "min": 0,
            "help": "optimizer steps between reports on layers that subtract attention "
            "(contrast.jsonl); null or 0: never",
        },
    )

    # The parts.
    softmax: SoftmaxConfig = field(default_factory=SoftmaxConfig)
    vca: VCAConfig = field(default_factory=VCAConfig)
    vca_split: VCASplitConfig = field(default_factory=VCASplitConfig)
    differential: DifferentialConfig = field(default_factory=DifferentialConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    care: CAREConfig = field(default_factory=CAREConfig)
    process: DiffusionConfig | FlowConfig = field(default_factory=DiffusionConfig)
    ema: EmaConfig = field(default_factory=EmaConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    # What sample.py uses unless told otherwise.
    sampler: DiffusionSamplerConfig | FlowSamplerConfig = field(
        default_factory=DiffusionSamplerConfig
    )
    guidance: GuidanceConfig = field(default_factory=GuidanceConfig)

    def __post_init__(self) -> None:
        family = family_of(self.model)
        if self.learned_variance is None:  # so that configs and checkpoints state what is in force
            object.__setattr__(self, "learned_variance", family.learned_variance(self.process))
        if self.time_scale is None:
            object.__setattr__(self, "time_scale", family.time_scale)
        if self.image_size % self.downsampling:
            raise ValueError(
                f"image_size {self.image_size} is not divisible by downsampling {self.downsampling}"
            )

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """Channels, rows, columns."""
        side = self.image_size // self.downsampling
        return self.latent_channels, side, side


def sections_of(tree: Tree) -> Sections:
    """The settings of the process and its sampler are those of the model's family."""
    family = family_of(tree.get("model", TrainConfig.model))
    return {"process": family.process_config, "sampler": family.sampler_config}
