"""What both stages do with a positive and a negative reading."""

from jaxtyping import Float
from torch import Tensor, nn

from backbone.contrast import LambdaWeights
from backbone.norms import RMSNorm, wide_dtype


class NormedDifference(nn.Module):
    """``(1 - lambda_init) RMSNorm(positive - lambda negative)``, in at least float32.

    Two readings of 16 bits that are nearly alike leave little but rounding behind, which the
    norm would magnify: the difference is taken after widening, and the caller rounds the result.
    """

    def __init__(
        self, head_dim: int, block_index: int, *, lambda_std: float, eps: float, affine: bool
    ) -> None:
        super().__init__()
        self.lambda_weights = LambdaWeights(head_dim, block_index, lambda_std)
        self.norm = RMSNorm(head_dim, eps, affine)

    def forward(
        self,
        positive: Float[Tensor, "batch heads tokens head_dim"],
        negative: Float[Tensor, "batch heads tokens head_dim"],
    ) -> Float[Tensor, "batch heads tokens head_dim"]:
        dtype = wide_dtype(positive)
        return self.normalise(positive.to(dtype) - self.lambda_weights() * negative.to(dtype))

    def normalise(
        self, difference: Float[Tensor, "batch heads tokens head_dim"]
    ) -> Float[Tensor, "batch heads tokens head_dim"]:
        """For a difference that is taken already."""
        return (1 - self.lambda_weights.start) * self.norm(difference)
