"""Trace rows: what a trace holds, as columns: when each request came, its lengths, its prompt's blocks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base import bounds
from loadgen.base.arrays import Float64, Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import UsageError

NO_BLOCKS = 0
_INT64 = 2**63
_WORD = 2**64

Hashes = NDArray[np.int32] | Int64


class TraceRows(msgspec.Struct, frozen=True):
    """The requests of a trace, in the order in which they came.

    `at_ns`, `input_lens`, `output_lens` and `numbers` are int64[rows]; the hashes of row i are
    `hashes[starts[i] : starts[i + 1]]`.
    """

    at_ns: Int64  # after the trace's begin, never decreasing
    input_lens: Int64
    output_lens: Int64
    numbers: Int64  # of each row in its file, from 1
    hashes: Hashes
    starts: Int64  # int64[rows + 1]
    file: str  # as it was named
    digest: str  # of the bytes that were read
    block: int = NO_BLOCKS  # tokens that a hash stands for
    file_rows: int = 0  # those that are left out, too
    skipped: dict[str, int] = {}  # rows left out, by why
    notes: tuple[str, ...] = ()
    sessions: Int64 | None = None  # int64[rows], of which session each is; None: the format has none

    def __len__(self) -> int:
        return len(self.at_ns)


class HashLists:
    """Lists of hashes, gathered row by row into one array, of 32 bits while all fit."""

    def __init__(self) -> None:
        self._flat: array[int] = array("i")
        self._ends: array[int] = array("q", [0])

    def add(self, hashes: Sequence[int]) -> None:
        """The hashes of one more row; raises OverflowError of one beyond 64 bits."""
        try:
            self._flat.extend(hashes)
        except OverflowError:
            del self._flat[self._ends[-1] :]
            if self._flat.typecode == "i":
                self._flat = array("q", self._flat)
            self._flat.extend(map(_signed, hashes))
        self._ends.append(len(self._flat))

    def arrays(self) -> tuple[Hashes, Int64]:
        """All hashes, and where each row's begin: int64[rows + 1]."""
        narrow = self._flat.typecode == "i"
        flat: Hashes = np.frombuffer(self._flat, np.int32) if narrow else np.frombuffer(self._flat, np.int64)
        return flat, np.frombuffer(self._ends, np.int64)


def _signed(value: int) -> int:
    """A hash of 64 bits as the int64 of the same bits."""
    if not -_INT64 <= value < _WORD:
        raise OverflowError
    return value - _WORD if value >= _INT64 else value


def no_hashes(rows: int) -> tuple[Hashes, Int64]:
    """The arrays of rows without a hash."""
    return np.zeros(0, np.int32), np.zeros(rows + 1, np.int64)


def elapsed_ns(times: Float64, unit_ns: int, refusal: Callable[[int, str], UsageError]) -> Int64:
    """Nanoseconds after the first of `times`, which are in units of `unit_ns`: int64[rows].

    Raises what `refusal` makes of a row and a reason where a time is before that of the row above, or
    further from the first than a benchmark can last.
    """
    early = np.flatnonzero(np.diff(times) < 0)
    if len(early):
        raise refusal(int(early[0]) + 1, "its time is before that of the row above: sort the rows by time")
    after_ns = (times - times[:1]) * unit_ns
    far = np.flatnonzero(after_ns > bounds.YEAR_S * SECOND_NS)
    if len(far):
        raise refusal(int(far[0]), "its time is more than a year after the first: is the format right?")
    return np.rint(after_ns).astype(np.int64)
