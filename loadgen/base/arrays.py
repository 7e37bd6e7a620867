"""Arrays: the names of their types, exact sums, blocks of long ones, and long ones kept in files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
_BLOCK = 1 << 20

SPILLED = 2_000_000  # messages from which a run is not held
_BYTES = 8
_Column = Int64 | IO[bytes]  # held, or in a file without a name


def sum_exactly(values: Int64) -> int:
    """Sum the values, exactly even where an int64 cannot hold the sum."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFF_FFFF).sum())


def split_blocks(column: NDArray[Any], size: int = _BLOCK) -> Iterator[NDArray[Any]]:
    """Split a column into successive pieces of at most `size` values."""
    for at in range(0, len(column), size):
        yield column[at : at + size]


def release_pages(column: NDArray[Any]) -> None:
    """Give back the memory that pages of a mapped column take until they are read again."""
    base: Any = column
    while isinstance(base, np.ndarray):
        base = base.base
    mapping = base.obj if isinstance(base, memoryview) else base
    if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def join_messages(
    parts: Iterable[tuple[Int64, Int64, Int64]], place: Int64, count: int, spill: Path | None
) -> tuple[Int64, Int64]:
    """Join arrivals and tokens of all parts, each request's at its place: int64[messages] each.

    A part is where its requests begin, its arrivals and its tokens; `place` goes through the requests of
    all parts. Held in memory, or with `spill` (and a message at least) in that directory; raises OSError
    where the disk is full.
    """
    with ExitStack() as files:
        columns: list[_Column] = [
            np.empty(count, np.int64) if spill is None else files.enter_context(TemporaryFile(dir=spill))
            for _ in range(2)
        ]
        row = 0
        for start, *parted in parts:
            at = place[row : row + len(start) - 1]
            row += len(at)
            # Requests that follow one another here and there go at once.
            apart = np.flatnonzero(np.diff(at) != np.diff(start[:-1])) + 1
            runs = [0, *apart.tolist(), len(at)] if len(at) else []
            for first, last in pairwise(runs):
                begin, end = int(start[first]), int(start[last])
                for column, values in zip(columns, parted, strict=True):
                    _put_values(column, int(at[first]), values[begin:end])
        arrival_ns, tokens = (_take_column(column, count) for column in columns)
        return arrival_ns, tokens


def _put_values(column: _Column, at: int, values: Int64) -> None:
    """Set the values from a place on; a file is written, since in a mapping a full disk is a signal."""
    if isinstance(column, np.ndarray):
        column[at : at + len(values)] = values
        return
    data, done = memoryview(values.tobytes()), 0
    while done < len(data):
        done += os.pwrite(column.fileno(), data[done:], at * _BYTES + done)


def _take_column(column: _Column, count: int) -> Int64:
    """Take a whole column; a file's is mapped and read-only, and its room free once no mapping is left."""
    if isinstance(column, np.ndarray):
        return column
    mapping = mmap.mmap(column.fileno(), count * _BYTES, access=mmap.ACCESS_READ)
    return np.frombuffer(mapping, np.int64, count)
