"""What an attention layer costs: multiply-accumulates, one being two floating-point operations.

Counted are matrix products and convolutions; softmax, norms, pooling and biases are not.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class AttentionMacs:
    """Multiply-accumulates of one attention layer on one image.

    The core are the products between tokens. It is counted twice: as the formulas read, with
    maps subtracted before one read (``core``), and as computed by fused calls (``fused_core``).
    """

    dense: int  # channel-wise maps: qkv, proj and their like
    core: int
    fused_core: int
    convolution: int = 0

    @property
    def total(self) -> int:
        return self.dense + self.core + self.convolution

    @property
    def fused_total(self) -> int:
        return self.dense + self.fused_core + self.convolution


@runtime_checkable
class CountsMacs(Protocol):
    """What every attention layer offers beside its forward pass."""

    def macs(self, num_tokens: int, prefix: int = 0) -> AttentionMacs: ...
