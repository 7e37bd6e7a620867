"""Archive: a bundle's bytes: a zip of which every byte but the packed ones follows from its manifest.

Any tool unpacks it. What is read may be a stranger's: it is taken only if it is, byte by byte, what would be
written of its parts, so no name, header or gap of it can say something else. The last 64 bytes, the zip's
comment, are the SHA-256 of all bytes before them in hexadecimal digits.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, BinaryIO

import msgspec

from loadgen.base.errors import ExitCode, UsageError

MANIFEST = "manifest.json"
LARGEST_BYTES = (1 << 32) - 1  # of a part, and of the file: beyond are headers of another form
DIGEST_BYTES = 64
BLOCK = 1 << 20
_LEVEL = 6
_STORED, _DEFLATED = 0, 8
_VERSION, _UTF8, _UNIX = 20, 1 << 11, 3 << 8
_TIME, _DAY = 0, 33  # 1980-01-01: when a part was written says nothing
_MODE = 0o100644 << 16
LOCAL = struct.Struct("<4s5H3I2H")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
END_BYTES = _END.size + DIGEST_BYTES
_BEGINS = b"PK\3\4"


class HashedFile:
    """A file that is read once, from its begin to its end, with the SHA-256 of what was read."""

    def __init__(self, file: IO[bytes], digest: hashlib._Hash) -> None:
        self._file, self.digest = file, digest

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self.digest.update(block)
        return block

    def tell(self) -> int:
        return self._file.tell()


class ChangedBundle(UsageError):
    """A bundle is not as it was written: its message names the first part that was changed."""

    exit_code = ExitCode.CHANGED


class BundlePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a bundle: its name, its bytes with their SHA-256, and those of what is stored of it."""

    name: str
    size_bytes: int
    sha256: str
    packed_bytes: int
    packed_sha256: str


class Packed(msgspec.Struct, frozen=True):
    """What the zip's headers say of a part."""

    name: bytes
    packed_bytes: int
    size_bytes: int
    crc: int
    method: int = _DEFLATED

    @classmethod
    def make_manifest(cls, raw: bytes) -> Packed:
        """Make that of the manifest, which is stored as it is."""
        return cls(MANIFEST.encode(), len(raw), len(raw), zlib.crc32(raw), _STORED)

    @property
    def local_header(self) -> bytes:
        """The header before its bytes."""
        return LOCAL.pack(_BEGINS, *self._common, len(self.name), 0) + self.name

    def make_entry(self, offset: int) -> bytes:
        """Make its entry in the zip's directory; its header begins at byte `offset`."""
        lengths = (len(self.name), 0, 0, 0, 0)
        entry = _ENTRY.pack(b"PK\1\2", _VERSION | _UNIX, *self._common, *lengths, _MODE, offset)
        return entry + self.name

    @property
    def _common(self) -> tuple[int, ...]:
        return (
            _VERSION, _UTF8, self.method, _TIME, _DAY, self.crc, self.packed_bytes, self.size_bytes
        )  # fmt: skip


def make_directory(parts: Iterable[Packed]) -> bytes:
    """Make the zip's directory and end, without the comment, of parts that follow one another from byte 0."""
    offset, entries = 0, list[bytes]()
    for part in parts:
        entries.append(part.make_entry(offset))
        offset += len(part.local_header) + part.packed_bytes
    listed = b"".join(entries)
    count = len(entries)
    return listed + _END.pack(b"PK\5\6", 0, 0, count, count, len(listed), offset, DIGEST_BYTES)


def measure_overhead(names: Iterable[bytes]) -> int:
    """Compute the bytes of a bundle that are not packed ones: headers, directory, end and digest."""
    headers = sum(LOCAL.size + _ENTRY.size + 2 * len(name) for name in names)
    return headers + END_BYTES


