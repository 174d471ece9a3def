"""What one token of an image looks at, in each head of an attention layer."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from backbone.site import Grid
from backbone.softmax import SoftmaxAttention
from runtime.attention_inputs import Inputs
from vca.attention import VisualContrastAttention

Cell = tuple[int, int]  # row, column
Box = tuple[int, int, int, int]  # top, left, bottom, right of some cells; the last two are outside


@dataclass(frozen=True)
class HeadMaps:
    """The maps of one layer, with the cells that ask or are asked about."""

    heads: Float[Tensor, "heads rows columns"]
    marked: Box | None = None


TITLES = {
    "softmax": "Softmax attention: where the marked token looks",
    "stage1": "VCA, stage I: where the contrast token of the marked box looks",
    "importance": "VCA, stage I: where all contrast tokens look, on average",
    "stage2": "VCA, stage II: how the marked token weighs the contrast tokens",
}


def head_maps(attention: nn.Module, inputs: Inputs, grid: Grid, query: Cell) -> dict[str, HeadMaps]:
    """Maps of the first image for the token at ``query``, by the names in ``TITLES``.

    In stage I the contrast token that pools the query asks in its place. Raises a ValueError for
    a layer that has no maps.
    """
    row, column = query
    token = row * grid[1] + column
    if isinstance(attention, SoftmaxAttention):
        heads = attention.maps(*inputs)[0, :, token].unflatten(-1, grid)
        return {"softmax": HeadMaps(heads, cell(query))}
    if isinstance(attention, VisualContrastAttention):
        pooled = attention.contrast_tokens.pooled_grid
        asking = row * pooled[0] // grid[0], column * pooled[1] // grid[1]
        maps = attention.maps(*inputs)
        stage1 = maps.stage1.signed[0].unflatten(-1, grid)  # heads contrast rows columns
        stage2 = maps.stage2.signed[0, :, token].unflatten(-1, pooled)
        return {
            "stage1": HeadMaps(
                stage1[:, asking[0] * pooled[1] + asking[1]], pooled_box(asking, grid, pooled)
            ),
            "importance": HeadMaps(stage1.mean(dim=1)),
            "stage2": HeadMaps(stage2, cell(asking)),
        }
    raise ValueError(f"{type(attention).__name__} has no maps; softmax and vca have")


def cell(place: Cell) -> Box:
    return (*place, place[0] + 1, place[1] + 1)


def pooled_box(place: Cell, grid: Grid, pooled: Grid) -> Box:
    """The tokens that a contrast token averages."""
    top, left = (i * size // bins for i, size, bins in zip(place, grid, pooled, strict=True))
    bottom, right = (
        -(-(i + 1) * size // bins) for i, size, bins in zip(place, grid, pooled, strict=True)
    )
    return top, left, bottom, right
