"""Agent attention: pooled queries gather from all tokens, and all tokens read what they gathered.

Source: Han et al. 2024 (Agent Attention). Their agent tokens A are our ``agents``.
"""

from dataclasses import dataclass, field

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from backbone.macs import AttentionMacs
from backbone.norms import query_key_norm
from backbone.pooling import check_pooled_grid, choose_pooled_grid, pool_grid
from backbone.site import AttentionSite, Grid
from backbone.tokens import DepthwiseConv, merge_heads, resolve_grid, split_heads
from baselines.position_bias import PositionBiases


@dataclass(frozen=True)
class AgentConfig:
    pooled_grid: tuple[int, int] | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "rows, columns of agents; null is half the token grid, at most 8",
        },
    )
    allow_more_tokens_than_grid: bool = field(
        default=False, metadata={"help": "permit a pooled grid larger than the token grid"}
    )
    position_bias: bool = field(
        default=True, metadata={"help": "learned position biases on both softmax maps"}
    )
    num_prefix: int = field(
        default=0,
        metadata={"min": 0, "help": "prefix tokens with position biases; with 0 they have none"},
    )
    value_conv: bool = field(
        default=True, metadata={"help": "add a 3x3 depthwise convolution of the values"}
    )
    qkv_bias: bool = field(default=True, metadata={"help": "biases on queries, keys and values"})


class AgentAttention(nn.Module):
    """``softmax(q a^T + B2) softmax(a k^T + B1) v`` per head, with agents ``a = pool(q)``.

    Scores are scaled by head_dim^-1/2. Agents are pooled from the grid alone, prefix tokens left
    out; the convolution of the values is added before ``proj``, nothing on prefix tokens. The
    pooled grid stays when a call brings another token grid, and position biases are resized.
    """

    def __init__(self, config: AgentConfig, site: AttentionSite) -> None:
        super().__init__()
        self.config = config
        self.site = site
        allow = config.allow_more_tokens_than_grid
        self.pooled_grid = choose_pooled_grid(config.pooled_grid, site.grid, allow)
        num_agents = self.pooled_grid[0] * self.pooled_grid[1]
        self.qkv = nn.Linear(site.dim, 3 * site.dim, bias=config.qkv_bias)
        self.q_norm = query_key_norm(site.qk_norm, site.head_dim)
        self.k_norm = query_key_norm(site.qk_norm, site.head_dim)
        self.biases: PositionBiases | None = None
        if config.position_bias:
            self.biases = PositionBiases(site.num_heads, num_agents, site.grid, config.num_prefix)
        self.value_conv = DepthwiseConv(site.dim, 3) if config.value_conv else None
        self.proj = nn.Linear(site.dim, site.dim)

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid | None = None, prefix: int = 0
    ) -> Float[Tensor, "batch tokens dim"]:
        grid = resolve_grid(tokens.shape[1], grid, self.site.grid, prefix)
        check_pooled_grid(self.pooled_grid, grid, self.config.allow_more_tokens_than_grid)
        queries, keys, values = self.qkv(tokens).chunk(3, dim=-1)  # batch tokens dim
        queries, keys = self.q_norm(queries), self.k_norm(keys)
        agents = pool_grid(queries, grid, prefix, self.pooled_grid).to(queries.dtype)
        q, k, v, a = (split_heads(x, self.site.num_heads) for x in (queries, keys, values, agents))
        gather, spread = self.biases(grid, prefix, q.dtype) if self.biases else (None, None)
        gathered = F.scaled_dot_product_attention(a, k, v, attn_mask=gather)
        read = merge_heads(F.scaled_dot_product_attention(q, a, gathered, attn_mask=spread))
        if self.value_conv is not None:
            read = read + self.value_conv(values, grid, prefix)
        return self.proj(read)

    def macs(self, num_tokens: int, prefix: int = 0) -> AttentionMacs:
        dim = self.site.dim
        num_agents = self.pooled_grid[0] * self.pooled_grid[1]
        core = 4 * num_agents * num_tokens * dim
        conv = 0 if self.value_conv is None else self.value_conv.macs(num_tokens - prefix)
        return AttentionMacs(
            dense=4 * num_tokens * dim * dim, core=core, fused_core=core, convolution=conv
        )
