"""Text: a file of somebody's as characters, or why it is none."""

from __future__ import annotations

import codecs
from pathlib import Path

from loadgen.errors import UsageError

MOST_BYTES = 64 << 20  # of a file of somebody else's: parsed it takes ten times as much memory
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
    """A file's bytes; raises UsageError where there are none, or too many."""
    found = bounded(path)
    if not found.strip():
        raise UsageError(f"{path} is empty")
    return found


def bounded(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a plain file, at most so many; raises UsageError of a larger one, a pipe, a device."""
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no plain file")
        with path.open("rb") as file:
            raw = file.read(most + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    if len(raw) > most:
        raise UsageError(f"{path} is larger than {most >> 20} MiB: give it in parts, or without its requests")
    return raw


def decoded(raw: bytes, path: Path) -> str:
    """Bytes as text: UTF-8, what a byte-order mark says, else Latin-1; raises UsageError of what is none."""
    packed = next((name for magic, name in _PACKED.items() if raw.startswith(magic)), None)
    if packed is not None:
        raise UsageError(f"{path} is packed ({packed}): unpack it first")
    mark, encoding = next((one for one in _MARKED if raw.startswith(one[0])), (b"", ""))
    try:
        if mark:
            return raw[len(mark) :].decode(encoding)
        if b"\0" in raw[:8192]:
            raise UsageError(f"{path} is binary, no text")
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        if mark:
            raise UsageError(f"{path} is no {encoding}, which it begins as: it is damaged") from None
        return raw.decode("latin-1")
