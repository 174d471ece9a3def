"""What a benchmark prints and leaves behind."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from runtime.config_schema import to_tree
from runtime.run_folder import write_json
from runtime.versions import versions

COLOURS = {
    "softmax": "#222222",
    "vca": "#d62728",
    "vca-paper": "#ff7f0e",
    "vca-maps": "#f7b6d2",
    "vca_split": "#8c564b",
    "differential": "#9467bd",
    "agent": "#1f77b4",
    "agent-plain": "#17becf",
    "care": "#2ca02c",
}


WIDE = {"layer": 20, "part": 24, "rounds": 16}  # columns of a table, in characters
RATIOS = "layers other than softmax as ratios to it"


def require_some(**lists: Sequence[object]) -> None:
    """Raises ValueError for an empty list: nothing would be measured."""
    for name, entries in lists.items():
        if not entries:
            raise ValueError(f"{name} = [] leaves nothing to measure")


def machine(device: str) -> str:
    """One line: what the numbers were measured on."""
    if device == "cuda":
        where = torch.cuda.get_device_name()
    else:
        where = f"{platform.machine()} CPU, {torch.get_num_threads()} threads of {os.cpu_count()}"
    return f"{where}; torch {torch.__version__}"


class Table:
    """A Markdown table that appears on the screen row by row."""

    def __init__(self, title: str, columns: Sequence[str]) -> None:
        self.widths = [max(len(column), WIDE.get(column, 8)) for column in columns]
        print(f"\n{title}\n", flush=True)
        self.row(*columns)
        print("|" + "|".join("-" * (width + 2) for width in self.widths) + "|", flush=True)

    def row(self, *cells: object) -> None:
        padded = (f"{cell!s:<{width}}" for cell, width in zip(cells, self.widths, strict=True))
        print("| " + " | ".join(padded) + " |", flush=True)

    def note(self, text: str) -> None:
        print(f"<!-- {text} -->", flush=True)


def write_results(path: Path, config: Any, device: str, results: Sequence[Any]) -> None:
    write_json(
        path,
        {
            "machine": machine(device),
            "versions": versions(),
            "config": to_tree(config),
            "results": [asdict(result) for result in results],
        },
    )


def plot(
    path: Path,
    title: str,
    x_label: str,
    panels: Mapping[str, Mapping[str, Mapping[int, float]]],
) -> None:
    """One log-log panel per entry: its name, and a line per series. Needs matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print(f"no {path.name}: matplotlib is not installed (pip install matplotlib)")
        return
    matplotlib.use("agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(5.5 * len(panels), 4.6), squeeze=False, layout="constrained"
    )
    for axis, (panel, series) in zip(axes[0], panels.items(), strict=True):
        for name, points in series.items():
            style, colour = "--" if name == "softmax" else "-", COLOURS.get(name)
            x, y = list(points), list(points.values())
            axis.plot(x, y, style, marker="o", markersize=4, color=colour, label=name)
        axis.set(xscale="log", yscale="log", xlabel=x_label, title=panel)
        ticks = sorted({x for points in series.values() for x in points})
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
