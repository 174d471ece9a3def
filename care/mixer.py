"""CARE: part of the channels attends, part is convolved, and two interactions join them.

Source: Zhou et al. 2024 (arXiv 2411.16170), made for the grid of a transformer without stages.
Their shortcut, layer scale and drop path are left out, since the block has its own; layer norms
stand for batch norms, which would mix noise levels, classes and the halves of guidance. Their
features X are our ``features``, their memory Z our ``memory``.
"""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from backbone.macs import AttentionMacs
from backbone.site import AttentionSite, Grid
from backbone.tokens import DepthwiseConvOfAll, resolve_grid
from care.interaction import NORMS, Interaction
from care.linear_attention import LinearAttention

Tokens = Float[Tensor, "batch tokens dim"]
Memory = Float[Tensor, "batch tokens memory"]

PROFILES = {"care_attn": (1, 1), "care_block": (4, 4)}  # and the ratios of each
MEMORIES = ("channel", "external", "none")


@dataclass(frozen=True)
class CAREConfig:
    profile: str = field(
        default="care_attn",
        metadata={
            "choices": tuple(PROFILES),
            "help": "care_attn: in place of attention, ratios [1,1]; "
            "care_block: in place of attention and MLP, ratios [4,4]",
        },
    )
    memory: str = field(
        default="channel",
        metadata={
            "choices": MEMORIES,
            "help": "channel: the first quarter of the channels; external: carried from block "
            "to block, as wide as a third of the channels; none",
        },
    )
    inter1: bool = field(
        default=True, metadata={"help": "interaction of local with global features"}
    )
    inter2: bool = field(default=True, metadata={"help": "interaction of features with memory"})
    ratios: tuple[int, int] | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "hidden widths of the interactions in widths; null: as the profile",
        },
    )
    norm: str = field(
        default="layer",
        metadata={
            "choices": tuple(NORMS),
            "help": "before an interaction; affine is a batch norm with frozen statistics",
        },
    )
    residual2: bool = field(default=True, metadata={"help": "shortcut around interaction 2"})
    head_dim: int | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "head width of linear attention; null: 32, or the largest power of two that "
            "divides its channels",
        },
    )

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("profile", self.profile, PROFILES),
            ("memory", self.memory, MEMORIES),
            ("norm", self.norm, NORMS),
        ):
            if value not in choices:
                raise ValueError(f"unknown {name} {value!r}; there are: {', '.join(choices)}")


class CARE(nn.Module):
    """Linear attention, a 3x3 and a 7x7 depthwise convolution side by side, then interactions.

    Of C channels in g = C // 4 each, the last three parts are mixed over tokens, one way each:

        features = interaction1([attention(a), conv3(near), conv7(far)])
        output   = interaction2([memory, features])

    and the first part is the memory. With an external memory of width g, or none, the channels
    are three parts of g = C / 3; an external one is passed in and returned beside the tokens. It
    is read by interaction 2 alone: without that there is no external memory (``memory_dim`` is
    None). Prefix tokens attend like any other and are convolved as images of one cell.
    Raises ValueError where C has no thirds, or the head width does not divide g.
    """

    def __init__(self, config: CAREConfig, site: AttentionSite) -> None:
        super().__init__()
        self.site = site
        self.replaces_mlp = config.profile == "care_block"
        self.channel_memory_dim, part = _split_channels(site.dim, config.memory)
        self.part_dim = part
        self.memory_dim = part if config.memory == "external" and config.inter2 else None
        self.attention = LinearAttention(part, _head_dim(config.head_dim, part), site.qk_norm)
        self.conv3 = DepthwiseConvOfAll(part, 3)
        self.conv7 = DepthwiseConvOfAll(part, 7)
        ratio1, ratio2 = config.ratios or PROFILES[config.profile]
        dim2 = site.dim + (self.memory_dim or 0)
        self.inter1 = Interaction(3 * part, ratio1, config.norm) if config.inter1 else None
        self.inter2 = (
            Interaction(dim2, ratio2, config.norm, config.residual2) if config.inter2 else None
        )

    def forward(
        self,
        tokens: Tokens,
        grid: Grid | None = None,
        prefix: int = 0,
        memory: Memory | None = None,
    ) -> Tokens | tuple[Tokens, Memory]:
        grid = resolve_grid(tokens.shape[1], grid, self.site.grid, prefix)
        self._check_memory(memory)
        widths = [self.channel_memory_dim, *3 * [self.part_dim]]
        in_channels, a, near, far = tokens.split(widths, dim=-1)  # batch tokens width
        features = torch.cat(
            [self.attention(a), self.conv3(near, grid, prefix), self.conv7(far, grid, prefix)],
            dim=-1,
        )
        if self.inter1 is not None:
            features = self.inter1(features, grid, prefix)
        joined = torch.cat([in_channels if memory is None else memory, features], dim=-1)
        if self.inter2 is not None:
            joined = self.inter2(joined, grid, prefix)
        if memory is None:
            return joined
        memory, tokens = joined.split([memory.shape[-1], tokens.shape[-1]], dim=-1)
        return tokens, memory

    def _check_memory(self, memory: Memory | None) -> None:
        given = None if memory is None else memory.shape[-1]
        if given != self.memory_dim:
            raise ValueError(f"a memory of width {given} was given instead of {self.memory_dim}")

    def macs(self, num_tokens: int, prefix: int = 0) -> AttentionMacs:
        """The zeros around the one cell of a prefix token count as those around the grid do."""
        interactions = [inter for inter in (self.inter1, self.inter2) if inter is not None]
        convolutions = [self.conv3, self.conv7, *(inter.conv for inter in interactions)]
        dense = sum(inter.dense_macs(num_tokens) for inter in interactions)
        core = self.attention.core_macs(num_tokens)
        return AttentionMacs(
            dense=dense + self.attention.dense_macs(num_tokens),
            core=core,
            fused_core=core,
            convolution=sum(conv.macs(num_tokens) for conv in convolutions),
        )


def _split_channels(dim: int, memory: str) -> tuple[int, int]:
    """Widths of the memory among the channels, and of each of the three other parts."""
    if memory == "channel":
        if dim < 4:
            raise ValueError(f"dim {dim} has no quarter for linear attention")
        return dim - 3 * (dim // 4), dim // 4
    if dim % 3:
        raise ValueError(f"dim {dim} is not divisible by 3, as memory {memory!r} needs")
    return 0, dim // 3


def _head_dim(head_dim: int | None, part_dim: int) -> int:
    if head_dim is None:
        return math.gcd(32, part_dim)
    if head_dim < 1 or part_dim % head_dim:
        raise ValueError(
            f"head_dim {head_dim} does not divide the {part_dim} channels of linear attention"
        )
    return head_dim
