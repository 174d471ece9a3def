"""The whole path on real data, in minutes on a CPU: encode, train, sample, score.

    python -m tools.demo key=value ...

Scikit-learn's 1,797 handwritten digits go through a tiny autoencoder; a DiT and a SiT with
Visual-Contrast Attention learn its latents; a small classifier judges 1,000 guided samples of
each. Every step is one of the four programs, called as a user would; what is finished is not done
again. The scores say whether the whole path works. They are no FID and compare with no paper.
"""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.config import read_options
from runtime.digits_classifier import held_out_accuracy
from runtime.errors import UserError, run
from runtime.run_folder import write_json, write_text

FAMILIES = ("dit", "sit")
TITLES = {"dit": "DiT + VCA", "sit": "SiT + VCA"}


@dataclass(frozen=True)
class DemoConfig:
    output_dir: str = "runs/demo"
    smoke: bool = field(
        default=False,
        metadata={"help": "a few steps and images: shows that it runs, not that it works"},
    )


def main(arguments: list[str]) -> None:
    config = read_options(DemoConfig, arguments)
    out = Path(config.output_dir)
    start = time.perf_counter()
    call("encode_latents.py", "configs/demo/encode.yaml", f"latents_dir={out}/latents")
    results: dict[str, Any] = {}
    for family in FAMILIES:
        results |= {family: demonstrate(family, out, config.smoke)}
    results["classifier"] = {"held_out_accuracy": held_out_accuracy()}
    write_json(out / "results.json", results)
    write_text(out / "report.md", report(results))
    print("\n" + table(results))
    minutes = (time.perf_counter() - start) / 60
    print(f"\n{minutes:.1f} minutes. Pictures: {out}/report.md, numbers: {out}/results.json")


def demonstrate(family: str, out: Path, smoke: bool) -> dict[str, float]:
    """Trains, samples and scores one family."""
    run_dir, samples = out / family, out / family / "samples" / "demo"
    short = ["num_steps=20"] if smoke else []
    num_images = 100 if smoke else 1000
    call(
        "train.py",
        f"configs/demo/{family}.yaml",
        f"latents_dir={out}/latents",
        f"output_dir={run_dir}",
        *short,
    )
    call("sample.py", str(run_dir), f"num_images={num_images}", "labels=balanced",
         "batch_size=100", f"output_dir={samples}")  # fmt: skip
    result = run_dir / "results" / "demo.json"
    call("eval_fid.py", str(samples), "extractor=digits", "reference=digits/train",
         f"output={result}")  # fmt: skip
    shutil.copy(samples / "grid.png", run_dir / "grid.png")
    return scores(result)


def call(*command: str) -> None:
    """Runs a program with this Python; shows the command first, and stops where it fails."""
    print(f"\n$ python {' '.join(command)}", flush=True)
    finished = subprocess.run([sys.executable, *command], check=False)
    if finished.returncode != 0:
        raise UserError(f"{command[0]} ended with status {finished.returncode}")


def scores(result: Path) -> dict[str, float]:
    """What eval_fid.py found."""
    found = json.loads(result.read_text())["scores"]
    return {score["quantity"]: score["value"] for score in found}


def table(results: dict[str, Any]) -> str:
    rows = [
        f"| {TITLES[family]} | {results[family]['class_accuracy']:.3f} "
        f"| {results[family]['frechet_digits']:.3f} |"
        for family in FAMILIES
    ]
    accuracy = results["classifier"]["held_out_accuracy"]
    return "\n".join(
        (
            "| model | class accuracy | Frechet distance (digits) |",
            "|---|---|---|",
            *rows,
            "",
            f"Judged by a bundled digits classifier (held-out accuracy {accuracy:.3f}). "
            "These are scores of the demo alone: no FID-50K, comparable with nothing else.",
        )
    )


def report(results: dict[str, Any]) -> str:
    pictures = "\n\n".join(
        f"## {TITLES[family]}\n\nEach row is one class, from 0 to 9.\n\n"
        f"![samples of {TITLES[family]}]({family}/grid.png)"
        for family in FAMILIES
    )
    return f"# Demo: digits\n\n{table(results)}\n\n{pictures}\n"


if __name__ == "__main__":
    run(main)
