"""Time and memory of several computations, measured side by side.

A ratio of two times means something only where both were taken under the same conditions: all
cases run in turn, round after round, and the ratio is the median of the rounds' ratios.
"""

import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

Case = Callable[[], object]

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
COMPILED = "+compile"  # follows the name of what runs compiled


def in_order(attentions: Sequence[str], compiled: Sequence[str]) -> list[str]:
    """What runs in turn: softmax first, the others, and those of ``compiled`` once more."""
    names = ["softmax", *(name for name in attentions if name != "softmax")]
    return names + [name + COMPILED for name in names if name in compiled]


@dataclass(frozen=True)
class Timing:
    seconds: float  # median
    ratio: float  # median over the rounds of this case's time by the first case's


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """As a training run computes in this precision: weights stay float32."""
    dtype = PRECISIONS[precision]
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def time_in_turn(
    cases: Mapping[str, Case], rounds: int, max_seconds: float, device: torch.device
) -> dict[str, Timing]:
    """Times of all cases; ratios are to the first one.

    Each case runs once before, which compiles it and fills caches. There are fewer rounds, one at
    least, where ``rounds`` of them would take longer than ``max_seconds``.
    """
    for case in cases.values():
        case()
    start, times = time.perf_counter(), []
    for _ in range(rounds):
        times.append({name: _timed(case, device) for name, case in cases.items()})
        spent = time.perf_counter() - start
        if spent + spent / len(times) > max_seconds:
            break
    first = next(iter(cases))
    return {
        name: Timing(
            statistics.median(of_round[name] for of_round in times),
            statistics.median(of_round[name] / of_round[first] for of_round in times),
        )
        for name in cases
    }


def _timed(case: Case, device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    case()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def saved_bytes(forward: Callable[[], Tensor], module: nn.Module) -> int:
    """Bytes that ``forward`` keeps for its backward pass, each storage counted once.

    Parameters of ``module`` are left out: they are there anyway.
    """
    parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, Tensor] = {}  # the tensors too, so that no storage is freed and reused

    def remember(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in parameters:
            kept[address] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        forward()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def peak_bytes(case: Case, device: torch.device) -> int:
    """Memory that ``case`` needs at its peak, beyond what is held already.

    On a GPU of its allocator. On a CPU of the process, which has to be a fresh one: its peak never
    falls again.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        case()
        return torch.cuda.max_memory_allocated(device) - before
    before = _peak_of_process()
    case()
    return _peak_of_process() - before


def _peak_of_process() -> int:
    status = Path("/proc/self/status")
    if status.exists():  # Linux, whose getrusage hands a parent's peak down to its children
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return 1024 * int(fields["VmHWM"].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on a Mac
