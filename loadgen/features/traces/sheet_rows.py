"""Sheet rows: traces in CSV with times and lengths: Azure's and BurstGPT's."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
import numpy as np

from loadgen.base import bounds
from loadgen.base.arrays import Int64
from loadgen.base.text import quote_value
from loadgen.features.traces.trace_rows import TraceRows, elapsed_ns, no_hashes
from loadgen.plan.json_lines import Lines
from loadgen.plan.sheets import row_cells

_PIECE = 65_536  # rows that are read at once
_FIRST_YEAR, _LAST_YEAR = "1970", "2261"  # nanoseconds between two of them fit into 63 bits
_DATETIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(Z|[+-]\d\d:?\d\d)?")
FAILED = "failed when recorded: no token was answered"
EMPTY = "no token in the prompt"


class SheetColumns(msgspec.Struct, frozen=True):
    """What the columns of a format's CSV are called."""

    time: str
    input_len: str
    output_len: str
    dated: bool = False  # times are dates of a calendar; else seconds

    @property
    def names(self) -> tuple[str, str, str]:
        return self.time, self.input_len, self.output_len


def header(lines: Lines) -> list[str]:
    """The names in the first row."""
    return [name.strip() for name in next(row_cells(lines, 0, 1))]


def read(lines: Lines, name: str, columns: SheetColumns) -> TraceRows:
    """The rows of a file of a format with this name and these columns; raises UsageError."""
    names = header(lines)
    missing = [wanted for wanted in columns.names if wanted not in names]
    if missing:
        raise lines.file.refusal(
            f"has no column {missing[0]!r}, which {name} has: give the --trace-format that it is in"
        )
    if len(lines) == 1:
        raise lines.file.refusal("holds a header and no rows")
    places = [names.index(wanted) for wanted in columns.names]
    times: list[Int64] = []
    input_lens, output_lens = array("q"), array("q")
    zones: set[str] = set()
    cells = _cells(lines, places, len(names))
    read_rows = 0
    while piece := list(islice(cells, _PIECE)):
        texts = [row[0] for row in piece]
        times.append(
            _dated(texts, zones, lines, read_rows) if columns.dated else _seconds(texts, lines, read_rows)
        )
        for i, (_, prompt, answer) in enumerate(piece):
            input_lens.append(_length(prompt, lines, read_rows + i, columns.input_len))
            output_lens.append(_length(answer, lines, read_rows + i, columns.output_len))
        read_rows += len(piece)
    return _rows(
        lines, np.concatenate(times), *(np.frombuffer(a, np.int64) for a in (input_lens, output_lens))
    )


def _rows(lines: Lines, times_ns: Int64, input_lens: Int64, output_lens: Int64) -> TraceRows:
    """The columns without the rows of which nothing can be sent, which are counted."""
    after = (times_ns - times_ns[0]).astype(np.float64)
    at_ns = elapsed_ns(after, 1, lambda i, why: lines.refusal(i + 1, why))
    failed, empty = output_lens == 0, input_lens == 0
    kept = np.flatnonzero(~failed & ~empty)
    if not len(kept):
        raise lines.file.refusal("no row has tokens in its prompt and in its answer")
    counts = {FAILED: int(failed.sum()), EMPTY: int((empty & ~failed).sum())}
    return TraceRows(
        at_ns[kept],
        input_lens[kept],
        output_lens[kept],
        np.array([lines.number(i + 1) for i in kept.tolist()], np.int64),
        *no_hashes(len(kept)),
        lines.path,
        lines.digest(),
        file_rows=len(times_ns),
        skipped={why: count for why, count in counts.items() if count},
    )


def _cells(lines: Lines, places: Sequence[int], width: int) -> Iterator[list[str]]:
    """The cells of each row below the header, in the order of `places`."""
    for i, row in enumerate(row_cells(lines, 1, len(lines)), 1):
        if len(row) != width:
            raise lines.refusal(i, f"has {len(row)} columns, and the header {width}")
        yield [row[place] for place in places]


def _length(text: str, lines: Lines, i: int, column: str) -> int:
    """A number of tokens; raises UsageError that names row and column."""
    value = int(text) if text.isascii() and text.strip().isdigit() and len(text) <= 18 else -1
    if not 0 <= value <= bounds.MOST_TOKENS:
        raise lines.refusal(
            i + 1,
            f"{column} {quote_value(text)} is not a number of tokens from 0 to {bounds.MOST_TOKENS}",
        )
    return value


def _seconds(texts: list[str], lines: Lines, first: int) -> Int64:
    """Times in seconds as nanoseconds, int64[rows]."""
    for i, text in enumerate(texts):
        try:
            fits = 0 <= float(text) <= bounds.MOST_SECONDS * 8
        except ValueError:
            fits = False
        if not fits:
            raise lines.refusal(first + i + 1, f"{quote_value(text)} is not a time in seconds from 0")
    return np.rint(np.array(texts, np.float64) * 1e9).astype(np.int64)


def _dated(texts: list[str], zones: set[str], lines: Lines, first: int) -> Int64:
    """Dates of a calendar as nanoseconds, int64[rows]; all must have the same time zone, or none."""
    dates = []
    for i, text in enumerate(texts):
        parts = _DATETIME.fullmatch(text.strip())
        if parts is None:
            raise lines.refusal(first + i + 1, f"{quote_value(text)} is not a date and time")
        if not _FIRST_YEAR <= parts[1][:4] <= _LAST_YEAR:
            raise lines.refusal(
                first + i + 1, f"{quote_value(text)} is not in the years {_FIRST_YEAR} to {_LAST_YEAR}"
            )
        zones.add(parts[2] or "")
        dates.append(parts[1])
        if len(zones) > 1:
            raise lines.refusal(
                first + i + 1, f"{quote_value(text)} is in another time zone than the rows above"
            )
    try:
        return np.array(dates, "datetime64[ns]").astype(np.int64)
    except ValueError as error:
        wrong = next(i for i, date in enumerate(dates) if not _is_date(date))
        raise lines.refusal(first + wrong + 1, f"{quote_value(texts[wrong])} is no date: {error}") from None


def _is_date(text: str) -> bool:
    try:
        np.datetime64(text, "ns")
    except ValueError:
        return False
    return True
