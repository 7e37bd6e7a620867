"""Image requests: those of any source, with images in their last message, and the album of these images.

An image is noise by a seed, or a file. Noise compresses as photos do: such an image is a head, which several
share, and a tail of its last rows that is drawn for it alone: no two are equal, and a request is built in
well under a millisecond.
"""

from __future__ import annotations

import base64
import hashlib
import io
import struct
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base import untrusted
from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.structs import replace
from loadgen.base.text import describe_install
from loadgen.features.images.image_sizes import PERIOD, ImageSizes, parse_counts, parse_sizes
from loadgen.plan.planned_requests import ImageFacts, Requests, fingerprint
from loadgen.plan.request_sources import PlanInputs, RandomStream, SourcedRequests
from loadgen.wire.openai import Dialect

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
        """The number of pixel rows that `finish_image` adds: 1 of a PNG, 1 to 16 of a JPEG."""
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


MOST_HEADS = 64  # of a plan: more would be longer in the making
_MOST_HEAD_BYTES = 32 << 20  # of all heads
_MOST_BYTES = 256 << 20  # of all files of a directory
_MOST_FILE_BYTES = 64 << 20
_DIGEST_BYTES = 16
_THREE = 3  # bytes that base64 writes as four characters
AS_THEY_ARE = "as they are"
# Files of each kind begin with these bytes.
_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"RIFF", "webp"),
    (b"GIF8", "gif"),
)
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif")


class AlbumPage(msgspec.Struct, frozen=True):
    """The part that several images have in common: a head as it is sent; or, without head, a whole file."""

    start: bytes  # of its data URL
    rest: bytes  # of the file, one byte or two that the data URL has with what follows
    size: tuple[int, int]  # width, height; (0, 0) where that is not known
    file_bytes: int
    digest: bytes
    head: ImageHead | None = None  # without its bytes

    @classmethod
    def write(cls, kind: str, content: bytes, size: tuple[int, int], head: ImageHead | None) -> AlbumPage:
        """Make the page of a file, png, jpeg, webp or gif, or of its beginning where there is a head."""
        whole = len(content) if head is None else len(content) // _THREE * _THREE
        start = f"data:image/{kind};base64,".encode() + base64.b64encode(content[:whole])
        digest = hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
        bare = None if head is None else replace(head, start=b"")
        return cls(start, content[whole:], size, len(content), digest, bare)


class Album:
    """The images of a plan by their number, of which `pages_of` has the page, int64[images].

    An image is its page's start and last rows that a key and its number draw.
    """

    def __init__(
        self, pages: list[AlbumPage], pages_of: Int64, key: int = 0, texture: Texture | None = None
    ) -> None:
        self.pages, self.pages_of = pages, pages_of
        self._key, self._texture = key, texture

    def write(self, image: int) -> bytes:
        """Return an image's data URL."""
        page = self.pages[int(self.pages_of[image])]
        if page.head is None or self._texture is None:
            return page.start
        head = page.head
        rng = np.random.default_rng(np.random.SeedSequence(self._key, spawn_key=(image,)))
        tail = page.rest + finish_image(head, self._texture.cut_strip(rng, head.width, head.last_rows))
        return page.start + base64.b64encode(tail)

    @property
    def distinct(self) -> int:
        """The number of images that are not equal to an earlier one."""
        return len(np.unique(self.pages_of)) if self._texture is None else len(self.pages_of)

    @property
    def mean_bytes(self) -> int:
        """The mean bytes of an image's file, without its last rows."""
        each = np.array([page.file_bytes for page in self.pages])
        return round(float(each[self.pages_of].mean())) if len(self.pages_of) else 0

    def count_sizes(self, images: int) -> tuple[tuple[int, int, int], ...]:
        """Count the first `images` images of each size: (width, height, images), the most frequent first."""
        counted: dict[tuple[int, int], int] = {}
        used = np.bincount(self.pages_of[:images], minlength=len(self.pages)).tolist()
        for page, count in zip(self.pages, used, strict=True):
            counted[page.size] = counted.get(page.size, 0) + count
        rows = sorted(counted.items(), key=lambda row: (-row[1], row[0]))
        return tuple((width, height, count) for (width, height), count in rows if count)

    def digest(self) -> str:
        """Return a hash of all pages and of the first image."""
        hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for page in self.pages:
            hashed.update(page.digest)
        hashed.update(self.write(0))
        hashed.update(self.pages_of.astype("<i8").tobytes())
        return hashed.hexdigest()


def make_album(sizes: ImageSizes, form: str, images: int, stream: RandomStream) -> Album:
    """Make the heads of a plan's images and draw which image has which; raises UsageError without Pillow.

    Each size has as many of the 64 heads, one at least, and fewer where they would be over 32 MiB.
    """
    if form == JPEG:
        import_pillow()
    texture, rng = Texture(stream.rng("image texture")), stream.rng("image heads")
    every, numbers = sizes.draw(stream.rng("image sizes"), images)
    used = np.bincount(numbers, minlength=len(every))
    pages, first, counts, left = list[AlbumPage](), list[int](), list[int](), _MOST_HEAD_BYTES
    for number, (width, height) in enumerate(every):
        first.append(len(pages))
        room = left // (len(every) - number)
        while used[number] > len(pages) - first[-1] < MOST_HEADS // len(every) or len(pages) == first[-1]:
            head = make_head(form, texture.cut(rng, width, height))
            if len(pages) > first[-1] and len(head.start) > room:
                break
            room, left = room - len(head.start), left - len(head.start)
            pages.append(AlbumPage.write(form, head.start, (width, height), head))
        counts.append(len(pages) - first[-1])
    among = (stream.rng("image choice").random(images) * np.array(counts)[numbers]).astype(np.int64)
    return Album(pages, np.array(first)[numbers] + among, stream.key("image rows"), texture)


