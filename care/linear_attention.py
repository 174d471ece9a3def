"""Attention without a softmax, whose cost grows with the number of tokens and not its square."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from backbone.norms import query_key_norm, wide_dtype
from backbone.tokens import merge_heads, split_heads


def feature_map(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """``ELU(x) + 1``: x + 1 above 0, exp(x) below; positive."""
    # torch's ELU gives exp(x) - 1, which has lost exp(x) where that is small.
    return F.relu(x) + x.masked_fill(x > 0, 0).exp()


class LinearAttention(nn.Module):
    """Kernel attention whose values are the input itself.

    With q, k = feature maps of linear maps of the input ``a``, per head:

        out_i = q_i (mean_n k_n^T a_n) / (q_i . mean_n k_n + 1e-6)

    Keys and values meet first, in a head_dim x head_dim matrix; no map between tokens arises.
    All but the linear map is computed in at least float32, and means rather than sums keep the
    matrix in range.
    Source: Katharopoulos et al. 2020.
    """

    def __init__(self, dim: int, head_dim: int, qk_norm: bool) -> None:
        super().__init__()
        self.dim = dim
        self.head_dim = head_dim
        self.qk = nn.Linear(dim, 2 * dim)
        self.q_norm = query_key_norm(qk_norm, head_dim)
        self.k_norm = query_key_norm(qk_norm, head_dim)

    def forward(self, a: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens dim"]:
        queries, keys = self.qk(a).chunk(2, dim=-1)  # batch tokens dim
        queries, keys = self.q_norm(queries), self.k_norm(keys)
        with torch.autocast(a.device.type, enabled=False):
            dtype, num_heads = wide_dtype(a), self.dim // self.head_dim
            # batch heads tokens head_dim
            q, k, v = (split_heads(x.to(dtype), num_heads) for x in (queries, keys, a))
            q, k = feature_map(q), feature_map(k)
            state = k.mT @ v / k.shape[2]  # batch heads head_dim head_dim
            normaliser = (q * k.mean(dim=2, keepdim=True)).sum(dim=-1, keepdim=True) + 1e-6
            return merge_heads(q @ state / normaliser).to(a.dtype)

    def core_macs(self, num_tokens: int) -> int:
        """Of the state, of reading it, and of the normaliser."""
        return num_tokens * (2 * self.dim * self.head_dim + self.dim)

    def dense_macs(self, num_tokens: int) -> int:
        return num_tokens * self.qk.weight.numel()
