"""Pictures of where attention looks: a row per block, a column per head.

Red is attention, blue is attention that is subtracted, white is none; each tile has a scale of its
own. Shown is the look of one query: the middle token for softmax, the middle contrast token in
stage I of Visual-Contrast Attention, the middle token in its stage II.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from backbone.site import Grid
from backbone.softmax import SoftmaxAttention
from backbone.transformer import DiffusionTransformer
from vca.attention import VisualContrastAttention

Maps = dict[str, Float[Tensor, "heads rows columns"]]  # of one block, by name


class MapRecorder:
    """Keeps what enters each attention layer in network call number ``call``, counted from 0."""

    def __init__(self, network: DiffusionTransformer, call: int) -> None:
        self.call = call
        self.calls = [0 for _ in network.blocks]
        self.inputs: list[tuple[Any, ...]] = [() for _ in network.blocks]
        for index, block in enumerate(network.blocks):
            attention = block.get_submodule("attn")
            attention.register_forward_pre_hook(self._hook(index))

    def _hook(self, index: int) -> Any:
        def remember(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if self.calls[index] == self.call:
                self.inputs[index] = inputs
            self.calls[index] += 1

        return remember


def middle_maps(attention: nn.Module, tokens: Tensor, grid: Grid) -> Maps:
    """What the middle query of the first image looks at, in each head.

    Raises a ValueError for a layer that has no such maps.
    """
    rows, columns = grid
    middle = rows // 2 * columns + columns // 2
    if isinstance(attention, SoftmaxAttention):
        return {"softmax": attention.maps(tokens, grid)[0, :, middle].unflatten(-1, grid)}
    if isinstance(attention, VisualContrastAttention):
        maps, pooled = attention.maps(tokens, grid), attention.contrast_tokens.pooled_grid
        middle_contrast = pooled[0] // 2 * pooled[1] + pooled[1] // 2
        return {
            "stage1": maps.stage1.signed[0, :, middle_contrast].unflatten(-1, grid),
            "stage2": maps.stage2.signed[0, :, middle].unflatten(-1, pooled),
        }
    raise ValueError(f"{type(attention).__name__} has no maps; softmax and vca have")


def tile(values: Float[Tensor, "rows columns"], side: int) -> UInt8[np.ndarray, "height width 3"]:
    """A signed map in red and blue, its cells enlarged to a tile of at least ``side`` pixels."""
    cells = values.float() / values.abs().max().clamp(min=1e-12)
    faded = 1 - cells.abs()
    red, blue = torch.where(cells > 0, 1.0, faded), torch.where(cells < 0, 1.0, faded)
    pixels = (torch.stack([red, faded, blue], dim=-1) * 255).round().to(torch.uint8)
    tall, wide = (max(1, side // length) for length in values.shape)
    return pixels.repeat_interleave(tall, 0).repeat_interleave(wide, 1).numpy()
