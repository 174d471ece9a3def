"""The few tokens through which all others meet: a positive and a negative bank."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from backbone.norms import wide_dtype
from backbone.pooling import check_pooled_grid, pool_grid
from backbone.site import Grid

SOURCES = ("pool", "emb", "pool+emb")


class ContrastTokens(nn.Module):
    """Pooled queries plus a learned embedding per bank: ``p + e+``, then ``p + e-``.

    A bank whose source is "pool" has no embedding, one whose source is "emb" does not see the
    image. ``negative_source=None`` makes no negative bank.
    """

    def __init__(
        self,
        dim: int,
        pooled_grid: Grid,
        positive_source: str,
        negative_source: str | None,
        *,
        embedding_std: float,
        allow_more_tokens_than_grid: bool,
    ) -> None:
        super().__init__()
        self.pooled_grid = pooled_grid
        self.num_tokens = pooled_grid[0] * pooled_grid[1]  # of one bank
        self.allow_more_tokens_than_grid = allow_more_tokens_than_grid
        self.positive_source = positive_source
        self.negative_source = negative_source

        def embedding(source: str | None) -> nn.Parameter | None:
            if source in ("pool", None):
                return None
            return nn.Parameter(torch.randn(1, self.num_tokens, dim) * embedding_std)

        self.positive = embedding(positive_source)
        self.negative = embedding(negative_source)

    def forward(
        self, queries: Float[Tensor, "batch tokens dim"], grid: Grid, prefix: int
    ) -> Float[Tensor, "batch contrast dim"]:
        """The banks, positive first, in the dtype of the queries, but summed in float32 or more."""
        check_pooled_grid(self.pooled_grid, grid, self.allow_more_tokens_than_grid)
        pooled = pool_grid(queries, grid, prefix, self.pooled_grid)  # batch num_tokens dim
        banks = [(self.positive_source, self.positive)]
        if self.negative_source is not None:
            banks.append((self.negative_source, self.negative))
        if all(source == "pool+emb" for source, _ in banks):  # one addition for both banks
            embeddings = torch.cat([e for _, e in banks if e is not None]).to(pooled.dtype)
            return (pooled[:, None] + embeddings).flatten(1, 2).to(queries.dtype)
        both = [_bank(pooled, source, embedding) for source, embedding in banks]
        return torch.cat(both, dim=1).to(queries.dtype)


def _bank(
    pooled: Float[Tensor, "batch contrast dim"],
    source: str,
    embedding: Float[Tensor, "1 contrast dim"] | None,
) -> Float[Tensor, "batch contrast dim"]:
    if embedding is None:
        return pooled
    embedding = embedding.to(wide_dtype(pooled))
    return embedding.expand_as(pooled) if source == "emb" else pooled + embedding
