"""Torch's operations seen from outside: their precision, and the memory that they hold."""

import weakref
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SIXTEEN_BITS = (torch.bfloat16, torch.float16)

# Softmax, norms, lambda, differences, losses, in torch's names of their operations.
NEVER_OF_16_BITS = {
    "_softmax", "_log_softmax", "logsumexp", "exp", "log", "sqrt", "rsqrt", "pow", "square",
    "reciprocal", "div", "sub", "rsub", "neg", "addcmul", "addcdiv", "lerp", "sigmoid", "silu",
    "tanh", "linalg_vector_norm", "native_layer_norm", "_fused_rms_norm", "var", "var_mean",
    "mse_loss",
}  # fmt: skip
# Sums of 16-bit numbers may be taken, if their result is wider.
NEVER_TO_16_BITS = {"mean", "sum", "mul"}


class AttentionCall(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    result: Tensor
    mask: Tensor | None
    scale: float | None


class PrecisionWatch(TorchDispatchMode):
    """Counts operations of 16 bits that have to be wider, and keeps every fused attention call."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: Counter[str] = Counter()
        self.attention: list[AttentionCall] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::").removesuffix("_")
        if (name in NEVER_OF_16_BITS and _has_16_bits(args)) or (
            name in NEVER_TO_16_BITS and _has_16_bits(result)
        ):
            self.faults[name] += 1
        if "scaled_dot_product" in name:
            q, k, v = args[:3]
            mask, scale = kwargs.get("attn_mask"), kwargs.get("scale")
            self.attention.append(AttentionCall(q, k, v, result[0], mask, scale))
        return result


def _has_16_bits(tree: Any) -> bool:
    return any(x.dtype in SIXTEEN_BITS for x in tree_leaves(tree) if isinstance(x, Tensor))


class LiveMemory(TorchDispatchMode):
    """The most bytes that the results of operations held at once."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}  # address -> bytes
        self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._hold(tensor.untyped_storage())
        self.peak = max(self.peak, sum(self.live.values()))
        return result

    def _hold(self, storage: torch.UntypedStorage) -> None:
        address = storage.data_ptr()
        if address not in self.live and storage.nbytes():
            self.live[address] = storage.nbytes()
            weakref.finalize(storage, self.live.pop, address, None)
