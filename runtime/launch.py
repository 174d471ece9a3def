"""Processes, devices and precision, under accelerate's launcher or plain Python."""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

from runtime.errors import UserError


@dataclass(frozen=True)
class Precision:
    mixed: str  # accelerate's name of the autocast type, "no" for none
    tf32: bool  # whether a GPU may round the inputs of float32 products to 19 bits


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
    _require(precision)
    torch.backends.cuda.matmul.allow_tf32 = chosen.tf32
    torch.backends.cudnn.allow_tf32 = chosen.tf32
    return Accelerator(
        mixed_precision=chosen.mixed,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(minutes=timeout_minutes))],
    )


def _require(precision: str) -> None:
    on_gpu = torch.cuda.is_available() and os.environ.get("ACCELERATE_USE_CPU", "") != "true"
    if precision == "fp16" and not on_gpu:
        raise UserError("precision = fp16 needs a GPU; use fp32 or bf16 here")
    if precision == "tf32" and not (on_gpu and torch.cuda.get_device_capability() >= (8, 0)):
        raise UserError("precision = tf32 needs a GPU of compute capability 8.0; use fp32 here")
    if precision == "bf16" and on_gpu and not torch.cuda.is_bf16_supported():
        raise UserError("precision = bf16 is not available on this GPU; use fp32 or fp16")
