"""Archive: columns as an uncompressed `.npz`, written block by block and mapped where they lie.

Any numpy reads what is written here. What is read may be a stranger's: only members that are stored as they
are, of one dimension and whole are taken, so that a file never becomes more memory than it has bytes.
"""

from __future__ import annotations

import io
import mmap
import os
import re
import stat
import struct
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import release_pages, split_blocks

_MAPPED = 16 << 20  # bytes from which a column is left in its file
_BLOCK = 1 << 20
_ALIGNED = 64
_MAGIC = re.compile(rb"\x93NUMPY[\x01-\x03]\x00")
_HEADER = re.compile(
    rb"\{'descr': '([<|][biufU]\d{1,8})', 'fortran_order': False, 'shape': \((\d{1,18}),\), \} *\n"
)
_LONGEST_HEADER = 1 << 12
_WHOLE = re.compile(r"<i8|\|b1|\|u1|<U[1-9]\d*")
WITH_FLOATS = re.compile(rf"<f8|{_WHOLE.pattern}")
_LOCAL = struct.Struct("<4s22xHH")  # a member's own header, up to the lengths of its name and extra field
_ENCRYPTED = 1
_EXTRA_ZIP64 = 20  # bytes that zipfile adds to the local header of a member of any size


def write_columns(file: BinaryIO, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write these columns to a file that can be sought in; raises OSError."""
    with ZipFile(file, "w", ZIP_STORED) as archive:
        for name, column in columns.items():
            head = io.BytesIO()
            np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(column))
            info = ZipInfo(f"{name}.npy")
            info.external_attr = 0o600 << 16
            info.extra = _make_padding(file.tell() + _LOCAL.size + len(info.filename) + _EXTRA_ZIP64)
            with archive.open(info, "w", force_zip64=True) as member:
                member.write(head.getvalue())
                for block in split_blocks(column):
                    member.write(block.tobytes())
                    release_pages(column)


def _make_padding(at: int) -> bytes:
    """Make an extra field so long that the column after it can be mapped as it is."""
    length = -at % _ALIGNED
    length += _ALIGNED if 0 < length < 4 else 0
    return struct.pack("<HH", 0xD935, length - 4).ljust(length, b"\0") if length else b""


def read_columns(
    path: Path, names: Collection[str], kinds: re.Pattern[str] = _WHOLE
) -> dict[str, NDArray[Any]]:
    """Read the named columns that the file holds; large ones are mapped and read-only.

    `kinds` are numpy's names of the types that they may have: whole numbers, flags and texts, or WITH_FLOATS.
    Raises OSError where it cannot be read, ValueError where it is not such a file.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        try:
            members = {info.filename: info for info in ZipFile(file).infolist()}
        except (BadZipFile, NotImplementedError, EOFError, IndexError, struct.error) as error:
            raise ValueError(str(error) or "it is not a zip archive") from None
        columns = {}
        for name in names:
            info = members.get(f"{name}.npy")
            if info is not None:
                try:
                    columns[name] = _read_column(file, info, kinds)
                except ValueError as error:
                    raise ValueError(f"column {name}: {error}") from None
        return columns


def _read_column(file: BinaryIO, info: ZipInfo, kinds: re.Pattern[str]) -> NDArray[Any]:
    if info.flag_bits & _ENCRYPTED:
        raise ValueError("it is encrypted")
    if info.compress_type != ZIP_STORED or info.compress_size != info.file_size:
        raise ValueError("it is compressed, and a run's columns never are")
    begin = _find_begin(file, info)
    length = info.file_size
    if begin + length > os.fstat(file.fileno()).st_size:
        raise ValueError("it is longer than the file")
    kind, count, offset = _read_header(file, begin, kinds)
    if np.dtype(kind).itemsize * count != length - offset:
        raise ValueError(f"{length - offset} bytes are not {count} values of {kind}")
    _check_sum(file, begin, info)
    at = begin + offset
    if length < _MAPPED:
        file.seek(at)
        return np.frombuffer(bytearray(file.read(length - offset)), kind)
    aligned = at - at % mmap.ALLOCATIONGRANULARITY
    mapping = mmap.mmap(file.fileno(), begin + length - aligned, access=mmap.ACCESS_READ, offset=aligned)
    return np.frombuffer(mapping, kind, count, at - aligned)


def _find_begin(file: BinaryIO, info: ZipInfo) -> int:
    """Find where a member's bytes begin, behind its own header."""
    if not 0 <= info.header_offset <= os.fstat(file.fileno()).st_size:
        raise ValueError("it lies outside the file")
    file.seek(info.header_offset)
    local = file.read(_LOCAL.size)
    if len(local) < _LOCAL.size or not local.startswith(b"PK\x03\x04"):
        raise ValueError("it is not at the offset in the archive")
    _, name, extra = _LOCAL.unpack(local)
    return info.header_offset + _LOCAL.size + int(name) + int(extra)


def _read_header(file: BinaryIO, at: int, kinds: re.Pattern[str]) -> tuple[str, int, int]:
    """Read the type and the number of a column's values, and where they begin in it."""
    file.seek(at)
    head = file.read(_LONGEST_HEADER)
    wide = 4 if head[6:7] > b"\x01" else 2
    begin = 8 + wide
    if not _MAGIC.match(head):
        raise ValueError("it is not a numpy array")
    length = int.from_bytes(head[8:begin], "little")
    match = _HEADER.fullmatch(head[begin : begin + length])
    if match is None or begin + length > len(head):
        raise ValueError("it is not one row of numbers or strings")
    kind = match[1].decode("ascii")
    if not kinds.fullmatch(kind):
        raise ValueError(f"it holds {kind}, not int64")
    return kind, int(match[2]), begin + length


def _check_sum(file: BinaryIO, at: int, info: ZipInfo) -> None:
    file.seek(at)
    crc, left = 0, info.file_size
    while left > 0:
        data = file.read(min(_BLOCK, left))
        if not data:
            raise ValueError("it is cut short")
        crc, left = zlib.crc32(data, crc), left - len(data)
    if crc != info.CRC:
        raise ValueError("its bytes are not those that were written")
