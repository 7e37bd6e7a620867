"""Text: an untrusted file as characters, or why it cannot be."""

from __future__ import annotations

import codecs
import errno
from pathlib import Path

from loadgen.base import untrusted
from loadgen.base.errors import UsageError

MOST_BYTES = 64 << 20  # of an untrusted file: parsed it takes ten times as much memory
MOST_RESULTS = 10_000  # of a file: each is compared with others
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"7z\xbc\xaf\x27\x1c": "7-zip",
}
_MARKED = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16's, which is how it begins
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def read(path: Path) -> bytes:
    """A file's bytes; raises UsageError if it is empty or too large."""
    raw = bounded(path)
    if not raw.strip():
        raise UsageError(f"{path} is empty")
    return raw


def bounded(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a regular file, at most `most`; raises UsageError of a larger one, a pipe, a device."""
    try:
        return untrusted.file_bytes(path, most)
    except OSError as error:
        if error.errno == errno.EFBIG:
            why = f"is larger than {most >> 20} MiB: give it in parts, or without its requests"
            raise UsageError(f"{path} {why}") from None
        raise UsageError(f"{path}: {error.strerror or error}") from None


def check_results(path: Path, count: int) -> None:
    """Raise UsageError of a file with too many results."""
    if count > MOST_RESULTS:
        raise UsageError(f"{path} has more than {MOST_RESULTS} results: give it in parts")


def decoded(raw: bytes, path: Path) -> str:
    """Bytes as text: UTF-8, what a byte-order mark declares, else Latin-1; raises UsageError if binary."""
    packed = next((name for magic, name in _PACKED.items() if raw.startswith(magic)), None)
    if packed is not None:
        raise UsageError(f"{path} is compressed ({packed}): unpack it first")
    mark, encoding = next((marked for marked in _MARKED if raw.startswith(marked[0])), (b"", ""))
    try:
        if mark:
            return raw[len(mark) :].decode(encoding)
        if b"\0" in raw[:8192]:
            raise UsageError(f"{path} is a binary file, not text")
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        if mark:
            raise UsageError(
                f"{path} begins as {encoding} and is not valid {encoding}: it is damaged"
            ) from None
        return raw.decode("latin-1")
