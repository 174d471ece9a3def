"""Draw the attention maps of a checkpoint for one image, on its way from noise.

    python -m tools.inspect CHECKPOINT key=value ...

Writes a picture per stage (``stage1.png``, ``stage2.png`` for Visual-Contrast Attention,
``softmax.png`` for softmax attention): a row per block, a column per head. See docs/attention.md.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from process.guidance import GuidanceConfig
from runtime import checkpoint as checkpoints
from runtime.attention_maps import MapRecorder, middle_maps, tile
from runtime.build import build_process
from runtime.config import read_target
from runtime.errors import UserError, run
from runtime.images import save_grid
from runtime.sample_config import SampleConfig
from runtime.sampling import Sampler, load_network


@dataclass(frozen=True)
class InspectConfig:
    image: int = field(
        default=0, metadata={"min": 0, "help": "number of the image, as in sample.py"}
    )
    seed: int = field(default=0, metadata={"min": 0, "max": 2**64 - 1})
    call: int = field(default=10, metadata={"min": 0, "help": "which network call, from 0"})
    weights: str = field(default="ema", metadata={"choices": ("ema", "raw")})
    tile_size: int = field(default=64, metadata={"min": 1, "help": "pixels per map"})
    output_dir: str | None = field(
        default=None, metadata={"help": "null: maps in the checkpoint's run"}
    )


def main(arguments: list[str]) -> None:
    path, config = read_target(InspectConfig, arguments, "CHECKPOINT")
    checkpoint = checkpoints.load(path)
    trained = checkpoint.state.train_config()
    network = load_network(checkpoint, config.weights)
    recorder = MapRecorder(network, config.call)
    settings = SampleConfig(seed=config.seed, labels="balanced", guidance=GuidanceConfig())
    process = build_process(trained)
    Sampler(network, process, trained, settings, torch.device("cpu")).latents([config.image])
    if not recorder.inputs[0]:
        raise UserError(f"call = {config.call}, but the sampler made {recorder.calls[0]} calls")

    maps = []
    for block, inputs in zip(network.blocks, recorder.inputs, strict=True):
        try:
            with torch.inference_mode():
                maps.append(
                    middle_maps(block.get_submodule("attn"), inputs[0], network.config.grid)
                )
        except ValueError as error:
            raise UserError(str(error)) from None
    run_dir = checkpoint.path.resolve().parent.parent
    folder = Path(config.output_dir) if config.output_dir else run_dir / "maps"
    for name in maps[0]:
        tiles = [tile(head, config.tile_size) for of_block in maps for head in of_block[name]]
        rows = [f"block {i}" for i in range(len(maps))]
        save_grid(np.stack(tiles), folder / f"{name}.png", len(maps[0][name]), rows)
        print(folder / f"{name}.png")


if __name__ == "__main__":
    run(main)
