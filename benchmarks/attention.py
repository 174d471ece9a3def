"""Time and memory of attention layers beside softmax attention, over the number of tokens.

    python -m benchmarks.attention key=value ...

All layers of one size run in turn on the same tokens; what counts are ratios within a round. The
same program serves a GPU. Prints a table per width and precision, and leaves ``results.json`` and
a log-log plot per table in ``output_dir``. Cases that would take too long are left out by name.
"""

import dataclasses
import math
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from backbone import initialisation
from backbone.macs import CountsMacs
from backbone.site import AttentionSite
from backbone.sizes import SIZES
from baselines.agent import AgentConfig
from benchmarks.measure import (
    COMPILED,
    PRECISIONS,
    Timing,
    autocast,
    in_order,
    peak_bytes,
    saved_bytes,
    time_in_turn,
)
from benchmarks.report import RATIOS, Table, machine, plot, require_some, write_results
from runtime.config import read_options
from runtime.errors import UserError, run
from runtime.factory import ATTENTIONS
from vca.attention import VCAConfig, VisualContrastAttention

VARIANTS = {
    "vca-paper": ("vca", VCAConfig(variant="paper")),
    "vca-maps": ("vca", VCAConfig()),  # the same layer, keeping its maps
    "agent-plain": ("agent", AgentConfig(position_bias=False)),
}
LAYERS = {name: (name, entry.config()) for name, entry in ATTENTIONS.items()} | VARIANTS
MAPS = "vca-maps"


@dataclass(frozen=True)
class AttentionBenchmarkConfig:
    attentions: tuple[str, ...] = field(
        default=tuple(LAYERS), metadata={"choices": tuple(LAYERS), "help": "softmax always"}
    )
    tokens: tuple[int, ...] = field(
        default=(64, 256, 1024, 4096, 16384),
        metadata={"min": 4, "help": "square numbers: tokens of an image"},
    )
    sizes: tuple[str, ...] = field(
        default=("S", "XL"), metadata={"choices": tuple(SIZES), "help": "widths, by model size"}
    )
    precisions: tuple[str, ...] = field(
        default=("fp32", "bf16"), metadata={"choices": tuple(PRECISIONS)}
    )
    compile: bool = field(
        default=False, metadata={"help": "measure each layer compiled as well, as NAME+compile"}
    )
    tokens_per_batch: int = field(
        default=4096, metadata={"min": 1, "help": "images are batched up to so many tokens"}
    )
    rounds: int = field(default=15, metadata={"min": 1})
    max_seconds: float = field(
        default=60.0,
        metadata={
            "above": 0,
            "help": "for the rounds of one number of tokens, "
            "forward and training each; rounds are cut",
        },
    )
    max_seconds_per_call: float = field(
        default=30.0,
        metadata={"above": 0, "help": "a case that is expected to take longer is left out"},
    )
    peaks: bool = field(
        default=True,
        metadata={"help": "peak memory as well; on a CPU each case takes a fresh process"},
    )
    output_dir: str = field(default="runs/benchmarks/attention")

    def __post_init__(self) -> None:
        require_some(tokens=self.tokens, sizes=self.sizes, precisions=self.precisions)


