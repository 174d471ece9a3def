"""A folder with every odd image file we could think of, and what becomes of each."""

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

Pixels = np.ndarray

# Four flat blocks of 8 x 8 pixels, which JPEG keeps to a few levels.
PICTURE = np.zeros((16, 16, 3), np.uint8)
PICTURE[:8, :8], PICTURE[:8, 8:] = (200, 30, 60), (20, 180, 90)
PICTURE[8:, :8], PICTURE[8:, 8:] = (70, 60, 220), (250, 240, 130)
GRAY = np.repeat(PICTURE[:, :, 1:2], 3, axis=2)


def image(mode: str = "RGB") -> Image.Image:
    return Image.fromarray(PICTURE).convert(mode)


def content(picture: Image.Image, format: str, **settings: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, format, **settings)
    return file.getvalue()


def gray(mode: str = "L") -> Image.Image:
    return Image.fromarray(GRAY[:, :, 0]).convert(mode)


def half_transparent() -> tuple[Image.Image, Pixels]:
    """The left half hides what is under it."""
    picture, seen = image("RGBA"), PICTURE.copy()
    alpha = np.full((16, 16), 255, np.uint8)
    alpha[:, :8] = 0
    seen[:, :8] = 255
    picture.putalpha(Image.fromarray(alpha))
    return picture, seen


def transparent_palette() -> tuple[Image.Image, Pixels]:
    picture = image().quantize(4)
    seen = PICTURE.copy()
    seen[:8, :8] = 255
    picture.info["transparency"] = picture.getpixel((0, 0))
    return picture, seen


def cmyk(ycck: bool = False) -> bytes:
    """A JPEG in the inverted CMYK of Adobe; or the same numbers marked as YCCK."""
    flat = Image.new("CMYK", (16, 16), (255, 128, 128, 40) if ycck else (255, 0, 128, 40))
    data = bytearray(content(flat, "JPEG", quality=100, subsampling=0))
    if ycck:
        data[data.index(b"Adobe") + 11] = 2
    return bytes(data)


def png16(channels: int) -> bytes:
    """The picture (or its gray) as 16-bit PNG, each level 257 times as high."""
    levels = (PICTURE if channels == 3 else GRAY[:, :, :1]).astype(">u2") * 257
    rows = b"".join(b"\0" + row.tobytes() for row in levels)
    header = struct.pack(">IIBBBBB", 16, 16, 16, {1: 0, 3: 2}[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def turned(format: str) -> bytes:
    """Stored on its side, with the EXIF orientation that says so."""
    exif = Image.Exif()
    exif[0x0112] = 6  # to be viewed turned by 90 degrees clockwise
    stored = image().transpose(Image.Transpose.ROTATE_90)
    settings = {"quality": 100, "subsampling": 0} if format == "JPEG" else {}
    return content(stored, format, exif=exif, **settings)


def animated() -> bytes:
    frames = [image().quantize(4), Image.new("P", (16, 16))]
    return content(frames[0], "GIF", save_all=True, append_images=frames[1:])


def cut(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
PNG, JPEG = content(image(), "PNG"), content(image(), "JPEG", quality=100, subsampling=0)
RGBA, RGBA_SEEN = half_transparent()
PALETTE, PALETTE_SEEN = transparent_palette()

# What a file holds, and the pixels that it shows.
READABLE: dict[str, tuple[bytes, Pixels]] = {
    "a/rgb.png": (PNG, PICTURE),
    "a/RGB.JPG": (JPEG, PICTURE),
    "a/rgb.bmp": (content(image(), "BMP"), PICTURE),
    "a/rgb.ppm": (content(image(), "PPM"), PICTURE),
    "a/rgb.tif": (content(image(), "TIFF"), PICTURE),
    "a/rgb.webp": (content(image(), "WEBP", lossless=True), PICTURE),
    "a/gray.png": (content(gray(), "PNG"), GRAY),
    "a/gray.jpeg": (content(gray(), "JPEG", quality=100), GRAY),
    "a/gray_alpha.png": (content(gray("LA"), "PNG"), GRAY),
    "a/gray16.png": (png16(1), GRAY),
    "a/rgb16.png": (png16(3), PICTURE),
    "a/palette.png": (content(image().quantize(4), "PNG"), PICTURE),
    "a/palette_transparent.png": (
        content(PALETTE, "PNG", transparency=PALETTE.info["transparency"]),
        PALETTE_SEEN,
    ),
    "b/rgba.png": (content(RGBA, "PNG"), RGBA_SEEN),
    "b/rgba.webp": (content(RGBA, "WEBP", lossless=True), RGBA_SEEN),
    "b/cmyk.jpg": (cmyk(), np.full((16, 16, 3), (0, 215, 107), np.uint8)),
    # Luminance stored as 0 and no chroma: no ink but the black of 40.
    "b/ycck.jpg": (cmyk(ycck=True), np.full((16, 16, 3), 215, np.uint8)),
    "b/turned.jpg": (turned("JPEG"), PICTURE),
    "b/turned.png": (turned("PNG"), PICTURE),
    "b/turned.tiff": (turned("TIFF"), PICTURE),
    "b/bad_exif.jpg": (
        content(image(), "JPEG", quality=100, subsampling=0, exif=b"Exif\0\0garbage"),
        PICTURE,
    ),
    "b/animated.gif": (animated(), PICTURE),
    "b/png_named.jpg": (PNG, PICTURE),
    "b/jpeg_named.gif": (JPEG, PICTURE),
    "b/one_row.png": (
        content(Image.new("RGB", (90, 1), (9, 8, 7)), "PNG"),
        np.full((1, 90, 3), (9, 8, 7), np.uint8),
    ),
    "b/grüße 猫 \N{COMBINING ACUTE ACCENT}.png": (PNG, PICTURE),
    "folder.png/inside.png": (PNG, PICTURE),
}
# What a file holds, and a part of the reason for which it is refused.
DAMAGED: dict[str, tuple[bytes, str]] = {
    "a/empty.png": (b"", "the file is empty"),
    "a/text.png": (b"no image", "no whole image"),
    "a/cut.png": (cut(content(NOISE, "PNG")), "truncated"),
    "b/cut.jpg": (cut(content(NOISE, "JPEG")), "truncated"),
    "b/cut.gif": (cut(content(image().quantize(4), "GIF")), ""),
    "b/head_alone.png": (PNG[:8], "no whole image"),
    "b/strip.png": (content(Image.new("RGB", (1, 400)), "PNG"), "over 100 times"),
    "b/float.tiff": (
        content(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"),
        "no known range",
    ),
    "b/drawing.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no whole image"),
}
# Not looked at: hidden, or no image by name.
IGNORED = ("a/.hidden.png", "a/notes.txt", ".cache/x.png", "__MACOSX/a/._rgb.png", "a/._rgb.png")


def write_odd_images(folder: Path, order: Callable[[list[str]], list[str]] = sorted) -> Path:
    """The folder, its files made in that order; and a link to an image, and one to a folder."""
    files = {name: data for name, (data, _) in (READABLE | DAMAGED).items()}
    files |= dict.fromkeys(IGNORED, b"not an image")
    for name in order(list(files)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(files[name])
    os.symlink("rgb.png", folder / "a" / "link.png")
    os.symlink("folder.png", folder / "linked", target_is_directory=True)
    return folder


NUM_READABLE = len(READABLE) + 2  # with the two links
