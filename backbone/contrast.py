"""The learned weight of a subtracted attention map.

Differential attention (Ye et al. 2024) and Visual-Contrast Attention subtract ``lambda`` times a
second map from the first. Both learn lambda through four vectors and let it start higher in
deeper blocks; both scale their normalised output by ``1 - lambda_init``.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from backbone.norms import wide_dtype


def lambda_init(block_index: int) -> float:
    """``0.8 - 0.6 exp(-0.3 i)`` for block ``i``, counted from 0: 0.2, 0.356, 0.471, ... 0.8."""
    return 0.8 - 0.6 * math.exp(-0.3 * block_index)


class LambdaWeights(nn.Module):
    """``lambda = exp(q1 . k1) - exp(q2 . k2) + lambda_init``, one number for all heads.

    The four vectors have the length of a head and start as N(0, std^2). The result stays a 0-d
    tensor (a Python number would wait for the device in every layer), in at least float32.
    """

    def __init__(self, head_dim: int, block_index: int, std: float) -> None:
        super().__init__()
        self.start = lambda_init(block_index)
        self.q1 = nn.Parameter(torch.randn(head_dim) * std)
        self.k1 = nn.Parameter(torch.randn(head_dim) * std)
        self.q2 = nn.Parameter(torch.randn(head_dim) * std)
        self.k2 = nn.Parameter(torch.randn(head_dim) * std)

    def forward(self) -> Float[Tensor, ""]:
        dtype = wide_dtype(self.q1)
        q1, k1, q2, k2 = (p.to(dtype) for p in (self.q1, self.k1, self.q2, self.k2))
        # Products and sums, since autocast would round q1 @ k1 to 16 bits.
        return torch.exp((q1 * k1).sum()) - torch.exp((q2 * k2).sum()) + self.start
