"""The place in the network where an attention layer sits."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

Grid = tuple[int, int]  # rows, columns of the token grid


@dataclass(frozen=True)
class AttentionSite:
    """All that an attention layer may know of the network around it.

    A layer is built from its own config and a site, and maps tokens to tokens:
    ``forward(tokens, grid=None, prefix=0)``. Prefix tokens come first and have no
    place on the grid; ``grid=None`` means the site's.
    """

    dim: int
    num_heads: int
    grid: Grid  # the training grid; a call may pass another
    block_index: int  # counted from 0
    qk_norm: bool = False  # normalise queries and keys per head

    def __post_init__(self) -> None:
        if self.dim % self.num_heads:
            raise ValueError(f"dim {self.dim} is not divisible by num_heads {self.num_heads}")

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads


AttentionBuilder = Callable[[AttentionSite], nn.Module]
