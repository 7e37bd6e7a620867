"""Trace rows: a trace as columns, of times, lengths and prompts' blocks, and what reads its rows."""

from __future__ import annotations

import csv
import shlex
from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from loadgen.base import parsing
from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.json_lines import Lines
from loadgen.base.parsing import parse_instant_ns
from loadgen.base.text import quote_value
from loadgen.base.untrusted import read_number
from loadgen.features.traces.call_order import SessionTrees, reorder_waits
from loadgen.features.traces.otel_spans import SpanMessages
from loadgen.plan.planned_requests import Cancellations, Waits, make_cancellations, merge_fields
from loadgen.settings.load_settings import CancelPoint
from loadgen.settings.request_settings import SAMPLING
from loadgen.wire.openai import Dialect

NO_BLOCKS = 0
_UNSENT = ("image", "audio", "video")  # in the names of columns that are a part of the load
_WITHOUT = "prompts are sent as text alone; --random-mm-base-items-per-request N adds images to each"
_WORD = 2**64

Hashes = NDArray[np.int32] | Int64
# A row's index, its time, the tokens of prompt and answer, and the hashes of its blocks.
TimedRow = tuple[int, float, int, int, Sequence[int]]
Length = Annotated[int, msgspec.Meta(ge=1, le=parsing.MOST_TOKENS)]
FORMATS_OF = {16: "bailian or timed", 512: "mooncake"}  # by the tokens that a hash stands for
BLOCKS = (*FORMATS_OF, 64)  # of published traces
ANY_BLOCKS = (*BLOCKS, 32, 128, 256, 1024, 2048, 8, 4)
_SENT_AS = "each request is sent at its own time, and its prompt is made of its lengths and hashes"
_UNREAD = ("session_id", "delay", "messages", "text_input")
_MOST_DIGITS = 18  # of a number of tokens, so that 64 bits hold it
FAILED = "failed when recorded: no output token"
EMPTY = "no token in the prompt"
NO_SAMPLING = -1
# Lengths are the trace's own, and APIs do not agree on what log-probabilities are asked for by.
_OWN_SAMPLING = ("min_tokens", "logprobs")
SENT = tuple(name for name in SAMPLING if name not in _OWN_SAMPLING)
_TOP_K, _ALL_TOKENS = "top_k", -1  # where vLLM logs 0, every engine takes -1


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
    timed_notes: tuple[str, ...] = ()  # where rows are sent at their times
    sessions: Int64 | None = None  # int64[rows], of which session each is; None: the format has none
    waits: Waits | None = None  # what each waits for, by index; None: not known, each has its time alone
    delays_ns: Int64 | None = None  # int64[rows], before each, as `Turns` has them; None without `waits`
    growth: Growth | None = None  # in place of hashes: which earlier row each prompt begins with
    messages: SpanMessages | None = None  # of all rows; None: some have none
    recorded: RecordedFields | None = None  # None: the trace has no sampling, and no cancelled calls

    def __len__(self) -> int:
        return len(self.at_ns)


