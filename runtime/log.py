"""What a run tells: one line per interval on the screen, the same as JSON, and to TensorBoard."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from runtime.contrast_report import BlockReport, summary
from runtime.run_folder import write_text
from runtime.training_config import TrainConfig


class RunLog:
    """Progress bar, screen lines, ``log.jsonl``, ``contrast.jsonl`` and TensorBoard of one run.

    Only the main process writes; on the others every method does nothing, so callers need not
    ask. After a resume, entries beyond the resumed step are dropped: a file holds each step once.
    """

    def __init__(self, run_dir: Path, first_step: int, config: TrainConfig, is_main: bool) -> None:
        self.is_main = is_main
        if not is_main:
            return
        self.entries = EntryFile(run_dir / "log.jsonl", first_step)
        self.contrast = EntryFile(run_dir / "contrast.jsonl", first_step)
        self.bar = tqdm(
            total=config.num_steps,
            initial=first_step,
            unit="step",
            dynamic_ncols=True,
            smoothing=0.05,
        )
        self.tensorboard = _tensorboard(run_dir, first_step) if config.tracker.tensorboard else None

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_main:
            return
        self.bar.close()
        if self.tensorboard is not None:
            self.tensorboard.close()

    def say(self, text: str) -> None:
        """A line on the screen that leaves the progress bar in one piece."""
        if self.is_main:
            self.bar.write(text)

    def advance(self) -> None:
        if self.is_main:
            self.bar.update()

    def write(self, entry: Mapping[str, float | int]) -> None:
        """An entry: step, epoch, images, loss, grad_norm, lr, images_per_second and more."""
        if not self.is_main:
            return
        self.entries.write(entry)
        self.bar.write(
            f"step {entry['step']:>7}  epoch {entry['epoch']:.2f}  images {entry['images']:,}  "
            f"loss {entry['loss']:.5f}  grad norm {entry['grad_norm']:.3f}  lr {entry['lr']:.2e}  "
            f"{entry['images_per_second']:.1f} images/s"
        )
        if self.tensorboard is not None:
            for key, value in entry.items():
                if key != "step":
                    self.tensorboard.add_scalar(key, value, int(entry["step"]))

    def write_contrast(self, step: int, blocks: dict[str, BlockReport]) -> None:
        """What was seen of the contrast layers: to ``contrast.jsonl``, in short on the screen."""
        if not self.is_main:
            return
        self.contrast.write({"step": step, **blocks})
        self.bar.write(f"step {step:>7}  {summary(blocks)}")
        if self.tensorboard is not None:
            for block, stages in blocks.items():
                for stage, numbers in stages.items():
                    for name, value in numbers.items():
                        tag = f"contrast/{block}/{stage}/{name}"
                        self.tensorboard.add_scalar(tag, value, step)


class EntryFile:
    """JSON objects with a ``step``, one per line. There is no file before the first is written.

    A run that goes on from ``first_step`` drops what lies beyond, and a line that was cut short.
    """

    def __init__(self, path: Path, first_step: int) -> None:
        self.path = path
        if path.exists():
            lines = path.read_text().splitlines(keepends=True)
            whole = (line for line in lines if line.endswith("\n"))
            write_text(path, "".join(x for x in whole if json.loads(x)["step"] <= first_step))

    def write(self, entry: Mapping[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(dict(entry)) + "\n")


def _tensorboard(run_dir: Path, first_step: int) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run_dir / "tensorboard"), purge_step=first_step + 1)
