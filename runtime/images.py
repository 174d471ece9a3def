"""Pictures: how any file becomes a square RGB image, and how a tensor becomes 8 bits again.

Every image that the project reads goes through ``to_rgb`` and ``center_crop``; every image that
it writes goes through ``to_uint8``, once. A metric sees the same bytes whether it takes them
from memory, from PNG files or from an ``.npz``.
"""

import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from runtime.atomic import written_whole
from runtime.errors import UserError, unknown

SIXTEEN_BIT_MODES = ("I", "I;16", "I;16B", "I;16L", "I;16N")
LONGEST = 100  # shorter sides: longer images have no central square worth the name
BACKGROUND = 255  # white: between the images of a grid, and behind transparent pixels


def to_rgb(image: Image.Image) -> Image.Image:
    """The image in 8-bit RGB, as a viewer would show it.

    Turned as its EXIF orientation says. 16-bit grayscale keeps its high byte, which is what
    Pillow leaves of 16-bit colour. Transparent pixels show white. Palette, grayscale, CMYK and
    the other modes are converted by Pillow, without colour profiles. Of several frames, the first
    is taken. Raises ValueError for floating-point pixels: their range is unknown.
    """
    image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise ValueError("floating-point pixels have no known range; store 8 or 16 bits")
    if image.mode in SIXTEEN_BIT_MODES:
        levels = np.asarray(image).astype(np.int64)
        if levels.min() < 0 or levels.max() > 65535:
            raise ValueError(f"pixels from {levels.min()} to {levels.max()} do not fit in 16 bits")
        gray = (levels >> 8).astype(np.uint8)
        gray[levels == image.info.get("transparency", -1)] = BACKGROUND
        image = Image.fromarray(gray)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (BACKGROUND,) * 4)
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def center_crop(image: Image.Image, size: int) -> Image.Image:
    """The central square of ``size`` pixels, after the shorter side is brought to that length.

    The sides are halved with a box filter while the shorter one is at least twice ``size``, then
    resized with a bicubic filter; a small image is enlarged. Lengths round half to even, offsets
    round down. Raises ValueError for a strip, of which a square shows nothing and whose enlarged
    form may fill the memory. Source: ADM (Dhariwal and Nichol 2021), as in the published DiT and
    SiT.
    """
    width, height = image.size
    if max(width, height) > LONGEST * min(width, height):
        raise ValueError(f"{width} x {height} pixels: one side is over {LONGEST} times the other")
    while min(width, height) >= 2 * size:
        width, height = width // 2, height // 2
        image = image.resize((width, height), Image.Resampling.BOX)
    scale = size / min(width, height)
    width, height = round(width * scale), round(height * scale)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - size) // 2, (height - size) // 2
    return image.crop((left, top, left + size, top + size))


def from_uint8(
    images: UInt8[Tensor, "batch height width channels"],
) -> Float[Tensor, "batch channels height width"]:
    """What networks see: 0 becomes -1, 255 becomes 1."""
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1


# x in [-1, 1] to 0..255. `nearest` rounds (x + 1) / 2 * 255 half up, as DiT and SiT do, in their
# float32 form; `truncate` rounds it down, as ADM, REPA and RAE do, half a level darker.
ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "nearest": lambda x: (127.5 * x + 128).clamp(0, 255),
    "truncate": lambda x: ((x + 1) / 2 * 255).clamp(0, 255),
}


def to_uint8(
    images: Float[Tensor, "batch channels height width"], rounding: str = "nearest"
) -> UInt8[Tensor, "batch height width channels"]:
    """8-bit images of values in [-1, 1]; what lies outside is clamped.

    Raises UserError with the index of each image that is not finite.
    """
    if rounding not in ROUNDINGS:
        raise unknown("rounding", rounding, ROUNDINGS)
    refuse_non_finite(images, [f"image {i}" for i in range(len(images))])
    levels = ROUNDINGS[rounding](images.float())
    return levels.to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def refuse_non_finite(values: Float[Tensor, "batch ..."], names: Sequence[str]) -> None:
    """Raises UserError with the names of those entries of a batch that are not finite."""
    finite = values.isfinite().flatten(1).all(dim=1).tolist()
    bad = [name for name, good in zip(names, finite, strict=True) if not good]
    if bad:
        raise UserError(f"infinite or undefined values in {', '.join(bad[:8])}")


def save_png(image: UInt8[np.ndarray, "height width 3"], path: Path) -> None:
    with written_whole(path, flush=False) as part:
        Image.fromarray(image).save(part, format="PNG")


def save_npz(
    batches: Iterable[UInt8[np.ndarray, "_ height width 3"]],
    path: Path,
    shape: tuple[int, int, int, int],
) -> None:
    """Images as the ADM evaluator reads them: one array ``arr_0`` of ``shape`` (N, H, W, 3).

    Written batch by batch, so that memory holds one batch; uncompressed. The bytes depend on the
    images alone (no date is stored).
    """
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.uint8))}
    num_written = 0
    with (
        written_whole(path) as part,
        zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive,
        archive.open(zipfile.ZipInfo("arr_0.npy"), "w", force_zip64=True) as array,
    ):
        np.lib.format.write_array_header_1_0(
            array, header | {"fortran_order": False, "shape": shape}
        )
        for images in batches:
            assert images.shape[1:] == shape[1:], f"{images.shape[1:]} in a set of {shape[1:]}"
            array.write(np.ascontiguousarray(images).data)
            num_written += len(images)
        if num_written != shape[0]:
            raise UserError(f"{path}: {shape[0]} images expected, {num_written} found")


GAP = 2  # pixels between the images of a grid
LEGIBLE = 64  # pixels: smaller images are enlarged by a whole factor up to about this size


def save_grid(
    images: UInt8[np.ndarray, "batch height width 3"],
    path: Path,
    columns: int,
    row_labels: Sequence[str] | None = None,
) -> None:
    """A picture of all images, row by row, each row with its label on the left."""
    with written_whole(path) as part:
        draw_grid(images, columns, row_labels).save(part, format="PNG")


def draw_grid(
    images: UInt8[np.ndarray, "batch height width 3"],
    columns: int,
    row_labels: Sequence[str] | None = None,
) -> Image.Image:
    num_rows = -(-len(images) // columns)
    if row_labels is not None and len(row_labels) != num_rows:
        raise ValueError(f"{len(row_labels)} row labels for {num_rows} rows")
    factor = max(1, LEGIBLE // max(images.shape[1:3]))
    images = images.repeat(factor, axis=1).repeat(
        factor, axis=2
    )  # no pixel is stretched or blended
    height, width = images.shape[1:3]
    font = ImageFont.load_default(size=max(12, min(24, height // 3)))
    margin = _widest(row_labels, font) if row_labels else GAP
    canvas = Image.new(
        "RGB",
        (margin + columns * (width + GAP), GAP + num_rows * (height + GAP)),
        (BACKGROUND,) * 3,
    )
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        place = margin + column * (width + GAP), GAP + row * (height + GAP)
        canvas.paste(Image.fromarray(image), place)
    for row, label in enumerate(row_labels or ()):
        middle = margin - 4 * GAP, GAP + row * (height + GAP) + height // 2
        ImageDraw.Draw(canvas).text(middle, label, fill=(0, 0, 0), font=font, anchor="rm")
    return canvas


def _widest(labels: Sequence[str], font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> int:
    """Room for the longest label and the space around it."""
    return 8 * GAP + max(round(font.getlength(label)) for label in labels)
