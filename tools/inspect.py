"""Draw the attention maps of a checkpoint for one image, on its way from noise.

    python -m tools.inspect CHECKPOINT key=value ...

Writes a picture per kind of map (``stage1.png``, ``importance.png`` and ``stage2.png`` for
Visual-Contrast Attention, ``softmax.png`` for softmax attention): a row per block, a column per
head. For the former also prints a table, lambda among it. How to read both: docs/attention.md.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from backbone.site import Grid
from process.guidance import GuidanceConfig
from runtime import checkpoint as checkpoints
from runtime.attention_inputs import CallRecorder, Inputs
from runtime.attention_maps import TITLES, Cell, HeadMaps, cell, head_maps
from runtime.build import build_process
from runtime.checkpoint import Checkpoint
from runtime.config import read_target
from runtime.contrast_report import has_contrast, report_block, table
from runtime.errors import UserError, run
from runtime.images import to_uint8
from runtime.map_sheet import Heading, save_sheet
from runtime.sample_config import SampleConfig
from runtime.sampling import Sampler, load_network, open_autoencoder
from runtime.scaling import Scaling


@dataclass(frozen=True)
class InspectConfig:
    image: int = field(
        default=0,
        metadata={"min": 0, "help": "number of the image, as in sample.py labels=balanced"},
    )
    seed: int = field(default=0, metadata={"min": 0, "max": 2**64 - 1})
    call: int = field(default=10, metadata={"min": 0, "help": "which network call, from 0"})
    query: tuple[int, int] | None = field(
        default=None,
        metadata={"min": 0, "help": "row, column of the token that looks; null: the middle one"},
    )
    weights: str = field(default="ema", metadata={"choices": ("ema", "raw")})
    tile_size: int = field(default=64, metadata={"min": 1, "help": "pixels per map"})
    autoencoder: str | None = field(
        default=None, metadata={"help": "hub name or local folder; null: the one of the latents"}
    )
    output_dir: str | None = field(
        default=None, metadata={"help": "null: maps in the checkpoint's run"}
    )


def main(arguments: list[str]) -> None:
    path, config = read_target(InspectConfig, arguments, "CHECKPOINT")
    checkpoint = checkpoints.load(path)
    trained = checkpoint.state.train_config()
    network = load_network(checkpoint, config.weights)
    query = query_of(config, network.config.grid)
    settings = SampleConfig(
        seed=config.seed,
        labels="balanced",
        guidance=GuidanceConfig(),
        autoencoder=config.autoencoder,
    )
    recorder = CallRecorder(config.call)
    sampler = Sampler(network, build_process(trained), trained, settings, torch.device("cpu"))
    with recorder.on(network):
        latents = sampler.latents([config.image])
    if not recorder.inputs:
        raise UserError(f"call = {config.call}, but the sampler made {recorder.num_calls} calls")

    calls = [
        (block.get_submodule("attn"), inputs)
        for block, inputs in zip(network.blocks, recorder.inputs, strict=True)
    ]
    with torch.inference_mode():
        maps = maps_of(calls, network.config.grid, query, trained.attention)
        if has_contrast(network):
            print(table({f"block {i}": report_block(*call) for i, call in enumerate(calls)}))
    pictures = {
        "in the end": picture(latents, checkpoint, settings),
        "at this call (latents)": false_colours(recorder.network_inputs[0]),
    }
    run_dir = checkpoint.path.resolve().parent.parent
    folder = Path(config.output_dir) if config.output_dir else run_dir / "maps"
    about = about_call(config, checkpoint, recorder)
    for name, of_first in maps[0].items():
        asks = of_first.marked is not None
        heading = Heading(
            lines=(TITLES[name], *about, *([place_of(query, network.config.grid)] if asks else [])),
            pictures=pictures,
            grid=network.config.grid,
            query=cell(query) if asks else None,
        )
        shown = [of_block[name] for of_block in maps]
        save_sheet(heading, shown, config.tile_size, folder / f"{name}.png")
        print(folder / f"{name}.png")


def maps_of(
    calls: list[tuple[nn.Module, Inputs]], grid: Grid, query: Cell, attention: str
) -> list[dict[str, HeadMaps]]:
    """Of all blocks, by kind. Raises UserError for a layer that has none."""
    try:
        return [head_maps(*call, grid, query) for call in calls]
    except ValueError as error:
        raise UserError(f"attention={attention}: {error}") from None


def about_call(
    config: InspectConfig, checkpoint: Checkpoint, recorder: CallRecorder
) -> tuple[str, ...]:
    """What the maps are of, in lines."""
    _, t, y = recorder.network_inputs
    model, step = checkpoint.state.train_config().model, checkpoint.state.step
    return (
        f"{model}, step {step:,}, {config.weights} weights",
        f"image {config.image} of seed {config.seed}, class {y.item()}",
        f"call {config.call} of {recorder.num_calls}, at time {t.item():.3g}",
    )


def place_of(query: Cell, grid: Grid) -> str:
    return f"query: row {query[0]}, column {query[1]} of {grid[0]} x {grid[1]}"


def query_of(config: InspectConfig, grid: Grid) -> Cell:
    if config.query is None:
        return grid[0] // 2, grid[1] // 2
    if config.query[0] >= grid[0] or config.query[1] >= grid[1]:
        raise UserError(
            f"query = {list(config.query)} is outside the token grid: rows 0 to {grid[0] - 1}, "
            f"columns 0 to {grid[1] - 1}"
        )
    return config.query


def picture(
    latents: Float[Tensor, "1 channels height width"], checkpoint: Checkpoint, config: SampleConfig
) -> UInt8[np.ndarray, "rows columns 3"]:
    """The decoded image; the latents in false colours where there is no autoencoder."""
    try:
        autoencoder, _ = open_autoencoder(checkpoint, config, torch.device("cpu"))
    except UserError as error:
        print(f"notice: showing latents instead of the image: {error}")
        return false_colours(latents)
    scaling = Scaling.from_json(checkpoint.state.passport["scaling"])
    return to_uint8(autoencoder.decode(latents, scaling, 1))[0].numpy()


def false_colours(
    latents: Float[Tensor, "1 channels height width"],
) -> UInt8[np.ndarray, "height width 3"]:
    """The first three channels, from -3 to 3, as red, green and blue; one channel alone as grey."""
    channels = latents[:, :3] if latents.shape[1] >= 3 else latents[:, :1].expand(-1, 3, -1, -1)
    return to_uint8(channels / 3)[0].numpy()


if __name__ == "__main__":
    run(main)
