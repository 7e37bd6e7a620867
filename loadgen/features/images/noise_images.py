"""Noise images: pictures by a seed that compress as photos do, each another one, at little cost.

An image is a head, which several share, and a tail of its last rows, drawn for it alone: no two are equal,
and what is left to do when a request is built takes well under a millisecond.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.errors import UsageError
from loadgen.base.text import describe_install

if TYPE_CHECKING:
    from types import ModuleType

Pixels = NDArray[np.uint8]  # [height, width, 3]
JPEG, PNG = "jpeg", "png"
QUALITY = 85  # of JPEG
_SIDE = 1024  # pixels of the texture, which repeats beyond
_SLOPE = 1.35  # amplitude ∝ 1 / frequency^slope; photos have 1 to 1.5 (Field 1987, van der Schaaf 1996)
_LIGHT, _COLOUR = 45.0, 10.0  # standard deviations of brightness and of each colour around it
_ROWS = 16  # of pixels that JPEG codes together, with colours at half the resolution
_WINDOWS = 4  # of the last rows
_LEVEL = 1  # of zlib: more makes noise hardly smaller
_SUB = 1  # PNG's filter: each byte less the one a pixel before it
_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_START_OF_SCAN = b"\xff\xda"


class Texture:
    """A square of 1/f noise in colour that repeats without a seam; windows of it are the pictures."""

    def __init__(self, rng: np.random.Generator) -> None:
        frequency = np.hypot(np.fft.fftfreq(_SIDE)[:, None], np.fft.rfftfreq(_SIDE)[None, :])
        frequency[0, 0] = 1.0
        amplitude = frequency**-_SLOPE
        amplitude[0, 0] = 0.0
        light, red, blue = (_make_layer(rng, amplitude) for _ in range(3))
        channels = (_COLOUR * red, -_COLOUR * (red + blue) / 2, _COLOUR * blue)
        layers = np.stack([128 + _LIGHT * light + colour for colour in channels], axis=-1)
        self._pixels: Pixels = layers.clip(0, 255).astype(np.uint8)

    def cut(self, rng: np.random.Generator, width: int, height: int) -> Pixels:
        """Cut a window at a random place, repeating the texture where it is larger."""
        top, left = rng.integers(0, _SIDE, 2).tolist()
        rows = (np.arange(top, top + height) % _SIDE)[:, None]
        window: Pixels = self._pixels[rows, np.arange(left, left + width) % _SIDE]
        return window

    def cut_strip(self, rng: np.random.Generator, width: int, height: int) -> Pixels:
        """Cut windows at random places, up to four side by side, of 16 columns and more each.

        One window alone is equal to an earlier one by a chance of one in a million, four are not.
        """
        several = max(1, min(_WINDOWS, width // _ROWS))
        widths = [_ROWS] * (several - 1) + [width - _ROWS * (several - 1)]
        return np.concatenate([self.cut(rng, each, height) for each in widths], axis=1)


def _make_layer(rng: np.random.Generator, amplitude: NDArray[np.float64]) -> NDArray[np.float64]:
    """Make a square of noise with mean 0 and standard deviation 1 from the amplitude of each frequency."""
    waves = rng.normal(size=amplitude.shape) + 1j * rng.normal(size=amplitude.shape)
    layer = np.fft.irfft2(waves * amplitude, (_SIDE, _SIDE))
    scaled: NDArray[np.float64] = layer / layer.std()
    return scaled


class ImageHead(msgspec.Struct, frozen=True):
    """The beginning of an image file, to which `finish_image` adds its last rows."""

    format: str
    width: int
    height: int
    start: bytes
    checksum: int = 1  # Adler-32 of the rows so far, of a PNG

    @property
    def last_rows(self) -> int:
        """The rows of pixels that the tail has."""
        return 1 if self.format == PNG else self.height - _ROWS * ((self.height - 1) // _ROWS)


def make_head(form: str, pixels: Pixels) -> ImageHead:
    """Encode a picture without its last rows; raises UsageError for JPEG without Pillow."""
    height, width, _ = pixels.shape
    if form == PNG:
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        rows = _filter_rows(pixels[:-1])
        packer = zlib.compressobj(_LEVEL)
        packed = packer.compress(rows) + packer.flush(zlib.Z_FULL_FLUSH)
        start = b"\x89PNG\r\n\x1a\n" + _make_chunk(b"IHDR", header) + _make_chunk(b"IDAT", packed)
        return ImageHead(form, width, height, start, zlib.adler32(rows))
    coded = _encode_jpeg(pixels)
    return ImageHead(form, width, height, coded[: _find_last_rows(coded)])


def finish_image(head: ImageHead, rows: Pixels) -> bytes:
    """Encode the last rows of an image; the head's start and they are a whole file."""
    if head.format == PNG:
        filtered = _filter_rows(rows)
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = packer.compress(filtered) + packer.flush()
        checksum = struct.pack(">I", zlib.adler32(filtered, head.checksum))
        return _make_chunk(b"IDAT", packed + checksum) + _END
    coded = _encode_jpeg(rows)
    return coded[_find_last_rows(coded) :]


def _filter_rows(pixels: Pixels) -> bytes:
    """Filter rows of pixels as PNG does before it packs them (Sub), each with the filter's number."""
    height, width, _ = pixels.shape
    rows = np.empty((height, 1 + 3 * width), np.uint8)
    rows[:, 0] = _SUB
    filtered = rows[:, 1:].reshape(height, width, 3)
    filtered[:, :1] = pixels[:, :1]
    np.subtract(pixels[:, 1:], pixels[:, :-1], out=filtered[:, 1:])
    rows[:, 1:] = filtered.reshape(height, 3 * width)
    return rows.tobytes()


def _make_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _encode_jpeg(pixels: Pixels) -> bytes:
    """Encode a picture with Pillow, each row of blocks by itself, after a restart marker."""
    file = io.BytesIO()
    image = import_pillow().fromarray(pixels)
    image.save(file, "JPEG", quality=QUALITY, subsampling=2, restart_marker_rows=1)
    return file.getvalue()


def _find_last_rows(coded: bytes) -> int:
    """Find the byte of a JPEG at which its last row of blocks begins: after a marker, or the scan's head."""
    begin = coded.rindex(_START_OF_SCAN)
    begin += 2 + int.from_bytes(coded[begin + 2 : begin + 4], "big")
    marks = (coded.rfind(b"\xff" + bytes([number])) for number in range(0xD0, 0xD8))
    return max(begin, *(mark + 2 for mark in marks))


def import_pillow() -> ModuleType:
    """Import Pillow's Image; raises UsageError that says how to install it."""
    try:
        from PIL import Image
    except ImportError:
        raise UsageError(
            f"JPEG needs the images extra: {describe_install('images')}; or pass --image-format png"
        ) from None
    return Image


def name_maker(form: str) -> str:
    """Name what encodes images of a format, with its version: the same encode a seed's images alike."""
    if form == PNG:
        return f"zlib {zlib.ZLIB_RUNTIME_VERSION}"
    import_pillow()
    import PIL

    return f"Pillow {PIL.__version__}"