def pack(source: Iterable[bytes], name: str, into: IO[bytes]) -> tuple[BundlePart, Packed]:
    """Pack blocks of bytes, append them to `into`, and return the part and what headers say of it."""
    squeeze = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    plain, stored, crc, sizes = hashlib.sha256(), hashlib.sha256(), 0, [0, 0]

    def write(packed: bytes) -> None:
        stored.update(packed)
        sizes[1] += into.write(packed)

    for block in source:
        plain.update(block)
        crc = zlib.crc32(block, crc)
        sizes[0] += len(block)
        write(squeeze.compress(block))
    write(squeeze.flush())
    part = BundlePart(name, sizes[0], plain.hexdigest(), sizes[1], stored.hexdigest())
    return part, Packed(name.encode(), sizes[1], sizes[0], crc)


def write_archive(file: BinaryIO, manifest: bytes, parts: list[Packed], packed: IO[bytes]) -> None:
    """Write a bundle: manifest, parts whose bytes follow one another in `packed`, directory and digest."""
    digest = hashlib.sha256()

    def write(raw: bytes) -> None:
        digest.update(raw)
        file.write(raw)

    first = Packed.make_manifest(manifest)
    write(first.local_header + manifest)
    packed.seek(0)
    for part in parts:
        write(part.local_header)
        for block in read_blocks(packed, part.packed_bytes):
            write(block)
    write(make_directory([first, *parts]))
    file.write(digest.hexdigest().encode())


def read_blocks(file: IO[bytes] | HashedFile, size: int) -> Iterator[bytes]:
    """Yield the next `size` bytes of a file in blocks of at most 1 MiB; fewer where the file ends."""
    while size > 0 and (block := file.read(min(size, BLOCK))):
        size -= len(block)
        yield block


def is_bundle(head: bytes) -> bool:
    """Whether a file's first bytes are those of a bundle: a zip that begins with the manifest."""
    named = head[LOCAL.size : LOCAL.size + len(MANIFEST)] == MANIFEST.encode()
    return head[:4] == _BEGINS and named


def is_ended(tail: bytes) -> bool:
    """Whether a file's last bytes are the end of a zip whose comment has the length of a digest."""
    end = tail[-END_BYTES:-DIGEST_BYTES]
    return end[:4] == b"PK\5\6" and end[-2:] == DIGEST_BYTES.to_bytes(2, "little")


def unpack(file: HashedFile, part: BundlePart, write: Callable[[bytes], object]) -> Packed:
    """Read a part's header and bytes at the file's position, and pass the bytes on as they are unpacked.

    Returns what headers say of it. No more bytes than the manifest names are unpacked. Raises ChangedBundle
    where anything of the part is not what the manifest says.
    """
    name = part.name.encode()
    header = file.read(LOCAL.size + len(name))
    plain, stored, crc, size = hashlib.sha256(), hashlib.sha256(), 0, 0
    try:
        for block in _inflate(read_blocks(file, part.packed_bytes), part, stored.update):
            plain.update(block)
            crc = zlib.crc32(block, crc)
            size += len(block)
            write(block)
    except zlib.error:
        raise ChangedBundle(f"{part.name} was changed: it cannot be unpacked") from None
    if (size, plain.hexdigest(), stored.hexdigest()) != (part.size_bytes, part.sha256, part.packed_sha256):
        raise ChangedBundle(f"{part.name} was changed: its SHA-256 is not the manifest's")
    packed = Packed(name, part.packed_bytes, part.size_bytes, crc)
    if header != packed.local_header:
        raise ChangedBundle(f"the header of {part.name} was changed")
    return packed


def _inflate(packed: Iterable[bytes], part: BundlePart, note: Callable[[bytes], object]) -> Iterator[bytes]:
    """Yield what packed bytes unpack to, in blocks of at most 1 MiB; `note` gets the packed ones."""
    spread, left = zlib.decompressobj(-zlib.MAX_WBITS), part.size_bytes
    for block in packed:
        note(block)
        most = 0
        while block or most:  # what was cut off at `most` bytes may leave more to be taken out
            most = min(BLOCK, left + 1)
            made = spread.decompress(block, most)
            left -= len(made)
            if left < 0 or spread.unused_data:
                raise ChangedBundle(f"{part.name} was changed: it has more bytes than the manifest says")
            yield made
            block, most = spread.unconsumed_tail, most if len(made) == most else 0
    if not spread.eof:
        raise ChangedBundle(f"{part.name} was changed: it is cut short")
