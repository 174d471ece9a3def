"""One transformer block: attention and MLP, each shifted, scaled and gated by the condition.

The gates start at zero, so that a new block is the identity (adaLN-Zero).
Source: Peebles and Xie 2023.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from backbone import initialisation
from backbone.norms import wide_dtype
from backbone.site import AttentionBuilder, AttentionSite, Grid


def layer_norm(dim: int) -> nn.LayerNorm:
    """Without parameters: the condition supplies scale and shift."""
    return nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False)


class Modulation(nn.Sequential):
    """``count`` vectors from the condition, constant over tokens, zero at the start.

    At least float32: added to 1, a small 16-bit scale would vanish.
    """

    def __init__(self, dim: int, count: int) -> None:
        linear = nn.Linear(dim, count * dim)
        initialisation.zero(linear)
        super().__init__(nn.SiLU(), linear)
        self.count = count

    def vectors(
        self, condition: Float[Tensor, "batch dim"]
    ) -> tuple[Float[Tensor, "batch 1 dim"], ...]:
        vectors = self(condition).unsqueeze(1)  # batch 1 count*dim
        return vectors.to(wide_dtype(vectors)).chunk(self.count, dim=-1)


def modulate(
    tokens: Float[Tensor, "batch tokens dim"],
    shift: Float[Tensor, "batch 1 dim"],
    scale: Float[Tensor, "batch 1 dim"],
) -> Float[Tensor, "batch tokens dim"]:
    return (tokens * (1 + scale) + shift).to(tokens.dtype)


class Mlp(nn.Module):
    """Two linear maps around a GELU in its tanh form."""

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)
        initialisation.xavier(self)

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"]
    ) -> Float[Tensor, "batch tokens dim"]:
        return self.fc2(F.gelu(self.fc1(tokens), approximate="tanh"))


class Block(nn.Module):
    """``tokens + gate * branch(modulated norm of tokens)``, for attention and then for the MLP.

    Of its attention the block knows two facts, where declared: ``replaces_mlp = True`` leaves
    the attention branch alone, with three vectors instead of six; ``memory_dim = m`` makes the
    block thread a memory of that width, ``attn(tokens, grid, prefix, memory) -> (tokens,
    memory)``. A memory passes unchanged through a block whose attention keeps none.
    """

    def __init__(self, site: AttentionSite, attention: AttentionBuilder, mlp_ratio: float) -> None:
        super().__init__()
        self.norm1 = layer_norm(site.dim)
        self.attn = attention(site)
        initialisation.xavier(self.attn)
        self.memory_dim: int | None = getattr(self.attn, "memory_dim", None)
        has_mlp = not getattr(self.attn, "replaces_mlp", False)
        if has_mlp:
            self.norm2 = layer_norm(site.dim)
        self.mlp = Mlp(site.dim, int(site.dim * mlp_ratio)) if has_mlp else None
        self.adaLN_modulation = Modulation(site.dim, 6 if has_mlp else 3)

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens dim"],
        condition: Float[Tensor, "batch dim"],
        grid: Grid | None = None,
        memory: Float[Tensor, "batch tokens memory"] | None = None,
    ) -> tuple[Float[Tensor, "batch tokens dim"], Float[Tensor, "batch tokens memory"] | None]:
        shift, scale, gate, *of_mlp = self.adaLN_modulation.vectors(condition)
        normed = modulate(self.norm1(tokens), shift, scale)
        if self.memory_dim is None:
            branch = self.attn(normed, grid)
        else:
            branch, memory = self.attn(normed, grid, 0, memory)
        tokens = tokens + (gate * branch).to(tokens.dtype)
        if self.mlp is None:
            return tokens, memory
        shift, scale, gate = of_mlp
        branch = self.mlp(modulate(self.norm2(tokens), shift, scale))
        return tokens + (gate * branch).to(tokens.dtype), memory


class FinalLayer(nn.Module):
    """From tokens to the pixels of their patches."""

    def __init__(self, dim: int, pixels_dim: int) -> None:
        super().__init__()
        self.norm_final = layer_norm(dim)
        self.linear = nn.Linear(dim, pixels_dim)
        initialisation.zero(self.linear)
        self.adaLN_modulation = Modulation(dim, 2)

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], condition: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, "batch tokens pixels"]:
        shift, scale = self.adaLN_modulation.vectors(condition)
        return self.linear(modulate(self.norm_final(tokens), shift, scale))
