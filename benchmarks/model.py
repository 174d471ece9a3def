"""Time of a training step and of a sampling step of whole networks, attention beside attention.

    python -m benchmarks.model key=value ...

A training step is loss, backward pass, AdamW and the running average, as in ``train.py``; a
sampling step is one network call, without guidance. Networks of one row run in turn on the same
latents; what counts are the ratios to softmax attention. Leaves ``results.json`` in ``output_dir``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from backbone.counts import network_macs
from backbone.transformer import DiffusionTransformer
from benchmarks.measure import COMPILED, PRECISIONS, Timing, autocast, in_order, time_in_turn
from benchmarks.report import RATIOS, Table, machine, require_some, write_results
from process.process import Process
from runtime.build import build_network, build_process
from runtime.config import read_config, read_options
from runtime.ema import Ema
from runtime.errors import run
from runtime.factory import ATTENTIONS, MODELS
from runtime.network_cost import build_without_memory
from runtime.training_config import TrainConfig, sections_of
from vca.attention import VARIANTS

CONFIGS = Path(__file__).parents[1] / "configs"
ATTENTION_KEYS = {name: (f"attention={name}",) for name in ATTENTIONS} | {
    f"vca-{variant}": ("attention=vca", f"vca.variant={variant}")
    for variant in VARIANTS
    if variant != "released"
}


@dataclass(frozen=True)
class ModelBenchmarkConfig:
    models: tuple[str, ...] = field(
        default=("DiT-S/2", "DiT-B/2"), metadata={"choices": tuple(MODELS)}
    )
    image_sizes: tuple[int, ...] = field(default=(256, 512), metadata={"min": 16})
    attentions: tuple[str, ...] = field(
        default=tuple(ATTENTION_KEYS),
        metadata={"choices": tuple(ATTENTION_KEYS), "help": "softmax always"},
    )
    precisions: tuple[str, ...] = field(
        default=("fp32", "bf16"), metadata={"choices": tuple(PRECISIONS)}
    )
    compile: bool = field(
        default=True, metadata={"help": "measure each network compiled as well, as NAME+compile"}
    )
    batch: int = field(default=8, metadata={"min": 1, "help": "images per step at 256 pixels"})
    rounds: int = field(default=15, metadata={"min": 1})
    max_seconds: float = field(
        default=120.0,
        metadata={
            "above": 0,
            "help": "for the rounds of a row, training and sampling each; rounds are cut",
        },
    )
    output_dir: str = field(default="runs/benchmarks/model")

    def __post_init__(self) -> None:
        require_some(models=self.models, image_sizes=self.image_sizes, precisions=self.precisions)


@dataclass(frozen=True)
class Result:
    model: str
    image_size: int
    precision: str
    attention: str
    batch: int
    macs: int  # of one image and forward pass
    training: Timing
    sampling: Timing


def main(arguments: list[str]) -> None:
    config = read_options(ModelBenchmarkConfig, arguments)
    for case in product(config.models, config.image_sizes, ("softmax", *config.attentions)):
        build_without_memory(_settings(*case))  # mistakes end the program before hours of work
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(machine(device.type), flush=True)
    results: list[Result] = []
    path = Path(config.output_dir) / "results.json"
    for model in config.models:
        for precision in config.precisions:
            table = Table(
                f"{model}, {precision}; {RATIOS}",
                ["pixels", "images", "layer", "MACs", "training step", "sampling step"],
            )
            for image_size in config.image_sizes:
                of_row = _measure(config, model, image_size, precision, device)
                results += of_row
                for result in of_row:
                    table.row(image_size, result.batch, *_relative(result, of_row[0]))
                write_results(path, config, device.type, results)
    print(path)


class Steps:
    """A network with what a step of it needs."""

    def __init__(
        self,
        network: DiffusionTransformer,
        process: Process,
        compiled: bool,
        precision: str,
        batch: int,
        device: torch.device,
    ) -> None:
        self.network, self.process, self.precision = network, process, precision
        self.device = device
        self.model: Callable[..., Tensor] = network
        if compiled:
            self.model = torch.compile(network, dynamic=False)
        self.optimizer = torch.optim.AdamW(
            [p for p in network.parameters() if p.requires_grad], lr=1e-4, fused=True
        )
        self.ema = Ema(network, TrainConfig().ema)
        generator = torch.Generator().manual_seed(0)
        shape = (batch, network.config.in_channels, *network.config.latent_size)
        self.x, self.noise = (torch.randn(shape, generator=generator).to(device) for _ in range(2))
        self.u = torch.rand(batch, generator=generator).to(device)
        self.y = torch.arange(batch, device=device) % network.config.num_classes

    def train(self) -> None:
        with autocast(self.precision, self.device):
            losses = self.process.loss(self.model, self.x, self.y, self.noise, self.u)
        losses.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ema.update(self.network)

    def sample(self) -> None:
        t = torch.full((len(self.x),), 0.5, device=self.device)
        with torch.no_grad(), autocast(self.precision, self.device):
            self.model(self.noise, t, self.y)


def _measure(
    config: ModelBenchmarkConfig,
    model: str,
    image_size: int,
    precision: str,
    device: torch.device,
) -> list[Result]:
    """Networks that run in turn, softmax attention first."""
    batch = max(1, config.batch * 256**2 // image_size**2)
    names = in_order(config.attentions, tuple(ATTENTION_KEYS) if config.compile else ())
    steps: dict[str, Steps] = {}
    for name in names:
        settings = _settings(model, image_size, name.removesuffix(COMPILED))
        network, process = build_network(settings).to(device), build_process(settings)
        compiled = name.endswith(COMPILED)
        steps[name] = Steps(network, process, compiled, precision, batch, device)
    in_turn = partial(
        time_in_turn, rounds=config.rounds, max_seconds=config.max_seconds, device=device
    )
    training = in_turn({name: of_name.train for name, of_name in steps.items()})
    sampling = in_turn({name: of_name.sample for name, of_name in steps.items()})
    return [
        Result(
            model,
            image_size,
            precision,
            name,
            batch,
            network_macs(of_name.network).fused_total,
            training[name],
            sampling[name],
        )
        for name, of_name in steps.items()
    ]


def _settings(model: str, image_size: int, attention: str) -> TrainConfig:
    """The shipped recipe of the model's family, with another size and attention."""
    recipe = CONFIGS / MODELS[model].family.lower() / "base.yaml"
    keys = (f"model={model}", f"image_size={image_size}", *ATTENTION_KEYS[attention])
    return read_config(TrainConfig, [str(recipe), *keys], sections_of)


def _relative(result: Result, softmax: Result) -> list[str]:
    """The columns of a row: softmax attention in units, the others as ratios to it."""
    if result is softmax:
        times = [1e3 * timing.seconds for timing in (result.training, result.sampling)]
        return ["softmax", f"{result.macs / 1e9:.2f} G", *(f"{t:.1f} ms" for t in times)]
    ratios = (result.macs / softmax.macs, result.training.ratio, result.sampling.ratio)
    return [result.attention, *(f"{ratio:.3f}" for ratio in ratios)]


if __name__ == "__main__":
    run(main)
