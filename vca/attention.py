"""Visual-Contrast Attention: all tokens meet through a few, read twice and subtracted.

Stage I: a positive and a negative bank of contrast tokens, pooled from the queries, read all
tokens; the negative reading, weighted by lambda, is subtracted. Stage II: every token reads the
contrast tokens in the same way. The cost is linear in the number of tokens.

Source: arXiv 2511.00833 (NeurIPS 2025). Its t+ and t- are the positive and the negative bank here,
its n is ``contrast_tokens.num_tokens``.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from backbone.macs import AttentionMacs
from backbone.norms import query_key_norm, wide_dtype
from backbone.pooling import choose_pooled_grid
from backbone.site import AttentionSite, Grid
from backbone.tokens import DepthwiseConv, merge_heads, resolve_grid, split_heads
from vca.contrast_tokens import SOURCES, ContrastTokens
from vca.difference import NormedDifference
from vca.maps import ContrastMaps, gather_maps, spread_maps

VARIANTS = ("released", "paper")


@dataclass(frozen=True)
class VCAConfig:
    variant: str = field(
        default="released",
        metadata={
            "choices": VARIANTS,
            "help": "released: joint softmax and value convolution; paper: neither",
        },
    )
    joint: bool | None = field(
        default=None,
        metadata={"help": "one softmax over both banks in stage II; null: as the variant"},
    )
    value_conv: bool | None = field(
        default=None,
        metadata={"help": "add a 3x3 depthwise convolution of the values; null: as the variant"},
    )
    pooled_grid: tuple[int, int] | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "rows, columns of contrast tokens per bank; "
            "null: half the token grid per side, at most 8 x 8",
        },
    )
    allow_more_tokens_than_grid: bool = field(
        default=False, metadata={"help": "permit a pooled_grid larger than the token grid"}
    )
    positive_source: str = field(
        default="pool+emb",
        metadata={"choices": SOURCES, "help": "positive bank: pooled queries, embedding or both"},
    )
    negative_source: str = field(
        default="pool+emb",
        metadata={"choices": SOURCES, "help": "negative bank: pooled queries, embedding or both"},
    )
    stage1_difference: bool = field(
        default=True, metadata={"help": "false: stage I reads with the positive bank alone"}
    )
    stage2_difference: bool = field(
        default=True, metadata={"help": "false: stage II reads with the positive bank alone"}
    )
    qkv_bias: bool = field(default=True, metadata={"help": "biases on queries, keys and values"})
    eps: float = field(default=1e-5, metadata={"above": 0, "help": "of both RMS norms"})
    affine: bool = field(default=True, metadata={"help": "a gain in both RMS norms"})
    embedding_std: float = field(
        default=1.0, metadata={"min": 0, "help": "spread of the embeddings at the start"}
    )
    lambda_std: float = field(
        default=0.1, metadata={"min": 0, "help": "spread of the lambda vectors at the start"}
    )
    proj_drop: float = field(
        default=0.0,
        metadata={
            "min": 0,
            "below": 1,
            "help": "dropout after the output map; above 0, torch's own random numbers make "
            "runs depend on the number of processes",
        },
    )

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("variant", self.variant, VARIANTS),
            ("positive_source", self.positive_source, SOURCES),
            ("negative_source", self.negative_source, SOURCES),
        ):
            if value not in choices:
                raise ValueError(f"unknown {name} {value!r}; there are: {', '.join(choices)}")

    @property
    def is_joint(self) -> bool:
        return self.variant == "released" if self.joint is None else self.joint

    @property
    def has_value_conv(self) -> bool:
        return self.variant == "released" if self.value_conv is None else self.value_conv

    @property
    def has_negative_bank(self) -> bool:
        return self.stage1_difference or self.stage2_difference


class VisualContrastAttention(nn.Module):
    """Per head, with t+ = pool(q) + e+ and t- = pool(q) + e-,

        stage I    values = (1 - lambda_init) RMSNorm1((A+ - lambda1 A-) v),    A = softmax(t k^T)
        stage II   read = (1 - lambda_init) RMSNorm2((B+ - lambda2 B-) values), B = softmax(q t^T)
        output     proj(read + conv(v)),

    scores scaled by d^-1/2. ``joint`` takes one softmax over B+ and B- together. A stage without
    difference is softmax attention with the positive bank: no lambda, no norm, no factor.

    ``qkv`` and ``proj`` have the names and shapes of softmax attention. Parameters that the
    settings never read do not exist.
    """

    def __init__(self, config: VCAConfig, site: AttentionSite) -> None:
        super().__init__()
        self.config, self.site = config, site
        self.qkv = nn.Linear(site.dim, 3 * site.dim, bias=config.qkv_bias)
        self.q_norm = query_key_norm(site.qk_norm, site.head_dim)
        self.k_norm = query_key_norm(site.qk_norm, site.head_dim)
        self.contrast_tokens = ContrastTokens(
            site.dim,
            choose_pooled_grid(config.pooled_grid, site.grid, config.allow_more_tokens_than_grid),
            config.positive_source,
            config.negative_source if config.has_negative_bank else None,
            embedding_std=config.embedding_std,
            allow_more_tokens_than_grid=config.allow_more_tokens_than_grid,
        )
        self.stage1 = self._difference() if config.stage1_difference else None
        self.stage2 = self._difference() if config.stage2_difference else None
        self.value_conv = DepthwiseConv(site.dim, 3) if config.has_value_conv else None
        self.proj = nn.Linear(site.dim, site.dim)
        self.proj_drop = nn.Dropout(config.proj_drop)

    def _difference(self) -> NormedDifference:
        c, site = self.config, self.site
        return NormedDifference(
            site.head_dim, site.block_index, lambda_std=c.lambda_std, eps=c.eps, affine=c.affine
        )

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid | None = None, prefix: int = 0
    ) -> Float[Tensor, "batch tokens dim"]:
        grid = resolve_grid(tokens.shape[1], grid, self.site.grid, prefix)
        q, k, v, contrast = self._project(tokens, grid, prefix)
        read = self._spread(q, contrast, self._gather(contrast, k, v))
        return self._output(read, v, grid, prefix)

    def _project(
        self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid, prefix: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values and the contrast tokens of both banks, all split into heads."""
        q, k, v = self.qkv(tokens).chunk(3, dim=-1)  # batch tokens dim
        q, k = self.q_norm(q), self.k_norm(k)
        contrast = self.contrast_tokens(q, grid, prefix)  # batch banks*num_contrast_tokens dim
        q, k, v, contrast = (split_heads(x, self.site.num_heads) for x in (q, k, v, contrast))
        return q, k, v, contrast

    def _positive(
        self, contrast: Float[Tensor, "batch heads contrast head_dim"]
    ) -> Float[Tensor, "batch heads positive head_dim"]:
        return contrast[:, :, : self.contrast_tokens.num_tokens]

    def _gather(
        self,
        contrast: Float[Tensor, "batch heads contrast head_dim"],
        k: Float[Tensor, "batch heads tokens head_dim"],
        v: Float[Tensor, "batch heads tokens head_dim"],
    ) -> Float[Tensor, "batch heads positive head_dim"]:
        """Stage I: what the contrast tokens read in all tokens."""
        if self.stage1 is None:
            return F.scaled_dot_product_attention(self._positive(contrast), k, v)
        # Softmax goes row by row, so both banks can ask in one call.
        reads = F.scaled_dot_product_attention(contrast, k, v)
        return self.stage1(*reads.chunk(2, dim=2))

    def _spread(
        self,
        q: Float[Tensor, "batch heads tokens head_dim"],
        contrast: Float[Tensor, "batch heads contrast head_dim"],
        values: Float[Tensor, "batch heads positive head_dim"],
    ) -> Float[Tensor, "batch heads tokens head_dim"]:
        """Stage II: what all tokens read in the contrast tokens."""
        attend = F.scaled_dot_product_attention
        if self.stage2 is None:
            return attend(q, self._positive(contrast), values.to(q.dtype))
        if self.config.is_joint:
            # [B+ B-] [values ; -lambda values] is the signed sum, formed inside the kernel.
            wide = values.to(wide_dtype(values))  # 16-bit values would round lambda too
            signed = torch.cat([wide, -self.stage2.lambda_weights() * wide], dim=2)
            return self.stage2.normalise(attend(q, contrast, signed.to(q.dtype)), q.dtype)
        positive, negative = contrast.chunk(2, dim=2)
        values = values.to(q.dtype)
        return self.stage2(attend(q, positive, values), attend(q, negative, values), q.dtype)

    def _output(
        self,
        read: Float[Tensor, "batch heads tokens head_dim"],
        v: Float[Tensor, "batch heads tokens head_dim"],
        grid: Grid,
        prefix: int,
    ) -> Float[Tensor, "batch tokens dim"]:
        output = merge_heads(read.to(v.dtype))
        if self.value_conv is not None:
            output = output + self.value_conv(merge_heads(v), grid, prefix)
        return self.proj_drop(self.proj(output))

    def maps(
        self, tokens: Float[Tensor, "batch tokens dim"], grid: Grid | None = None, prefix: int = 0
    ) -> ContrastMaps:
        """The same computation with all of its maps: memory grows with tokens times banks."""
        grid = resolve_grid(tokens.shape[1], grid, self.site.grid, prefix)
        q, k, v, contrast = self._project(tokens, grid, prefix)
        positive = self._positive(contrast)
        negative = contrast.chunk(2, dim=2)[1] if self.config.has_negative_bank else None
        stage1 = gather_maps(positive, negative, k, _lambda(self.stage1))
        values = _normalise(self.stage1, stage1.signed @ v)
        stage2 = spread_maps(q, positive, negative, _lambda(self.stage2), self.config.is_joint)
        read = _normalise(self.stage2, stage2.signed @ values.to(v.dtype))
        output = self._output(read, v, grid, prefix)
        return ContrastMaps(positive, negative, stage1, values, stage2, read, output, v)

    def macs(self, num_tokens: int, prefix: int = 0) -> AttentionMacs:
        """The map form subtracts the maps of stage II and reads once, the fused form twice."""
        dim, pair = self.site.dim, self.contrast_tokens.num_tokens * num_tokens * self.site.dim
        banks1, banks2 = (1 if s is None else 2 for s in (self.stage1, self.stage2))
        conv = self.value_conv
        return AttentionMacs(
            dense=4 * num_tokens * dim * dim,
            core=(2 * banks1 + banks2 + 1) * pair,
            fused_core=(2 * banks1 + 2 * banks2) * pair,
            convolution=0 if conv is None else conv.macs(num_tokens - prefix),
        )


def _lambda(stage: NormedDifference | None) -> Float[Tensor, ""] | None:
    return None if stage is None else stage.lambda_weights()


def _normalise(
    stage: NormedDifference | None, read: Float[Tensor, "batch heads tokens head_dim"]
) -> Float[Tensor, "batch heads tokens head_dim"]:
    return read if stage is None else stage.normalise(read)
