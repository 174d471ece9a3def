"""A picture of attention maps: a row per block, a column per head, above them the image.

Red is attention, blue is attention that is subtracted, white is none. Each map has a scale of its
own, from minus to plus the number below it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from backbone.site import Grid
from runtime.atomic import written_whole
from runtime.attention_maps import Box, HeadMaps
from runtime.images import BACKGROUND

BLACK, GREY, MARK = (0, 0, 0), (110, 110, 110), (0, 150, 60)
GAP = 10  # pixels around things
LINE = 16  # height of a line of text
TEXT, SMALL = (ImageFont.load_default(size=size) for size in (13, 11))
PICTURE = 128  # pixels of the images at the top
LEAST_WIDTH = 48  # pixels of a column, so that numbers fit
LEGEND = 160, 12  # width, height


@dataclass(frozen=True)
class Heading:
    """What stands above the maps."""

    lines: Sequence[str]
    pictures: dict[str, UInt8[np.ndarray, "height width 3"]]  # by caption
    grid: Grid  # of the tokens
    query: Box | None  # marked in the pictures


def save_sheet(heading: Heading, blocks: Sequence[HeadMaps], side: int, path: Path) -> None:
    with written_whole(path) as part:
        draw_sheet(heading, blocks, side).save(part, format="PNG")


def draw_sheet(heading: Heading, blocks: Sequence[HeadMaps], side: int) -> Image.Image:
    """The maps of each block's heads and their mean, about ``side`` pixels each."""
    num_heads = len(blocks[0].heads)
    rows, columns = blocks[0].heads.shape[1:]
    factor = enlargement(rows, columns, side)
    pitch = max(columns * factor, LEAST_WIDTH) + GAP, rows * factor + LINE + GAP
    left = 2 * GAP + round(max(TEXT.getlength(f"block {i}") for i in range(len(blocks))))
    top = 2 * GAP + PICTURE + 2 * LINE
    width = max(left + (num_heads + 1) * pitch[0], _heading_width(heading))
    canvas = Image.new("RGB", (width, top + len(blocks) * pitch[1]), (BACKGROUND,) * 3)
    _draw_heading(canvas, heading)
    draw = ImageDraw.Draw(canvas)
    for head, name in enumerate([*(f"head {i}" for i in range(num_heads)), "mean"]):
        x = left + head * pitch[0]
        draw.text((x, top - 4), name, fill=BLACK, font=TEXT, anchor="ls")
        for block, maps in enumerate(blocks):
            heads = maps.heads.float()
            values = heads.mean(dim=0) if head == num_heads else heads[head]
            y = top + block * pitch[1]
            canvas.paste(Image.fromarray(colours(values, factor)), (x, y))
            draw.rectangle((x - 1, y - 1, x + columns * factor, y + rows * factor), outline=GREY)
            _mark(draw, maps.marked, (x, y), (factor, factor))
            scale = f"{values.abs().max():.2g}"
            draw.text((x, y + rows * factor + 2), scale, fill=GREY, font=SMALL, anchor="la")
    for block in range(len(blocks)):
        place = left - GAP, top + block * pitch[1] + rows * factor // 2
        draw.text(place, f"block {block}", fill=BLACK, font=TEXT, anchor="rm")
    return canvas


def enlargement(rows: int, columns: int, side: int) -> int:
    """A whole factor, so that no cell is stretched or blended."""
    return max(1, side // max(rows, columns))


def colours(
    values: Float[Tensor, "rows columns"], factor: int
) -> UInt8[np.ndarray, "height width 3"]:
    """A signed map in red and blue, on a scale of its own."""
    cells = values / values.abs().max().clamp(min=1e-12)
    faded = 1 - cells.abs()
    red, blue = torch.where(cells > 0, 1.0, faded), torch.where(cells < 0, 1.0, faded)
    pixels = (torch.stack([red, faded, blue], dim=-1) * 255).round().to(torch.uint8)
    return pixels.repeat_interleave(factor, 0).repeat_interleave(factor, 1).cpu().numpy()


def _heading_width(heading: Heading) -> int:
    lines = max(*(round(TEXT.getlength(line)) for line in heading.lines), LEGEND[0])
    return GAP + len(heading.pictures) * (PICTURE + GAP) + GAP + lines + GAP


def _draw_heading(canvas: Image.Image, heading: Heading) -> None:
    draw = ImageDraw.Draw(canvas)
    x = GAP
    for caption, pixels in heading.pictures.items():
        picture = Image.fromarray(pixels)
        scale = PICTURE / max(picture.size)
        width, height = (max(1, round(length * scale)) for length in picture.size)
        canvas.paste(picture.resize((width, height), Image.Resampling.NEAREST), (x, GAP))
        _mark(draw, heading.query, (x, GAP), (height / heading.grid[0], width / heading.grid[1]))
        draw.text((x, GAP + height + 2), caption, fill=GREY, font=SMALL, anchor="la")
        x += PICTURE + GAP
    x += GAP
    for number, line in enumerate(heading.lines):
        draw.text((x, GAP + number * LINE), line, fill=BLACK, font=TEXT, anchor="la")
    _draw_legend(canvas, (x, GAP + PICTURE - LEGEND[1] - LINE))


def _draw_legend(canvas: Image.Image, place: tuple[int, int]) -> None:
    draw, (x, y), (width, height) = ImageDraw.Draw(canvas), place, LEGEND
    bar = colours(torch.linspace(-1, 1, width).expand(height, width), 1)
    canvas.paste(Image.fromarray(bar), place)
    draw.rectangle((x - 1, y - 1, x + width, y + height), outline=GREY)
    for text, at, anchor in (
        ("subtracted", 0, "la"),
        ("0", width // 2, "ma"),
        ("attended", width, "ra"),
    ):
        draw.text((x + at, y + height + 2), text, fill=GREY, font=SMALL, anchor=anchor)
    each = "each map from minus to plus the number below it"
    draw.text((x, y + height + LINE), each, fill=GREY, font=SMALL, anchor="la")


def _mark(
    draw: ImageDraw.ImageDraw,
    box: Box | None,
    place: tuple[int, int],
    cell: tuple[int | float, int | float],
) -> None:
    """A frame around the cells of a box; ``cell`` is the height and width of one, in pixels."""
    if box is None:
        return
    (x, y), (height, width) = place, cell
    top, left, bottom, right = box
    draw.rectangle(
        (
            x + round(left * width),
            y + round(top * height),
            x + round(right * width) - 1,
            y + round(bottom * height) - 1,
        ),
        outline=MARK,
        width=2,
    )
