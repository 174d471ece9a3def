"""The log interval under way: its mean loss, last gradient norm and speed."""

import time

import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor

from runtime.errors import UserError


class Interval:
    """Sums on the device, so that no step has to wait for a number.

    The sums go into checkpoints: a resumed run logs what an uninterrupted one would.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._reset()

    def _reset(self) -> None:
        device = self.accelerator.device
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.grad_norm = torch.zeros((), device=device)
        self.num_steps = 0
        self.num_steps_here = 0  # without those before a resume, which took no time of ours
        self.start = time.perf_counter()

    def add(self, loss: Float[Tensor, ""]) -> None:
        """A micro-batch's share of this process's mean loss."""
        self.loss_sum += loss

    def end_step(self, grad_norm: Float[Tensor, ""]) -> None:
        self.grad_norm = grad_norm
        self.num_steps += 1
        self.num_steps_here += 1

    def state(self) -> dict[str, float | int]:
        """The sums as plain numbers, for a checkpoint. All processes have to call it."""
        loss_sum = self.accelerator.reduce(self.loss_sum.clone(), reduction="mean")
        overflowed = self.accelerator.scaler is None and not torch.isfinite(self.grad_norm)
        if overflowed or not torch.isfinite(loss_sum):
            raise UserError(
                f"the loss became {loss_sum.item() / max(self.num_steps, 1)}, the gradient's norm "
                f"{self.grad_norm.item()}; nothing was saved since the last checkpoint "
                "(try a lower lr, optimizer.max_grad_norm=1 or precision=fp32)"
            )
        return {"loss_sum": loss_sum.item(), "num_steps": self.num_steps}

    def load(self, state: dict[str, float | int]) -> None:
        self.loss_sum += state.get("loss_sum", 0.0)
        self.num_steps = int(state.get("num_steps", 0))

    def finish(self) -> dict[str, float]:
        """Loss, gradient norm and steps per second of the interval, and a fresh start.

        All processes have to call it.
        """
        state, seconds = self.state(), time.perf_counter() - self.start
        entry = {
            "loss": state["loss_sum"] / state["num_steps"],
            "grad_norm": float(self.grad_norm),
            "steps_per_second": self.num_steps_here / seconds,
        }
        self._reset()
        return entry
