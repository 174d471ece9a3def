"""Visual-Contrast Attention's two stages with the streams of language differential attention.

An ablation: the same compression to a few pooled tokens, but the two streams that are contrasted
are halves of the channels instead of two learned embeddings.
"""

from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor, nn

from backbone.macs import AttentionMacs
from backbone.norms import query_key_norm
from backbone.pairs import PairedAttention, choose_num_pairs
from backbone.pooling import choose_pooled_grid
from backbone.site import AttentionSite, Grid
from backbone.tokens import DepthwiseConv, resolve_grid
from vca.contrast_tokens import SOURCES, ContrastTokens


@dataclass(frozen=True)
class VCASplitConfig:
    num_pairs: int | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "heads of two streams each; null is half of num_heads, which keeps the head "
            "width (an odd num_heads needs a value)",
        },
    )
    pooled_grid: tuple[int, int] | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "rows, columns of contrast tokens; null is half the token grid, at most 8",
        },
    )
    allow_more_tokens_than_grid: bool = field(
        default=False, metadata={"help": "permit a pooled grid larger than the token grid"}
    )
    source: str = field(
        default="pool",
        metadata={
            "choices": SOURCES,
            "help": "contrast tokens are pooled queries, a learned embedding, or their sum",
        },
    )
    value_conv: bool = field(
        default=False, metadata={"help": "add a 3x3 depthwise convolution of the values"}
    )
    embedding_std: float = field(
        default=1.0, metadata={"min": 0, "help": "spread of the embedding at the start"}
    )
    lambda_std: float = field(
        default=0.1, metadata={"min": 0, "help": "spread of the lambda vectors at the start"}
    )
    eps: float = field(default=1e-5, metadata={"above": 0, "help": "of both RMSNorms"})
    qkv_bias: bool = field(default=True, metadata={"help": "biases on queries, keys and values"})

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"unknown source {self.source!r}; there are: {', '.join(SOURCES)}")


class SplitContrastAttention(nn.Module):
    """Contrast tokens read all tokens, then all tokens read them, each time with two streams.

    With contrast tokens t, per pair of channel slices 1 and 2:

        stage I    values = (softmax(t1 k1^T) - lambda1 softmax(t2 k2^T)) v
        stage II   read   = (softmax(q1 t1^T) - lambda2 softmax(q2 t2^T)) values

    each normed and scaled as in ``PairedAttention``. Prefix tokens are not pooled and receive
    nothing from the convolution.
    """

    def __init__(self, config: VCASplitConfig, site: AttentionSite) -> None:
        super().__init__()
        self.config, self.site = config, site
        num_pairs = choose_num_pairs(config.num_pairs, site)
        slice_dim = site.dim // (2 * num_pairs)
        self.qkv = nn.Linear(site.dim, 3 * site.dim, bias=config.qkv_bias)
        self.q_norm = query_key_norm(site.qk_norm, slice_dim)
        self.k_norm = query_key_norm(site.qk_norm, slice_dim)
        self.contrast_tokens = ContrastTokens(
            site.dim,
            choose_pooled_grid(config.pooled_grid, site.grid, config.allow_more_tokens_than_grid),
            config.source,
            None,
            embedding_std=config.embedding_std,
            allow_more_tokens_than_grid=config.allow_more_tokens_than_grid,
        )
        self.stage1, self.stage2 = (
            PairedAttention(
                num_pairs,
                slice_dim,
                site.block_index,
                lambda_std=config.lambda_std,
                eps=config.eps,
            )
            for _ in range(2)
        )
        self.value_conv = DepthwiseConv(site.dim, 3) if config.value_conv else None
        self.proj = nn.Linear(site.dim, site.dim)

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid | None = None, prefix: int = 0
    ) -> Float[Tensor, "batch tokens dim"]:
        grid = resolve_grid(tokens.shape[1], grid, self.site.grid, prefix)
        q, k, v = self.qkv(tokens).chunk(3, dim=-1)  # batch tokens dim
        q, k = self.q_norm(q), self.k_norm(k)
        contrast_tokens = self.contrast_tokens(q, grid, prefix)  # batch contrast dim
        values = self.stage1(contrast_tokens, k, v)
        read = self.stage2(q, contrast_tokens, values)
        if self.value_conv is not None:
            read = read + self.value_conv(v, grid, prefix)
        return self.proj(read)

    def macs(self, num_tokens: int, prefix: int = 0) -> AttentionMacs:
        """Not counted: products with the zeros that make queries as wide as values."""
        dim = self.site.dim
        products = self.contrast_tokens.num_tokens * num_tokens * dim
        conv = 0 if self.value_conv is None else self.value_conv.macs(num_tokens - prefix)
        return AttentionMacs(
            dense=4 * num_tokens * dim * dim,
            core=4 * products,
            fused_core=6 * products,
            convolution=conv,
        )
