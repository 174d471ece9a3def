"""The settings of an encoding run."""

from dataclasses import dataclass, field

from runtime.hub_images import HubConfig
from runtime.launch import PRECISIONS
from runtime.passport import DTYPES, KINDS

SCALINGS = ("autoencoder", "scalar", "per_channel")


@dataclass(frozen=True)
class EncodeConfig:
    images: str = field(
        metadata={
            "help": "folder with one sub-folder per class, a zip of it, hf:NAME_OR_FOLDER (Hugging "
            "Face data set), or digits, digits/train, digits/held_out (bundled)"
        }
    )
    latents_dir: str = field(metadata={"help": "folder to write; an unfinished one is continued"})
    autoencoder: str = field(
        metadata={"help": "name on the Hugging Face hub, local folder, or identity (pixels)"}
    )
    autoencoder_revision: str | None = field(
        default=None, metadata={"help": "commit or tag on the hub"}
    )
    image_size: int = field(
        default=256, metadata={"min": 1, "help": "pixels; a multiple of the downsampling"}
    )
    on_bad_image: str = field(
        default="fail",
        metadata={
            "choices": ("fail", "skip"),
            "help": "at a damaged image: stop and name it, or leave it out, named in the manifest",
        },
    )
    kind: str = field(
        default="moments",
        metadata={
            "choices": KINDS,
            "help": "moments (mean and log-variance; training draws afresh from them), or the mean",
        },
    )
    mirrored_copies: bool = field(
        default=True,
        metadata={"help": "encode each mirrored image too, for mirror=true in training"},
    )
    scaling: str = field(
        default="autoencoder",
        metadata={
            "choices": SCALINGS,
            "help": "what the autoencoder's config states; its factor and shift only; or a mean "
            "and deviation per channel, from its config or else measured on these images",
        },
    )
    # float32 loses nothing; float16 halves the disk space and moves a latent by at most 0.05 %.
    dtype: str = field(
        default="float32", metadata={"choices": tuple(DTYPES), "help": "of the stored latents"}
    )
    precision: str = field(
        default="fp32", metadata={"choices": tuple(PRECISIONS), "help": "of the autoencoder"}
    )
    batch_size: int = field(default=32, metadata={"min": 1, "help": "images at a time"})
    shard_size: int = field(default=1024, metadata={"min": 1, "help": "images per file"})
    num_workers: int = field(
        default=2, metadata={"min": 0, "help": "processes that decode images, per process"}
    )
    timeout_minutes: int = field(
        default=60, metadata={"min": 1, "help": "how long processes wait for the slowest"}
    )
    hf: HubConfig = field(default_factory=HubConfig)
