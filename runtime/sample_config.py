"""The settings of a sampling run."""

from dataclasses import dataclass, field
from pathlib import Path

from dit.diffusion import DiffusionSamplerConfig
from process.guidance import GuidanceConfig
from runtime import checkpoint as checkpoints
from runtime.config_schema import Sections, to_tree
from runtime.config_text import Tree
from runtime.factory import family_of
from runtime.images import ROUNDINGS
from runtime.launch import PRECISIONS
from sit.flow import FlowSamplerConfig

LABEL_RULES = ("balanced", "random")


@dataclass(frozen=True)
class SampleConfig:
    num_images: int = field(default=50_000, metadata={"min": 1})
    seed: int = field(
        default=0, metadata={"min": 0, "max": 2**64 - 1, "help": "image i depends on (seed, i)"}
    )
    weights: str = field(default="ema", metadata={"choices": ("ema", "raw")})
    labels: str = field(
        default="random",
        metadata={
            "choices": LABEL_RULES,
            "help": "balanced: image i has class i modulo their number",
        },
    )
    classes: tuple[int, ...] | None = field(
        default=None, metadata={"min": 0, "help": "draw these classes only; null: all"}
    )
    batch_size: int = field(
        default=32, metadata={"min": 1, "help": "images per process and network call"}
    )
    decode_batch_size: int = field(
        default=8, metadata={"min": 1, "help": "images decoded at once; decoders need much memory"}
    )
    precision: str = field(default="fp32", metadata={"choices": tuple(PRECISIONS)})
    rounding: str = field(
        default="nearest",
        metadata={"choices": ROUNDINGS, "help": "to 8 bits; truncate: half a grey level darker"},
    )
    autoencoder: str | None = field(
        default=None, metadata={"help": "hub name or local folder; null: the one of the latents"}
    )
    autoencoder_revision: str | None = None
    allow_other_autoencoder: bool = field(
        default=False, metadata={"help": "decode although the autoencoder's hash differs"}
    )
    output_dir: str | None = field(
        default=None, metadata={"help": "null: samples/NAME in the run folder"}
    )
    npz: bool = field(default=True, metadata={"help": "also write samples.npz for ADM's evaluator"})
    grid_columns: int = field(
        default=8, metadata={"min": 1, "help": "images per class in grid.png"}
    )
    grid_rows: int = field(default=16, metadata={"min": 1, "help": "classes in grid.png, at most"})
    timeout_minutes: int = field(
        default=120, metadata={"min": 1, "help": "how long processes wait for one another"}
    )
    sampler: DiffusionSamplerConfig | FlowSamplerConfig = field(
        default_factory=DiffusionSamplerConfig
    )
    guidance: GuidanceConfig = field(default_factory=GuidanceConfig)


def defaults_of(checkpoint_path: Path, overrides: Tree) -> tuple[Tree, Sections]:
    """Sampler and guidance as the checkpoint's own config has them.

    Another sampler than that one starts from its own defaults.
    """
    config = checkpoints.load(checkpoint_path).state.train_config()
    tree = {"sampler": to_tree(config.sampler), "guidance": to_tree(config.guidance)}
    sampler = overrides.get("sampler")
    if (
        isinstance(sampler, dict)
        and sampler.get("method", config.sampler.method) != config.sampler.method
    ):
        tree["sampler"] = {}
    return tree, {"sampler": family_of(config.model).sampler_config}
