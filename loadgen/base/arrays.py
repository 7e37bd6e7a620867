"""Arrays: names of their types, exact sums, long ones by blocks or in files, the `.npz` of columns and words.

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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from tokenize import TokenError
from typing import IO, Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Ints = NDArray[np.signedinteger[Any]]  # of any width
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
_BLOCK = 1 << 20  # values of a block, bytes of a read
TEXT_CODEC = ("utf-8", "surrogatepass")  # of texts; half a surrogate pair, which JSON may hold, is kept
SPILLED = 2_000_000  # messages of a run from which on its columns lie in files
_Column = NDArray[Any] | IO[bytes]  # held, or in a file without a name
_MAPPED = 16 << 20  # bytes from which a column is left in its file
_ALIGNED = 64
_WIDTHS = (1, 2, 4, 8)  # bytes of a count
_WHOLE = re.compile(r"<i[48]|\|[biu]1")
WITH_FLOATS = re.compile(rf"<f8|<U[1-9]\d*|{_WHOLE.pattern}")
_LOCAL_BYTES, _LENGTHS = 30, 26  # of a member's own header; where it has those of its name and extra field
# zipfile raises these for bytes that are no archive, or not the archive that was written.
_NOT_ZIP = (BadZipFile, NotImplementedError, EOFError, IndexError, struct.error)
_ENCRYPTED = 1
_EXTRA_ZIP64 = 20  # bytes that zipfile adds to the local header of a member of any size


def sum_exactly(values: Int64) -> int:
    """Sum an int64 column as a Python int, which cannot overflow."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFF_FFFF).sum())


def sum_rows(rows: Int64) -> list[int]:
    """Sum each row of an int64 table as `sum_exactly` does."""
    return [sum_exactly(row) for row in rows]


def split_blocks(column: NDArray[Any], size: int = _BLOCK) -> Iterator[NDArray[Any]]:
    """Yield successive views of a column of at most `size` values each."""
    for at in range(0, len(column), size):
        yield column[at : at + size]


def release_pages(*columns: NDArray[Any]) -> None:
    """Free the memory of memory-mapped columns until they are read again; leave any other as it is."""
    for column in columns:
        base: Any = column
        while isinstance(base, np.ndarray):
            base = base.base
        mapping = base.obj if isinstance(base, memoryview) else base
        if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)


def is_within(column: NDArray[Any], low: int, high: int) -> bool:
    """Whether all values are in [low, high], True if there are none; frees a memory-mapped column's pages."""
    for block in split_blocks(column):
        release_pages(column)
        if int(block.min()) < low or int(block.max()) > high:
            return False
    return True


def join_messages(
    parts: Iterable[tuple[Int64, Mapping[str, NDArray[Any]]]],
    kinds: Mapping[str, type[np.generic]],
    place: Int64,
    count: int,
    spill: Path | None,
) -> dict[str, NDArray[Any]]:
    """Join the per-message columns of several parts of a run, by name: kinds[name][count] each.

    A part is `start`, int64[its requests + 1], and its columns; an empty column becomes zeros. `place` is
    int64[requests of all parts], the index of each request's first message in the joined columns. With
    `spill` these lie in files of that directory; raises OSError where the disk is full.
    """
    with ExitStack() as files:
        columns: dict[str, _Column] = {
            name: np.zeros(count, kind) if spill is None else files.enter_context(TemporaryFile(dir=spill))
            for name, kind in kinds.items()
        }
        row = 0
        for start, parted in parts:
            at = place[row : row + len(start) - 1]
            row += len(at)
            # Requests that follow one another here and there go at once.
            apart = np.flatnonzero(np.diff(at) != np.diff(start[:-1])) + 1
            runs = [0, *apart.tolist(), len(at)] if len(at) else []
            for first, last in pairwise(runs):
                begin, end = int(start[first]), int(start[last])
                for name, column in columns.items():
                    _put_values(column, int(at[first]), parted[name][begin:end])
        return {name: _take_column(column, count, kinds[name]) for name, column in columns.items()}