class TraceColumns:
    """Collects the sendable rows of a trace as columns, one by one: in time, or session after session."""

    def __init__(self, grid_ns: int = 1) -> None:
        self.trees = SessionTrees(grid_ns)  # of sessions: the order of their calls
        self._columns = tuple(array("q") for _ in range(5))
        self._hashes: array[int] = array("i")  # of 32 bits while all fit
        self._ends: array[int] = array("q", [0])  # of each row's hashes

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(
        self, at_ns: int, lens: tuple[int, int], number: int, session: int = 0, hashes: Sequence[int] = ()
    ) -> None:
        """Add a row by its time, its prompt's and answer's tokens, and its number in the file.

        A row of a session needs the same call in `trees`, in the same order. Raises OverflowError for a hash
        beyond 64 bits; the columns are of no use then.
        """
        for column, value in zip(self._columns, (at_ns, *lens, number, session), strict=True):
            column.append(value)
        try:
            self._hashes.extend(hashes)
        except OverflowError:
            del self._hashes[self._ends[-1] :]
            if self._hashes.typecode == "i":
                self._hashes = array("q", self._hashes)
            # Of 64 bits without a sign, the number of the same bits.
            self._hashes.extend(value - _WORD if _WORD // 2 <= value < _WORD else value for value in hashes)
        self._ends.append(len(self._hashes))

    @property
    def sessions(self) -> Int64:
        """The session number of each row, int64[rows]; 0 where none was given."""
        return np.frombuffer(self._columns[-1], np.int64)

    @property
    def blocks(self) -> int:
        """The number of hashes of all rows together."""
        return len(self._hashes)

    def make(self, file: str, digest: str, block: int = NO_BLOCKS, **others: Any) -> TraceRows:
        """Make the TraceRows of the added rows, in their order; `others` are further fields of it."""
        is_narrow = self._hashes.typecode == "i"
        hashes: Hashes = (
            np.frombuffer(self._hashes, np.int32) if is_narrow else np.frombuffer(self._hashes, np.int64)
        )
        starts = np.frombuffer(self._ends, np.int64)
        at_ns, prompts, answers, numbers = (np.frombuffer(column, np.int64) for column in self._columns[:4])
        return TraceRows(at_ns, prompts, answers, numbers, hashes, starts, file, digest, block, **others)

    def make_sessions(self, lines: Lines, block: int = NO_BLOCKS, **others: Any) -> TraceRows:
        """Make the TraceRows of sessions, sorted by time, which counts from the first row.

        Needs at least one row, and the rows of each session added in the order of their times.
        """
        waits, delays_ns = self.trees.make()
        others |= {"sessions": self.sessions, "waits": waits, "delays_ns": delays_ns}
        return sort_by_time(self.make(lines.path, lines.digest(), block, **others))


def sort_by_time(rows: TraceRows) -> TraceRows:
    """Return rows sorted by time, from 0 at the first; those of one session must be in that order already."""
    order = np.argsort(rows.at_ns, kind="stable").astype(np.int64)
    counts = np.diff(rows.starts)[order]
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    hashes = np.empty_like(rows.hashes)  # row by row: their indices would be as long again
    spans = zip(starts.tolist(), rows.starts[order].tolist(), counts.tolist(), strict=False)
    for begin, earlier, count in spans:
        hashes[begin : begin + count] = rows.hashes[earlier : earlier + count]
    return replace(
        rows,
        at_ns=rows.at_ns[order] - rows.at_ns[order[0]],
        input_lens=rows.input_lens[order],
        output_lens=rows.output_lens[order],
        numbers=rows.numbers[order],
        hashes=hashes,
        starts=starts,
        sessions=None if rows.sessions is None else rows.sessions[order],
        waits=None if rows.waits is None else reorder_waits(rows.waits, order),
        delays_ns=None if rows.delays_ns is None else rows.delays_ns[order],
        growth=None if rows.growth is None else rows.growth.reorder(order),
        messages=None if rows.messages is None else rows.messages.reorder(order),
        recorded=None if rows.recorded is None else rows.recorded.reorder(order),
    )


def read_rows(lines: Lines, rows: Iterable[TimedRow], unit_ns: float, block: int = NO_BLOCKS) -> TraceRows:
    """Make the TraceRows of rows, times in `unit_ns`; those without prompt or answer tokens are only counted.

    Raises UsageError that names the row for a time before that of the row above, or further from the first
    than a benchmark can last, and for a hash beyond 64 bits; of the file if no row is left.
    """
    columns, skipped, count = TraceColumns(), Counter[str](), 0
    begin = last = 0.0
    for i, time, prompt_len, answer_len, hashes in rows:
        if not count:
            begin = last = time
        count += 1
        if time < last:
            raise lines.refusal(i, "its time is before that of the row above: sort the rows by time")
        last, after_ns = time, (time - begin) * unit_ns
        if after_ns > parsing.YEAR_S * SECOND_NS:
            raise lines.refusal(i, "its time is more than a year after the first: is the format right?")
        if not (prompt_len and answer_len):
            skipped[EMPTY if answer_len else FAILED] += 1
            continue
        try:
            columns.add(round(after_ns), (prompt_len, answer_len), lines.number(i), hashes=hashes)
        except OverflowError:
            raise lines.refusal(i, "hash_ids holds a number of more than 64 bits") from None
    if not len(columns):
        raise lines.file.refusal("no row has tokens in its prompt and in its output")
    left_out = dict(sorted(skipped.items()))
    return columns.make(lines.path, lines.digest(), block, file_rows=count, skipped=left_out)


class HashedRow(msgspec.Struct, gc=False):
    """A row of Mooncake's, Bailian's and vLLM's timed traces; the format has its time's unit."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Length
    output_length: Length
    hash_ids: list[int] | None = None
    # Keys of aiperf's traces that are not read here.
    session_id: msgspec.Raw = msgspec.Raw()
    delay: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    text_input: msgspec.Raw = msgspec.Raw()


def read_hashed_rows(lines: Lines, unit_ns: float, block: int, kind: type[HashedRow]) -> TraceRows:
    """Read the rows of a file of hashed prompts by unit of time and block size; a note names keys not read.

    `kind` is HashedRow, or has its first fields under other keys. Raises UsageError that names the row.
    """
    unread: dict[str, None] = {}

    def list_rows() -> Iterator[TimedRow]:
        for i, row in enumerate(lines.decode_rows(kind)):
            unread.update(dict.fromkeys(key for key in _UNREAD if bytes(getattr(row, key, b""))))
            yield i, row.timestamp, row.input_length, row.output_length, row.hash_ids or ()

    rows = read_rows(lines, list_rows(), unit_ns, block)
    listed = ", ".join(f"`{key}`" for key in unread)
    return replace(rows, notes=(f"{listed} of the rows are not read: {_SENT_AS}",)) if unread else rows


def read_blocks(lines: Lines, name: str, unit_ns: int, block: int) -> TraceRows:
    """Read hashed prompts of the format `name`; raises UsageError if all hashes are of another block size."""
    rows = read_hashed_rows(lines, unit_ns, block, HashedRow)
    lens = rows.input_lens, np.diff(rows.starts)
    if not is_covered(*lens, block) and (other := find_block(*lens, BLOCKS)):
        raise lines.file.refusal(
            f"each row has one of hash_ids for {other} tokens, and {name} one for {block}: "
            f"{explain_block(other, lines.path)}"
        )
    return rows


def is_covered(input_lens: Int64, hash_counts: Int64, block: int) -> bool:
    """Whether every row has ceil(input_len / block) hashes, and some row more than one."""
    return bool((hash_counts == -(-input_lens // block)).all() and (hash_counts > 1).any())


def find_block(input_lens: Int64, hash_counts: Int64, sizes: Sequence[int]) -> int:
    """Return the first of `sizes` for which `is_covered` holds; 0 if none does."""
    return next((size for size in sizes if is_covered(input_lens, hash_counts, size)), 0)


def explain_block(block: int, path: str) -> str:
    """Return which flags send a trace whose hashes stand for `block` tokens each."""
    if block in FORMATS_OF:
        return f"give the --trace-format that it is in ({FORMATS_OF[block]})"
    return (
        f"send it with --dataset-name timed_trace --dataset-path {shlex.quote(path)} "
        f"--timed-trace-chunk-hash-size {block}; of times in milliseconds with "
        "--timed-trace-sec-multiplier 0.001 too"
    )


def read_header(lines: Lines) -> list[str]:
    """Return the column names in the first row, stripped."""
    return [name.strip() for name in next(read_row_cells(lines, 0, 1))]


def read_sheet(lines: Lines, columns: Sequence[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line index, 0 the header's; cells of `columns`) of each row of a CSV of the format `name`.

    Raises UsageError for a missing column, no rows, or a row with more or fewer cells than the header.
    """
    names = read_header(lines)
    missing = [wanted for wanted in columns if wanted not in names]
    if missing:
        raise lines.file.refusal(
            f"has no column {missing[0]!r}, which {name} has: give the --trace-format that it is in"
        )
    if len(lines) == 1:
        raise lines.file.refusal("holds a header and no rows")
    places = [names.index(wanted) for wanted in columns]
    for i, cells in enumerate(read_row_cells(lines, 1, len(lines)), 1):
        if len(cells) != len(names):
            raise lines.refusal(i, f"has {len(cells)} columns, and the header {len(names)}")
        yield i, [cells[place] for place in places]


def read_sheet_rows(lines: Lines, name: str, columns: tuple[str, str, str], is_dated: bool) -> TraceRows:
    """Read a CSV by columns of time (a date if `is_dated`, else seconds) and tokens; raises UsageError."""

    def list_rows() -> Iterator[TimedRow]:
        for i, (at, *lens) in read_sheet(lines, columns, name):
            try:
                time_ns = (
                    parse_instant_ns(at)
                    if is_dated
                    else round(parse_number(at, columns[0], parsing.MOST_SECONDS * 8) * SECOND_NS)
                )
                prompt_len, answer_len = map(parse_length, lens, columns[1:])
            except ValueError as error:
                raise lines.refusal(i, f"{error}") from None
            yield i, time_ns, prompt_len, answer_len, ()

    rows = read_rows(lines, list_rows(), unit_ns=1)
    unsent = [name for name in read_header(lines) if any(word in name.lower() for word in _UNSENT)]
    return replace(rows, notes=tuple(f"the column {name} is not read: {_WITHOUT}" for name in unsent))


def parse_length(text: str, column: str) -> int:
    """Parse a whole number of tokens, 0 to MOST_TOKENS; raises ValueError that names the column."""
    is_number = text.isascii() and text.strip().isdigit() and len(text) <= _MOST_DIGITS
    if not is_number or (length := int(text)) > parsing.MOST_TOKENS:
        raise ValueError(
            f"{column} {quote_value(text)} is not a number of tokens from 0 to {parsing.MOST_TOKENS}"
        )
    return length


def parse_number(text: str, column: str, most: float) -> float:
    """Parse a number from 0 to `most`; raises ValueError that names the column."""
    value = read_number(text)
    if value is None or value > most:
        raise ValueError(f"{column} {quote_value(text)} is not a number from 0 to {most:,.0f}")
    return value


def read_row_cells(lines: Lines, begin: int, stop: int) -> Iterator[list[str]]:
    """Yield the cells of CSV rows `begin` up to `stop`, not included; raises UsageError that names the row.

    A row is a line: a quote that one leaves open would take in the rows below it.
    """
    reader = csv.reader(map(bytes.decode, lines.read_span(begin, stop)))
    try:
        for row, cells in enumerate(reader, begin):
            if begin + reader.line_num != row + 1:
                raise lines.refusal(row, "opens a quote that the line does not close")
            yield cells
    except csv.Error as error:
        row = begin + reader.line_num - 1
        bare = b"\r" in lines[row].rstrip(b"\r")
        why = (
            "has carriage returns inside: end lines with LF or CRLF" if bare else f"is not valid CSV: {error}"
        )
        raise lines.refusal(row, why) from None


class RecordedFields(msgspec.Struct, frozen=True):
    """What a trace recorded of its requests next to times and lengths; int64[rows].

    `cancel_ns` is how long after sending a request was cancelled, `cancel_tokens` after how many tokens where
    that time is not known; both 0 where it was not.
    """

    samplings: tuple[Mapping[str, float], ...]  # the different ones
    sampling: Int64  # the index of each row's; NO_SAMPLING where none is recorded
    cancel_ns: Int64
    cancel_tokens: Int64

    def reorder(self, order: Int64) -> RecordedFields:
        """Return the fields of rows in another order, of which `order` is each one's earlier index."""
        columns = (self.sampling, self.cancel_ns, self.cancel_tokens)
        return RecordedFields(self.samplings, *(column[order] for column in columns))

    def add_sampling(self, row: int, dialect: Dialect, fields: dict[str, Any]) -> dict[str, Any]:
        """Return `fields` with a row's recorded sampling, less what the API lacks; top_k 0 becomes -1."""
        number = int(self.sampling[row])
        found = {} if number == NO_SAMPLING else self.samplings[number]
        sampling = {
            name: (int(value) or _ALL_TOKENS) if name == _TOP_K else value  # a number of tokens
            for name in SENT
            if (value := found.get(name)) is not None and name not in dialect.lacks
        }
        return merge_fields(fields, dialect.make_fields(sampling, False, False)) if sampling else fields

    def list_features(self, rows: Int64) -> dict[str, int]:
        """Map each sampling field that these rows have to the index, in `rows`, of the first with it."""
        numbers, firsts = np.unique(self.sampling[rows], return_index=True)
        found: dict[str, int] = {}
        for number, first in zip(numbers.tolist(), firsts.tolist(), strict=True):
            names = () if number == NO_SAMPLING else self.samplings[number]
            found |= {name: min(first, found.get(name, first)) for name in names}
        return {name: found[name] for name in SENT if name in found}

    def make_cancellations(self, rows: Int64) -> Cancellations | None:
        """Make the cancellations of requests that are these rows; None if none of them was cancelled."""
        times_ns, tokens = self.cancel_ns[rows], self.cancel_tokens[rows]
        own = {
            index: CancelPoint(int(times_ns[index]), int(tokens[index]))
            for index in np.flatnonzero((times_ns > 0) | (tokens > 0)).tolist()
        }
        return make_cancellations(own, len(rows)) if own else None

    def lengthen(self, rows: Int64, lens: tuple[Int64, Int64], most: int) -> Int64:
        """Return the output tokens to ask for of rows of these lengths, int64[rows]: more if cancelled.

        A cancelled answer would have gone on: the median of the other answers is added to it, up to `most`
        tokens and to the length of the longest request, prompt and answer, of all.
        """
        inputs, outputs = lens
        cancelled = (self.cancel_ns[rows] > 0) | (self.cancel_tokens[rows] > 0)
        if not cancelled.any():
            return outputs
        more = int(np.median(outputs if cancelled.all() else outputs[~cancelled]))
        room = np.minimum((inputs + outputs).max() - inputs, most)
        return np.where(cancelled, np.maximum(np.minimum(outputs + more, room), outputs), outputs)


class Growth(msgspec.Struct, frozen=True):
    """The row with whose prompt each row's prompt begins, and for how many tokens; int64[rows]."""

    origins: Int64  # an earlier row, or below 0 a shared text
    kept: Int64  # no more than the origin has; 0 where nothing is known to be shared

    def find_origin(self, row: int) -> int:
        """Return a row's origin, below 0 a shared text; of a shared text -1.

        Rows from len(kept) on are the trace's again: the origin of one is of the same repetition.
        """
        if row < 0:
            return -1
        again, row = divmod(row, len(self.kept))
        origin = int(self.origins[row])
        return origin if origin < 0 else origin + again * len(self.kept)

    def reorder(self, order: Int64) -> Growth:
        """Return the growth of rows in another order; `order` is int64[rows], the earlier index of each."""
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        origins = self.origins[order]
        return Growth(np.where(origins < 0, origins, places[origins]), self.kept[order])


def find_growth(prompts: Iterable[tuple[Hashable, int, int | None, Hashable]]) -> Growth:
    """Make the growth of prompts, each given as (line, tokens, tokens kept, key of its shared text).

    On one line each begins with the kept tokens of the one before it. None: with all of it, or with none of
    it if that is longer. The first of a line begins with as many tokens of a text that lines of an equal key
    share; None: with none.
    """
    origins, kept, lens = list[int](), list[int](), list[int]()
    last: dict[Hashable, int] = {}  # of each line, its last row
    begun: dict[Hashable, int] = {}
    for row, (line, input_len, same, shared) in enumerate(prompts):
        before = last.get(line)
        if before is None:
            origin, most, same = begun.setdefault(shared, -1 - len(begun)), input_len, same or 0
        else:
            origin, most = before, lens[before]
            if same is None:
                same = most if input_len >= most else 0
        origins.append(origin)
        kept.append(min(same, most, input_len))
        lens.append(input_len)
        last[line] = row
    return Growth(np.array(origins, np.int64), np.array(kept, np.int64))
