"""A polite end: on SIGTERM, SIGINT or SIGUSR1 the step is finished and a checkpoint is written."""

import signal
from types import FrameType

import torch
from accelerate import Accelerator

STOPPED = 3  # exit status of a run that was asked to stop and saved


class StopRequest:
    """Remembers the first signal; a second one ends the process at once."""

    def __init__(self) -> None:
        self.name: str | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.name is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.name = signal.Signals(number).name

    def on_any_process(self, accelerator: Accelerator) -> bool:
        """Whether some process was asked to stop; all processes get the same answer."""
        if accelerator.num_processes == 1:
            return self.name is not None
        asked = torch.tensor(float(self.name is not None), device=accelerator.device)
        return bool(accelerator.reduce(asked, reduction="sum") > 0)