def _put_values(column: _Column, at: int, values: NDArray[Any]) -> None:
    """Write values into a column from index `at` on; into a file by pwrite, so that a full disk raises."""
    if isinstance(column, np.ndarray):
        column[at : at + len(values)] = values
        return
    data, done = memoryview(values.tobytes()), 0
    while done < len(data):
        done += os.pwrite(column.fileno(), data[done:], at * values.itemsize + done)


def _take_column(column: _Column, count: int, kind: type[np.generic]) -> NDArray[Any]:
    """Return the finished column: the array, or the file mapped read-only, freed with its last reference."""
    if isinstance(column, np.ndarray):
        return column
    size = count * np.dtype(kind).itemsize
    os.ftruncate(column.fileno(), size)  # where its last values are none of a part's
    mapping = mmap.mmap(column.fileno(), size, access=mmap.ACCESS_READ)
    return np.frombuffer(mapping, kind, count)


def check_rows(
    columns: Mapping[str, NDArray[Any]], kinds: Mapping[str, type[np.generic]] | None = None
) -> None:
    """Raise ValueError unless each column is one row of the type that `kinds` has for it, else of int64."""
    for name, column in columns.items():
        kind = (kinds or {}).get(name, np.int64)
        if column.dtype != kind or column.ndim != 1:
            form = f"{column.ndim}-dimensional {column.dtype}"
            raise ValueError(f"column {name} is {form}, not a row of {np.dtype(kind).name}")


def check_start(start: Int64, requests: int, messages: int) -> None:
    """Raise ValueError unless `start` is int64[requests + 1] and ascends from 0 to `messages`."""
    check_rows({"start": start})
    if len(start) != requests + 1:
        raise ValueError(f"column start has {len(start)} values for {requests} requests")
    inside = ((start >= 0) & (start <= messages)).all()
    if start[0] != 0 or start[-1] != messages or not inside or (np.diff(start) < 0).any():
        raise ValueError(f"column start does not share {messages} chunks out among the requests")


def narrow_counts(counts: NDArray[Any]) -> bytes:
    """Write counts as unsigned little-endian integers of the least width that holds them."""
    return counts.astype(np.min_scalar_type(int(counts.max(initial=0))).newbyteorder("<")).tobytes()


def widen_counts(data: bytes, count: int, kind: type[np.signedinteger[Any]] = np.int64) -> NDArray[Any]:
    """Read what `narrow_counts` wrote, kind[count]; raises ValueError for what is not that."""
    if not count:
        return np.zeros(0, kind)
    width, over = divmod(len(data), count)
    if over or width not in _WIDTHS:
        raise ValueError("a frame is damaged: its tokens are not those of its arrivals")
    counts = np.frombuffer(data, f"<u{width}")
    if int(counts.max()) > np.iinfo(kind).max:
        raise ValueError("a frame is damaged: it holds counts that no run has")
    return counts.astype(kind)


