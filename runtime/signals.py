"""A polite end: on SIGTERM, SIGINT or SIGUSR1 the step is finished and a checkpoint is written."""

import signal
import time
from types import FrameType

import torch
from accelerate import Accelerator

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
STOPPED = 3  # exit status of a run that was asked to stop and saved


class StopRequest:
    """Remembers the first signal; another one, a second later or more, ends the process at once.

    Within that second it is the same one: a terminal signals every process of a run, and the
    launcher passes on what it got.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.time = 0.0
        for number in STOPPING:
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.name is None:
            self.name, self.time = signal.Signals(number).name, now
        elif now - self.time > 1:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def on_any_process(self, accelerator: Accelerator) -> bool:
        """Whether some process was asked to stop; all processes get the same answer."""
        if accelerator.num_processes == 1:
            return self.name is not None
        asked = torch.tensor(float(self.name is not None), device=accelerator.device)
        return bool(accelerator.reduce(asked, reduction="sum") > 0)
