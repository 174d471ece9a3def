"""The settings of a sampling run."""

from dataclasses import dataclass, field
from pathlib import Path

from dit.diffusion import DiffusionSamplerConfig
from process.guidance import GuidanceConfig
from runtime import checkpoint as checkpoints
from runtime.config_schema import Sections, to_tree
from runtime.config_text import Tree, merge
from runtime.errors import UserError
from runtime.factory import family_of
from runtime.images import ROUNDINGS
from runtime.launch import PRECISIONS
from sit.flow import FlowSamplerConfig

# Published protocols by name: the family, and the settings that its numbers were made with. The
# guidance scale differs from row to row and stays a key of its own.
PRESETS: dict[str, tuple[str, Tree]] = {
    "dit-paper": ("DiT", {"sampler": {"method": "ddpm", "num_sampling_steps": "250"}}),
    "sit-paper-ode": ("SiT", {"sampler": {"method": "dopri5"}}),
    "sit-paper-sde": (
        "SiT",
        {
            "sampler": {
                "method": "euler_maruyama",
                "num_sampling_steps": "250",
                "diffusion": "sigma",
                "last_step": "mean",
                "last_step_size": "0.04",
            }
        },
    ),
}
PUBLISHED_GUIDANCE = {"guidance": {"guided_channels": "3"}}

LABEL_RULES = ("balanced", "random")


@dataclass(frozen=True)
class SampleConfig:
    preset: str | None = field(
        default=None,
        metadata={
            "choices": tuple(PRESETS),
            "help": "a published protocol; other keys go before it",
        },
    )
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

    Another sampler than that one starts from its own defaults. A preset takes their place.
    """
    config = checkpoints.load(checkpoint_path).state.train_config()
    tree = {"sampler": to_tree(config.sampler), "guidance": to_tree(config.guidance)}
    sampler = overrides.get("sampler")
    if (
        isinstance(sampler, dict)
        and sampler.get("method", config.sampler.method) != config.sampler.method
    ):
        tree["sampler"] = {}
    preset = overrides.get("preset", "null")
    if preset in PRESETS:
        family, settings = PRESETS[preset]
        if not config.model.startswith(f"{family}-"):
            raise UserError(f"preset = {preset} is for {family}, the checkpoint is {config.model}")
        tree = merge([{"guidance": tree["guidance"]}, settings, PUBLISHED_GUIDANCE])
    return tree, {"sampler": family_of(config.model).sampler_config}
