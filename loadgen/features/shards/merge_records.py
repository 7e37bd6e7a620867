"""Merge records: the requests of several shards as those of one run, by plan index and on one clock."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.errors import UsageError
from loadgen.base.record_columns import BOUNDS
from loadgen.figures.record import UNKNOWN, Record, Records
from loadgen.report.journal import Parts
from loadgen.transport.failure import Failure, FailureKind

# Times of a clock, and the value of each that stands for none; the others are differences and counts.
_TIMES = {
    "intended_ns": 0,
    "sent_ns": 0,
    "end_ns": 0,
    "first_byte_ns": 0,
    "visible_ns": UNKNOWN,
    "text_ns": UNKNOWN,
}
_MOST_RANGES = 8  # that are named


class Shifted(msgspec.Struct, frozen=True):
    """The records of one shard, and what is added to their times."""

    records: Records
    offset_ns: int = 0

    def parts(self) -> Iterator[Records]:
        """They on the other clock, a block of messages at a time; as they are where that is the same."""
        if not self.offset_ns:
            yield self.records
            return
        for block in self.records.blocks():
            rows = slice(block.first, block.last)
            yield Records(
                **{name: self._moved(name, column[rows]) for name, column in self.records.columns.items()},
                start=block.start,
                arrival_ns=block.arrival_ns + self.offset_ns,
                tokens=block.tokens,
                failures=self.records.failures[rows],
                finish_reasons=self.records.finish_reasons[rows],
                texts=self.records.texts[rows],
            )

    def _moved(self, name: str, column: Int64) -> Int64:
        return np.where(column == _TIMES[name], column, column + self.offset_ns) if name in _TIMES else column


def span_ns(records: Records) -> tuple[int, int]:
    """The first and the last time of the requests that were sent; 0 and 0 where none was."""
    sent = records.select(records.sent)
    return (int(sent.sent_ns.min()), int(sent.end_ns.max())) if len(sent) else (0, 0)


def joined(shards: Sequence[Shifted], lost: Sequence[Records], spill: Path | None = None) -> Records:
    """The records of all shards, and those that were lost, by plan index.

    Long ones go to a file without a name, in `spill` or the directory for temporary files.

    Raises UsageError where their times cannot be of one clock, or there is no room for them.
    """

    def parts() -> Iterator[Records]:
        for shard in shards:
            yield from shard.parts()
        yield from lost

    place = spill or Path(tempfile.gettempdir())
    try:
        records = Records.joined(Parts(parts), place)
    except OSError as error:
        why = error.strerror or error
        raise UsageError(
            f"cannot merge in {place}: {why}; choose an --output with room, or set TMPDIR"
        ) from None
    for name in _TIMES:
        low, high = BOUNDS[name]
        column = getattr(records, name)
        if len(column) and not (low <= column.min() and column.max() <= high):
            raise UsageError("the shards' times cannot be of one clock: their clock readings are wrong")
    return records


def lost(indices: Int64, slots: int, at_ns: int, why: str) -> Records:
    """Requests that were lost with their shard; each is in the slot `index mod slots`, sent never."""
    failure = Failure(FailureKind.LOST, why)
    made: list[Any] = indices.tolist()
    return Records.of(
        Record(index, index % slots, at_ns, 0, at_ns, exact_tokens=False, failure=failure) for index in made
    )


def ranges(indices: Int64) -> str:
    """Indices in words: `12–19, 27`."""
    ordered = np.unique(indices)
    breaks = np.flatnonzero(np.diff(ordered) != 1) + 1
    runs = np.split(ordered, breaks) if len(ordered) else []
    named = [f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs[:_MOST_RANGES]]
    rest = sum(len(run) for run in runs[_MOST_RANGES:])
    return ", ".join(named) + f" and {rest} more" * bool(rest)
