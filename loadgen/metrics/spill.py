"""Spill: the messages of a run that is too long for memory, in files without a name, mapped."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np

from loadgen.arrays import Int64

SPILLED = 2_000_000  # messages from which a run is not held
_BYTES = 8


def joined_messages(
    parts: Iterable[tuple[Int64, Int64, Int64]], place: Int64, count: int, spill: Path | None
) -> tuple[Int64, Int64]:
    """Arrivals and tokens of all parts, those of each request at its place: int64[messages] each.

    A part is where its requests begin, its arrivals and its tokens; `place` goes through the requests of all
    parts. In memory, or with `spill` in that directory; raises OSError where the disk is full.
    """
    columns: list[_Memory | _File] = []
    try:
        columns += (_Memory(count) if spill is None else _File(spill) for _ in range(2))
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
                    column.put(int(at[first]), values[begin:end])
        arrival_ns, tokens = (column.whole(count) for column in columns)
        return arrival_ns, tokens
    finally:
        for column in columns:
            column.close()


class _Memory:
    """A column that is held."""

    def __init__(self, count: int) -> None:
        self._values = np.empty(count, np.int64)

    def put(self, at: int, values: Int64) -> None:
        """Set the values from a place on."""
        self._values[at : at + len(values)] = values

    def whole(self, count: int) -> Int64:
        """All of it."""
        return self._values[:count]

    def close(self) -> None:
        """Nothing is open."""


class _File:
    """A column in a file without a name: its room is free again once no mapping of it is left."""

    def __init__(self, directory: Path) -> None:
        path = directory / f".{os.urandom(8).hex()}.part"
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        path.unlink()

    def put(self, at: int, values: Int64) -> None:
        """Set the values from a place on; written, since in a mapping a full disk is a signal."""
        data = memoryview(values.tobytes())
        done = 0
        while done < len(data):
            done += os.pwrite(self._handle, data[done:], at * _BYTES + done)

    def whole(self, count: int) -> Int64:
        """All of it, mapped, not to be written to."""
        if not count:
            return np.zeros(0, np.int64)
        mapping = mmap.mmap(self._handle, count * _BYTES, access=mmap.ACCESS_READ)
        return np.frombuffer(mapping, np.int64, count)

    def close(self) -> None:
        """Close it; mappings of it stay valid."""
        os.close(self._handle)
