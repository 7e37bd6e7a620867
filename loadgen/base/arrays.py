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
    """Sum an int64 column as a Python int, which cannot overflow."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFF_FFFF).sum())


def split_blocks(column: NDArray[Any], size: int = _BLOCK) -> Iterator[NDArray[Any]]:
    """Yield successive views of a column of at most `size` values each."""
    for at in range(0, len(column), size):
        yield column[at : at + size]


def release_pages(column: NDArray[Any]) -> None:
    """Give a memory-mapped column's pages back to the kernel, until they are used; else do nothing."""
    base: Any = column
    while isinstance(base, np.ndarray):
        base = base.base
    mapping = base.obj if isinstance(base, memoryview) else base
    if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def join_messages(
    parts: Iterable[tuple[Int64, Int64, Int64]], place: Int64, count: int, spill: Path | None
) -> tuple[Int64, Int64]:
    """Join the per-message columns of several parts of a run, arrivals (ns) and tokens: int64[count] each.

    A part is (start, arrivals, tokens), where `start` is int64[its requests + 1]. `place` is int64[requests
    of all parts], the index of each request's first message in the joined columns. With `spill` these lie in
    files of that directory; raises OSError where the disk is full.
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
    """Write values into a column from index `at` on; into a file by pwrite, so that a full disk raises."""
    if isinstance(column, np.ndarray):
        column[at : at + len(values)] = values
        return
    data, done = memoryview(values.tobytes()), 0
    while done < len(data):
        done += os.pwrite(column.fileno(), data[done:], at * _BYTES + done)


def _take_column(column: _Column, count: int) -> Int64:
    """Return the finished column: the array, or the file mapped read-only, freed with its last reference."""
    if isinstance(column, np.ndarray):
        return column
    mapping = mmap.mmap(column.fileno(), count * _BYTES, access=mmap.ACCESS_READ)
    return np.frombuffer(mapping, np.int64, count)
