"""The transformer that DiT and SiT share: latents, time and label in, a prediction out.

Parameters are named and initialised as in the published code, so that its files load as they are.
Source: Peebles and Xie 2023.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from backbone import initialisation
from backbone.block import Block, FinalLayer
from backbone.embeddings import LabelEmbedding, PatchEmbedding, TimeEmbedding, position_table
from backbone.norms import wide_dtype
from backbone.site import AttentionBuilder, AttentionSite, Grid


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    latent_size: tuple[int, int] = field(metadata={"help": "rows, columns of the latents"})
    in_channels: int = field(default=4, metadata={"min": 1, "help": "channels of the latents"})
    patch_size: int = field(metadata={"min": 1, "help": "side of a patch, in latent pixels"})
    dim: int = field(metadata={"min": 4, "help": "width of a token"})
    depth: int = field(metadata={"min": 1, "help": "number of blocks"})
    num_heads: int = field(metadata={"min": 1, "help": "attention heads"})
    mlp_ratio: float = field(
        default=4.0, metadata={"above": 0, "help": "hidden width of the MLP, in token widths"}
    )
    num_classes: int = field(metadata={"min": 1, "help": "classes without the null label"})
    label_drop: float = field(
        default=0.1,
        metadata={
            "min": 0,
            "max": 1,
            "help": "chance that training drops a label; above 0 there is a null label",
        },
    )
    learned_variance: bool = field(metadata={"help": "predict twice the channels"})
    time_scale: float = field(
        metadata={"above": 0, "help": "multiplies the time before its sinusoid, made for 0 to 1000"}
    )
    qk_norm: bool = field(default=False, metadata={"help": "normalise queries and keys per head"})
    gradient_checkpointing: bool = field(
        default=False, metadata={"help": "recompute blocks in the backward pass to save memory"}
    )

    def __post_init__(self) -> None:
        token_grid(self.latent_size, self.patch_size)
        if self.dim % 4:
            raise ValueError(f"dim {self.dim} is not divisible by 4, as the position table needs")
        if self.num_classes < 1:
            raise ValueError(f"num_classes {self.num_classes} is below 1")

    @property
    def grid(self) -> Grid:
        return token_grid(self.latent_size, self.patch_size)

    @property
    def out_channels(self) -> int:
        return self.in_channels * (2 if self.learned_variance else 1)


def token_grid(latent_size: tuple[int, int], patch_size: int) -> Grid:
    rows, columns = latent_size
    if min(latent_size) < 1 or rows % patch_size or columns % patch_size:
        raise ValueError(
            f"latents of {rows} x {columns} do not divide into patches of "
            f"{patch_size} x {patch_size}"
        )
    return rows // patch_size, columns // patch_size


class DiffusionTransformer(nn.Module):
    """A denoiser whose attention layers come from a builder, one per block.

    Latents may have another size than the one it was built for: the table of places is then
    that of the new grid, and each attention layer follows its own rule or refuses. Predictions
    are at least float32. The network draws nothing and drops no label.
    """

    pos_embed: nn.Parameter

    def __init__(self, config: TransformerConfig, attention: AttentionBuilder) -> None:
        super().__init__()
        self.config = config
        c = config
        table = position_table(c.grid, c.dim).float().unsqueeze(0)
        self.pos_embed = nn.Parameter(table, requires_grad=False)  # 1 tokens dim
        self.x_embedder = PatchEmbedding(c.in_channels, c.patch_size, c.dim)
        self.t_embedder = TimeEmbedding(c.dim, c.time_scale)
        self.y_embedder = LabelEmbedding(c.num_classes, c.label_drop > 0, c.dim)
        sites = [AttentionSite(c.dim, c.num_heads, c.grid, i, c.qk_norm) for i in range(c.depth)]
        blocks = [Block(site, attention, c.mlp_ratio) for site in sites]
        self.blocks = nn.ModuleList(blocks)
        self.final_layer = FinalLayer(c.dim, c.patch_size**2 * c.out_channels)
        self.memory_embedder = _memory_embedder(c.dim, blocks)

    def forward(
        self,
        x_t: Float[Tensor, "batch channels height width"],
        t: Shaped[Tensor, " batch"],
        y: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch predicted height width"]:
        grid = self._grid_of(x_t)
        tokens = self.x_embedder(x_t.to(self.pos_embed.dtype)) + self._places(grid)
        condition = self.t_embedder(t) + self.y_embedder(y)
        memory = None if self.memory_embedder is None else self.memory_embedder(tokens)
        for block in self.blocks:
            tokens, memory = self._run(block, tokens, condition, grid, memory)
        return self._unpatchify(self.final_layer(tokens, condition), grid)

    def _grid_of(self, x_t: Float[Tensor, "batch channels height width"]) -> Grid:
        if x_t.shape[1] != self.config.in_channels:
            raise ValueError(
                f"latents have {x_t.shape[1]} channels instead of {self.config.in_channels}"
            )
        return token_grid((x_t.shape[2], x_t.shape[3]), self.config.patch_size)

    def _places(self, grid: Grid) -> Float[Tensor, "1 tokens dim"]:
        if grid == self.config.grid:
            return self.pos_embed
        table = position_table(grid, self.config.dim, self.pos_embed.device)
        return table.to(self.pos_embed.dtype).unsqueeze(0)

    def _run(
        self,
        block: nn.Module,
        tokens: Float[Tensor, "batch tokens dim"],
        condition: Float[Tensor, "batch dim"],
        grid: Grid,
        memory: Float[Tensor, "batch tokens memory"] | None,
    ) -> tuple[Float[Tensor, "batch tokens dim"], Float[Tensor, "batch tokens memory"] | None]:
        if self.config.gradient_checkpointing and torch.is_grad_enabled():
            return checkpoint(block, tokens, condition, grid, memory, use_reentrant=False)
        return block(tokens, condition, grid, memory)

    def _unpatchify(
        self, pixels: Float[Tensor, "batch tokens pixels"], grid: Grid
    ) -> Float[Tensor, "batch predicted height width"]:
        side = self.config.patch_size
        # batch rows columns patch_row patch_column channel
        patches = pixels.to(wide_dtype(pixels)).unflatten(1, grid).unflatten(-1, (side, side, -1))
        return patches.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


def _memory_embedder(dim: int, blocks: list[Block]) -> nn.Linear | None:
    """The linear map that starts the memory, where a block threads one."""
    widths = {block.memory_dim for block in blocks if block.memory_dim is not None}
    assert len(widths) <= 1, f"blocks disagree on the width of the memory: {widths}"
    if not widths:
        return None
    linear = nn.Linear(dim, widths.pop())
    initialisation.xavier(linear)
    return linear
