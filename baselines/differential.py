"""Differential attention: two softmax maps per head, the second subtracted.

Source: Ye et al. 2024 (Differential Transformer), without its causal mask and rotary embedding.
Their h heads are our ``num_pairs``; their layer index l counts from 1, our block index from 0.
"""

from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor, nn

from backbone.macs import AttentionMacs
from backbone.norms import query_key_norm
from backbone.pairs import PairedAttention, choose_num_pairs
from backbone.site import AttentionSite, Grid
from backbone.tokens import resolve_grid


@dataclass(frozen=True)
class DifferentialConfig:
    num_pairs: int | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "heads of two maps each; null is half of num_heads, which keeps the head "
            "width (an odd num_heads needs a value)",
        },
    )
    norm: bool = field(
        default=True,
        metadata={"help": "RMSNorm per head; without it the output is not scaled either"},
    )
    eps: float = field(default=1e-5, metadata={"above": 0, "help": "of the RMSNorm"})
    lambda_std: float = field(
        default=0.1, metadata={"min": 0, "help": "spread of the four lambda vectors at the start"}
    )
    qkv_bias: bool = field(default=True, metadata={"help": "biases on queries, keys and values"})


class DifferentialAttention(nn.Module):
    """``(softmax(q1 k1^T) - lambda softmax(q2 k2^T)) v`` per pair, normed, between two linear maps.

    Of C channels, q1, q2, k1, k2 of a pair have d = C / (2 num_pairs), its values 2d.
    """

    def __init__(self, config: DifferentialConfig, site: AttentionSite) -> None:
        super().__init__()
        self.site = site
        num_pairs = choose_num_pairs(config.num_pairs, site)
        slice_dim = site.dim // (2 * num_pairs)
        self.qkv = nn.Linear(site.dim, 3 * site.dim, bias=config.qkv_bias)
        self.q_norm = query_key_norm(site.qk_norm, slice_dim)
        self.k_norm = query_key_norm(site.qk_norm, slice_dim)
        self.heads = PairedAttention(
            num_pairs,
            slice_dim,
            site.block_index,
            lambda_std=config.lambda_std,
            eps=config.eps,
            norm=config.norm,
        )
        self.proj = nn.Linear(site.dim, site.dim)

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid | None = None, prefix: int = 0
    ) -> Float[Tensor, "batch tokens dim"]:
        resolve_grid(tokens.shape[1], grid, self.site.grid, prefix)
        q, k, v = self.qkv(tokens).chunk(3, dim=-1)  # batch tokens dim
        return self.proj(self.heads(self.q_norm(q), self.k_norm(k), v))

    def macs(self, num_tokens: int, prefix: int = 0) -> AttentionMacs:
        """Not counted: products with the zeros that make queries as wide as values."""
        dim = self.site.dim
        products = num_tokens * num_tokens * dim
        return AttentionMacs(
            dense=4 * num_tokens * dim * dim, core=2 * products, fused_core=3 * products
        )
