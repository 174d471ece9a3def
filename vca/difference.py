"""What both stages do with a positive and a negative reading."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from backbone.contrast import LambdaWeights
from backbone.norms import RMSNorm


class NormedDifference(nn.Module):
    """``(1 - lambda_init) RMSNorm(positive - lambda negative)``, in at least float32.

    The result has the wide dtype unless another is asked for.
    """

    def __init__(
        self, head_dim: int, block_index: int, *, lambda_std: float, eps: float, affine: bool
    ) -> None:
        super().__init__()
        self.lambda_weights = LambdaWeights(head_dim, block_index, lambda_std)
        self.norm = RMSNorm(head_dim, eps, affine)
        self.scale = 1 - self.lambda_weights.start

    def forward(
        self,
        positive: Float[Tensor, "batch heads tokens head_dim"],
        negative: Float[Tensor, "batch heads tokens head_dim"],
        dtype: torch.dtype | None = None,
    ) -> Float[Tensor, "batch heads tokens head_dim"]:
        weight = self.lambda_weights()
        return self.norm(positive, negative, weight, scale=self.scale, dtype=dtype)

    def normalise(
        self,
        difference: Float[Tensor, "batch heads tokens head_dim"],
        dtype: torch.dtype | None = None,
    ) -> Float[Tensor, "batch heads tokens head_dim"]:
        """For a difference that is taken already."""
        return self.norm(difference, scale=self.scale, dtype=dtype)