def read_album(directory: str, images: int) -> Album:
    """Read the image files of a directory, in the order of their names; images take them by turns.

    Raises UsageError for a directory without any, and for files of over 256 MiB in all.
    """
    where, flag = expand_path(directory), f"--image-dir {directory}"
    try:
        paths = sorted(path for path in where.iterdir() if path.is_file())
    except OSError as error:
        raise UsageError(f"{flag}: {error.strerror}: give a directory of image files") from None
    pages, left = list[AlbumPage](), _MOST_BYTES
    for path in paths:
        if (page := _read_page(path, flag)) is None:
            continue
        left -= page.file_bytes
        if left < 0:
            raise UsageError(
                f"{flag}: its images are over {_MOST_BYTES >> 20} MiB, which are held in memory: give fewer"
            )
        pages.append(page)
    if not pages:
        raise UsageError(f"{flag}: no PNG, JPEG, WebP or GIF file is in it")
    return Album(pages, np.arange(images, dtype=np.int64) % len(pages))


def _read_page(path: Path, flag: str) -> AlbumPage | None:
    """Read an image file; None for another; raises UsageError if unreadable, or an image by name alone."""
    try:
        content = untrusted.read_file_bytes(path, _MOST_FILE_BYTES)
    except OSError as error:
        raise UsageError(f"{flag}: {path.name}: {error.strerror or error}") from None
    kind = next((kind for begin, kind in _KINDS if content.startswith(begin)), None)
    if kind is None or (kind == "webp" and content[8:12] != b"WEBP"):
        if path.suffix.lower() in _SUFFIXES and not path.name.startswith("."):
            raise UsageError(
                f"{flag}: {path.name} is no PNG, JPEG, WebP or GIF by its first bytes: remove it"
            )
        return None
    return AlbumPage.write(kind, content, _read_size(kind, content), None)


def _read_size(kind: str, content: bytes) -> tuple[int, int]:
    """Read width and height from a PNG, a GIF or a JPEG; (0, 0) from others, and where they are not found."""
    if kind == "png" and len(content) >= 24:
        return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    if kind == "gif" and len(content) >= 10:
        return int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")
    at = 2
    while kind == "jpeg" and at + 9 <= len(content) and content[at] == 0xFF:
        mark = content[at + 1]
        if 0xC0 <= mark <= 0xCF and mark not in (0xC4, 0xC8, 0xCC):  # a frame
            return int.from_bytes(content[at + 7 : at + 9], "big"), int.from_bytes(
                content[at + 5 : at + 7], "big"
            )
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return 0, 0


class ImageRequests:
    """Requests of another source, to whose last message the images of each are added, after its text.

    `own` are those of the source, `counts` the images of each, int64[requests].
    """

    def __init__(self, own: Requests, album: Album, counts: Int64) -> None:
        self.own, self._album = own, album
        self._counts, self._before = counts, np.cumsum(counts) - counts
        self.format, self.input_lens, self.output_lens = own.format, own.input_lens, own.output_lens
        self.features = {**getattr(own, "features", {}), "images": int(np.argmax(counts > 0))}

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the source's requests; raises AttributeError for a private one."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.own, name)

    def request(self, i: int, dialect: Dialect, model: str) -> dict[str, Any]:
        """Make the fields of request i, with its images."""
        fields, first = self.own.request(i, dialect, model), int(self._before[i])
        urls = [self._album.write(image) for image in range(first, first + int(self._counts[i]))]
        return dialect.add_images(fields, urls) if urls else fields

    def digest(self) -> str:
        """Return a hash of the source's requests, of how many images each has, and of all images' parts."""
        contents = (self.own.digest().encode(), self._album.digest().encode())
        return fingerprint("images", (self._counts,), contents)


def add_contents(sourced: SourcedRequests, inputs: PlanInputs) -> SourcedRequests:
    """Add the profile's images to a source's requests; raises UsageError where they cannot have any."""
    profile = inputs.profile
    flag = "--image-dir" if profile.image_dir else "--image-size"
    if not inputs.dialect.chat:
        raise UsageError(f"{flag}: {inputs.dialect.path} takes no images: use --backend openai-chat")
    if sourced.turns is not None:
        raise UsageError(
            f"{flag} is of single requests, and the data has conversations: leave out one of them"
        )
    requests = len(sourced.requests.input_lens)
    counts = parse_counts(profile.images).draw(inputs.stream.rng("image counts"), requests)
    images = int(counts.sum())
    if not images:
        raise UsageError(f"--images {profile.images}: none of {requests} requests has an image: raise it")
    if profile.image_dir:
        album = read_album(profile.image_dir, images)
    else:
        sizes = parse_sizes(profile.image_size)
        album = make_album(sizes, profile.image_format, images, inputs.stream)
    made = ImageRequests(sourced.requests, album, counts)
    alike = len(counts) > 0 and int(counts.min()) == int(counts.max())
    facts = replace(
        sourced.facts,
        images=ImageFacts(
            format=AS_THEY_ARE if profile.image_dir else profile.image_format,
            sizes=album.count_sizes(int(counts.sum())),
            counts=tuple(counts[: 1 if alike else PERIOD].tolist()),
            distinct=album.distinct,
            mean_bytes=album.mean_bytes,
            digest=album.digest(),
            source=profile.image_dir,
            maker="" if profile.image_dir else name_maker(profile.image_format),
        ),
    )
    return replace(sourced, requests=made, facts=facts)