def write_columns(file: BinaryIO, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write named columns, in order, to an open seekable file as an uncompressed `.npz`; raises OSError.

    Each array begins at a multiple of 64 bytes; pages of a memory-mapped column are freed once written.
    """
    with ZipFile(file, "w", ZIP_STORED) as archive:
        for name, column in columns.items():
            head = io.BytesIO()
            np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(column))
            info = ZipInfo(f"{name}.npy")
            info.external_attr = 0o600 << 16
            # An extra field moves the array to a multiple of 64 bytes; one has 4 bytes or more.
            length = -(file.tell() + _LOCAL_BYTES + len(info.filename) + _EXTRA_ZIP64) % _ALIGNED
            length += _ALIGNED if 0 < length < 4 else 0
            info.extra = struct.pack("<HH", 0xD935, length - 4).ljust(length, b"\0") if length else b""
            with archive.open(info, "w", force_zip64=True) as member:
                member.write(head.getvalue())
                for block in split_blocks(column):
                    member.write(block.tobytes())
                    release_pages(column)


def read_columns(
    path: Path, names: Collection[str], kinds: re.Pattern[str] = _WHOLE
) -> dict[str, NDArray[Any]]:
    """Read those of the named columns that a `.npz` has; from 16 MiB on they are mapped and read-only.

    `kinds` matches numpy's names of the types allowed: whole numbers and flags, or WITH_FLOATS.
    Raises OSError if the file cannot be read, ValueError if it or a column of these is not such.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        try:
            archive = ZipFile(file)
        except _NOT_ZIP as error:
            raise ValueError(str(error) or "it is not a zip archive") from None
        members = {info.filename: info for info in archive.infolist()}
        columns = {}
        for name in names:
            if (info := members.get(f"{name}.npy")) is not None:
                try:
                    columns[name] = _read_column(archive, file, info, kinds)
                except (*_NOT_ZIP, ValueError) as error:
                    raise ValueError(f"column {name}: {error or 'it is cut short'}") from None
        return columns


def _read_column(archive: ZipFile, file: BinaryIO, info: ZipInfo, kinds: re.Pattern[str]) -> NDArray[Any]:
    """Read or map a member's array; raises ValueError if compressed, encrypted, cut or of other kinds."""
    if info.flag_bits & _ENCRYPTED:
        raise ValueError("it is encrypted")
    if info.compress_type != ZIP_STORED or info.compress_size != info.file_size:
        raise ValueError("it is compressed, and a run's columns never are")
    if not 0 <= info.header_offset <= os.fstat(file.fileno()).st_size - info.file_size:
        raise ValueError("it lies outside the file")
    with archive.open(info) as member:
        kind, count = _read_header(member, kinds)
        offset = member.tell()
        if kind.itemsize * count != info.file_size - offset:
            raise ValueError(f"{info.file_size - offset} bytes are not {count} values of {kind.str}")
        if info.file_size < _MAPPED:
            return np.frombuffer(bytearray(member.read()), kind)
        while member.read(_BLOCK):  # at its end the sum of all that was read is checked
            pass
    file.seek(info.header_offset + _LENGTHS)
    lengths = struct.unpack("<HH", file.read(4))
    at = info.header_offset + _LOCAL_BYTES + sum(lengths) + offset
    return np.memmap(file, kind, "r", at, (count,)).view(np.ndarray)


def _read_header(member: IO[bytes], kinds: re.Pattern[str]) -> tuple[np.dtype[Any], int]:
    """Read dtype and length of an array of one dimension from its `.npy` header; raises ValueError."""
    try:
        read = np.lib.format.read_array_header_1_0
        if np.lib.format.read_magic(member)[0] > 1:
            read = np.lib.format.read_array_header_2_0
        shape, _, kind = read(member)
    # numpy parses the header as Python literals, and takes a damaged one for one of Python 2.
    except (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError):
        raise ValueError("it is not a numpy array") from None
    if len(shape) != 1:
        raise ValueError("it is not one row of numbers or strings")
    if not kinds.fullmatch(kind.str):
        raise ValueError(f"it holds {kind.str}, not int64")
    return kind, shape[0]


class Words:
    """Columns of strings as numbers of distinct ones, each stored once as UTF-8."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number_words(self, words: Sequence[str]) -> Int64:
        """Return the number of each word, int64[words], adding new words to the set."""
        known = self._numbers
        return np.fromiter((known.setdefault(word, len(known)) for word in words), np.int64, len(words))

    def pack(self) -> tuple[NDArray[np.uint8], Int64]:
        """Join the distinct strings as bytes; also return where each begins, and the end of the last."""
        parts = [word.encode(*TEXT_CODEC) for word in self._numbers]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        return np.frombuffer(b"".join(parts), np.uint8), np.concatenate([[0], np.cumsum(lengths)])


def unpack_words(stored: NDArray[np.uint8], start: Int64) -> list[str]:
    """Split what `Words.pack` returned into its strings; raises ValueError for anything else."""
    if stored.dtype != np.uint8 or stored.ndim != 1:
        raise ValueError("column words is not a row of bytes")
    check_rows({"word_start": start})
    if not len(start):
        raise ValueError("column word_start is empty")
    check_start(start, len(start) - 1, len(stored))
    data = stored.tobytes()
    return [data[begin:end].decode(*TEXT_CODEC) for begin, end in pairwise(start.tolist())]


def pick_words(words: Sequence[str], numbers: Int64) -> list[str]:
    """Return the word of each number; raises ValueError for a number without a word."""
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(words)):
        raise ValueError("a word's number is beyond the words")
    return [words[number] for number in numbers.tolist()]
