"""Processes, devices and precision, under accelerate's launcher or plain Python."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list

from runtime.errors import ReportedError, UserError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Precision:
    mixed: str  # accelerate's name of the autocast type, "no" for none
    tf32: bool  # whether a GPU may round the inputs of float32 products to 19 bits


# What accelerate would do by itself if its launcher asked for it, behind the config's back.
LAUNCHER_SETTINGS = {
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1",
    "ACCELERATE_DYNAMO_BACKEND": "no",
}

PRECISIONS = {
    "fp32": Precision("no", tf32=False),
    "tf32": Precision("no", tf32=True),
    "bf16": Precision("bf16", tf32=True),
    "fp16": Precision("fp16", tf32=True),
}


def start(precision: str, timeout_minutes: int = 30) -> Accelerator:
    """Joins the processes of this run, in exactly the precision that the config states.

    A launcher that asks for another one, or a device that lacks it, is an error: nothing runs in
    a precision that nobody chose. A single process starts no process group.
    """
    chosen = PRECISIONS[precision]
    launcher = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launcher not in ("no", chosen.mixed):
        raise UserError(
            f"precision = {precision}, but the launcher asks for --mixed_precision {launcher}; "
            f"leave it out there, or set precision={launcher}"
        )
    for variable, neutral in LAUNCHER_SETTINGS.items():
        if os.environ.get(variable, neutral).lower() != neutral.lower():
            raise UserError(
                f"the launcher sets {variable}={os.environ[variable]}; leave that to the config"
            )
    _require(precision)
    torch.backends.cuda.matmul.allow_tf32 = chosen.tf32
    torch.backends.cudnn.allow_tf32 = chosen.tf32
    return Accelerator(
        mixed_precision=chosen.mixed,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(minutes=timeout_minutes))],
    )


def _require(precision: str) -> None:
    on_gpu = (
        torch.cuda.is_available() and os.environ.get("ACCELERATE_USE_CPU", "").lower() != "true"
    )
    if precision == "fp16" and not on_gpu:
        raise UserError("precision = fp16 needs a GPU; use fp32 or bf16 here")
    if precision == "tf32" and not (on_gpu and torch.cuda.get_device_capability() >= (8, 0)):
        raise UserError("precision = tf32 needs a GPU of compute capability 8.0; use fp32 here")
    if precision == "bf16" and on_gpu and not torch.cuda.is_bf16_supported():
        raise UserError("precision = bf16 is not available on this GPU; use fp32 or fp16")


def on_main(accelerator: Accelerator, action: Callable[[], Result]) -> Result | None:
    """The action's result on the main process, None on the others, which wait for it.

    A user's mistake that the main process meets ends all of them. All processes have to call it.
    """
    result: Result | None = None
    message: list[str | None] = [None]
    if accelerator.is_main_process:
        try:
            result = action()
        except UserError as error:
            message = [str(error)]
    if accelerator.num_processes > 1:
        broadcast_object_list(message)
    if message[0] is not None:
        raise (UserError if accelerator.is_main_process else ReportedError)(message[0])
    return result