@dataclass(frozen=True)
class Case:
    """A layer at a number of tokens, with what it takes to build it anywhere."""

    name: str
    size: str
    precision: str
    tokens: int
    batch: int
    device: str

    @property
    def compiled(self) -> bool:
        return self.name.endswith(COMPILED)

    def layer(self) -> nn.Module:
        size, side = SIZES[self.size], math.isqrt(self.tokens)
        attention, settings = LAYERS[self.name.removesuffix(COMPILED)]
        site = AttentionSite(size.dim, size.num_heads, (side, side), block_index=size.depth // 2)
        torch.manual_seed(0)
        layer = ATTENTIONS[attention].layer(settings, site)
        initialisation.xavier(layer)
        return layer.to(self.device)

    def inputs(self) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        shape = (self.batch, self.tokens, SIZES[self.size].dim)
        return torch.randn(shape, generator=generator).to(self.device).requires_grad_()

    def forward(self, layer: nn.Module) -> Callable[[Tensor], Tensor]:
        """The layer's call, in the case's precision."""
        call: Callable[[Tensor], Tensor] = layer
        if self.name == MAPS:
            assert isinstance(layer, VisualContrastAttention)
            call = lambda tokens: layer.maps(tokens).output  # noqa: E731
        if self.compiled:
            call = torch.compile(layer, dynamic=False)

        def forward(tokens: Tensor) -> Tensor:
            with autocast(self.precision, torch.device(self.device)):
                return call(tokens)

        return forward

    def macs(self) -> int:
        """Of the layer on one image, as it is computed here."""
        with torch.device("meta"):
            layer = dataclasses.replace(self, device="meta").layer()
        assert isinstance(layer, CountsMacs)
        macs = layer.macs(self.tokens)
        return macs.total if self.name == MAPS else macs.fused_total


@dataclass(frozen=True)
class Result:
    case: Case
    macs: int  # of one image
    forward: Timing
    training: Timing  # forward and backward
    saved_bytes: int  # for the backward pass, of the batch
    peak_bytes: int | None


def main(arguments: list[str]) -> None:
    config = read_options(AttentionBenchmarkConfig, arguments)
    for tokens in config.tokens:
        if math.isqrt(tokens) ** 2 != tokens:
            raise UserError(f"tokens = {tokens} is not a square number")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(machine(device), flush=True)
    results: list[Result] = []
    output = Path(config.output_dir)
    for size in config.sizes:
        for precision in config.precisions:
            of_table = _measure_table(config, size, precision, device)
            results += of_table
            rows = [r for r in of_table if not r.case.compiled]
            plot(
                output / f"{size}_{precision}.png",
                f"{size} width ({SIZES[size].dim}), {precision}, {device}",
                "tokens",
                {
                    "forward + backward, ms per image": _series(
                        rows, lambda r: 1e3 * r.training.seconds / r.case.batch
                    ),
                    "kept for backward, MB per image": _series(
                        rows, lambda r: r.saved_bytes / r.case.batch / 1e6
                    ),
                },
            )
            write_results(output / "results.json", config, device, results)
    print(f"{output / 'results.json'} and a plot per table beside it")


def _measure_table(
    config: AttentionBenchmarkConfig, size: str, precision: str, device: str
) -> list[Result]:
    """All numbers of tokens of one table, printed row by row."""
    names = in_order(config.attentions, [n for n in LAYERS if config.compile and n != MAPS])
    columns = ["MACs", "forward", "forward + backward", "kept for backward", "peak"]
    table = Table(f"{size} width, {precision}; {RATIOS}", ["tokens", "images", "layer", *columns])
    results: list[Result] = []
    for tokens in config.tokens:
        batch = max(1, config.tokens_per_batch // tokens)
        cases = {n: Case(n, size, precision, tokens, batch, device) for n in names}
        for name in names:
            seconds = _expected_seconds(cases[name], results)
            if seconds > config.max_seconds_per_call:
                table.note(f"{name} at {tokens} tokens left out: expected {seconds:.0f} s a call")
                del cases[name]
        if "softmax" not in cases:
            table.note(f"all layers at {tokens} tokens left out: nothing to compare them with")
            continue
        of_row = _measure(config, list(cases.values()))
        results += of_row
        for result in of_row:
            table.row(tokens, batch, result.case.name, *_relative(result, of_row[0]))
    return results


def _expected_seconds(case: Case, results: list[Result]) -> float:
    """Of a training call, from the same layer with fewer tokens."""
    smaller = [r for r in results if r.case.name == case.name]
    if not smaller:
        return 0.0
    work = smaller[-1].macs * smaller[-1].case.batch
    return smaller[-1].training.seconds * case.macs() * case.batch / work


def _measure(config: AttentionBenchmarkConfig, cases: list[Case]) -> list[Result]:
    """Results of layers that run in turn, softmax attention first."""
    device = torch.device(cases[0].device)
    tokens = cases[0].inputs()
    layers = {case.name: case.layer() for case in cases}
    calls = {case.name: case.forward(layers[case.name]) for case in cases}

    def infer(call: Callable[[Tensor], Tensor]) -> None:
        with torch.no_grad():
            call(tokens)

    in_turn = partial(
        time_in_turn, rounds=config.rounds, max_seconds=config.max_seconds, device=device
    )
    forward = in_turn({name: partial(infer, call) for name, call in calls.items()})
    training = in_turn({name: partial(_train, call, tokens) for name, call in calls.items()})
    saved = {n: saved_bytes(partial(call, tokens), layers[n]) for n, call in calls.items()}
    peaks = {c.name: _peak(c) if config.peaks and not c.compiled else None for c in cases}
    return [
        Result(c, c.macs(), forward[c.name], training[c.name], saved[c.name], peaks[c.name])
        for c in cases
    ]


def _train(call: Callable[[Tensor], Tensor], tokens: Tensor) -> None:
    output = call(tokens)
    output.backward(torch.ones_like(output))
    tokens.grad = None


def _peak(case: Case) -> int:
    """On a CPU the peak of a fresh process, beyond what it holds before the call."""
    if case.device != "cpu":
        return _peak_here(case)
    with multiprocessing.get_context("spawn").Pool(1) as fresh:
        return fresh.apply(_peak_here, (case,))


def _peak_here(case: Case) -> int:
    call, tokens = case.forward(case.layer()), case.inputs()
    return peak_bytes(partial(_train, call, tokens), torch.device(case.device))


def _relative(result: Result, softmax: Result) -> list[str]:
    """The columns of a row: softmax attention in units, the others as ratios to it."""
    ours, theirs = result.macs, softmax.macs
    if result is softmax:
        batch = result.case.batch
        peak = "" if result.peak_bytes is None else f"{result.peak_bytes / 1e6:.1f} MB"
        return [
            f"{ours / 1e6:.1f} M",
            f"{1e3 * result.forward.seconds:.1f} ms",
            f"{1e3 * result.training.seconds:.1f} ms",
            f"{result.saved_bytes / 1e6 / batch:.1f} MB per image",
            peak,
        ]
    peak = "" if result.peak_bytes is None else _ratio(result.peak_bytes, softmax.peak_bytes)
    return [
        _ratio(ours, theirs),
        f"{result.forward.ratio:.3f}",
        f"{result.training.ratio:.3f}",
        _ratio(result.saved_bytes, softmax.saved_bytes),
        peak,
    ]


def _ratio(ours: int, theirs: int | None) -> str:
    return f"{ours / theirs:.3f}" if theirs else ""


def _series(results: list[Result], value: Callable[[Result], float]) -> dict[str, dict[int, float]]:
    """Layer to tokens to value."""
    series: dict[str, dict[int, float]] = {}
    for result in results:
        series.setdefault(result.case.name, {})[result.case.tokens] = value(result)
    return series


if __name__ == "__main__":
    run(main)
