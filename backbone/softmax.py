"""Multi-head softmax attention, the layer that DiT and SiT were published with."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from backbone.macs import AttentionMacs
from backbone.norms import query_key_norm
from backbone.site import AttentionSite, Grid
from backbone.tokens import merge_heads, resolve_grid, split_heads


@dataclass(frozen=True)
class SoftmaxConfig:
    qkv_bias: bool = field(default=True, metadata={"help": "biases on queries, keys and values"})


class SoftmaxAttention(nn.Module):
    """``softmax(q k^T / sqrt(head_dim)) v`` per head, between two linear maps."""

    def __init__(self, config: SoftmaxConfig, site: AttentionSite) -> None:
        super().__init__()
        self.site = site
        self.qkv = nn.Linear(site.dim, 3 * site.dim, bias=config.qkv_bias)
        self.q_norm = query_key_norm(site.qk_norm, site.head_dim)
        self.k_norm = query_key_norm(site.qk_norm, site.head_dim)
        self.proj = nn.Linear(site.dim, site.dim)

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid | None = None, prefix: int = 0
    ) -> Float[Tensor, "batch tokens dim"]:
        resolve_grid(tokens.shape[1], grid, self.site.grid, prefix)
        q, k, v = self._project(tokens)
        return self.proj(merge_heads(F.scaled_dot_product_attention(q, k, v)))

    def maps(
        self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid | None = None, prefix: int = 0
    ) -> Float[Tensor, "batch heads tokens tokens"]:
        """The map that ``forward`` does not keep, to look at."""
        resolve_grid(tokens.shape[1], grid, self.site.grid, prefix)
        q, k, _ = self._project(tokens)
        return torch.softmax(q @ k.mT / self.site.head_dim**0.5, dim=-1)

    def _project(self, tokens: Float[Tensor, "batch tokens dim"]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(tokens).chunk(3, dim=-1)  # batch tokens dim
        q, k, v = (split_heads(x, self.site.num_heads) for x in (self.q_norm(q), self.k_norm(k), v))
        return q, k, v  # batch heads tokens head_dim

    def macs(self, num_tokens: int, prefix: int = 0) -> AttentionMacs:
        dim = self.site.dim
        core = 2 * num_tokens * num_tokens * dim
        return AttentionMacs(dense=4 * num_tokens * dim * dim, core=core, fused_core=core)
