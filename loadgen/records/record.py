"""Record: one request decoded; Records: all of a run as checked columns, the only thing metrics read."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from loadgen.base.arrays import (
    SPILLED,
    TEXT_CODEC,
    Bool,
    Int64,
    Ints,
    Words,
    check_rows,
    check_start,
    is_within,
    join_messages,
    narrow_counts,
    pick_words,
    read_columns,
    release_pages,
    unpack_words,
    widen_counts,
    write_columns,
)
from loadgen.base.files import write_whole
from loadgen.transport.failure import CUT_OFF, Failure, FailureKind

UNKNOWN = -1
MOST_COUNT = 2**31 - 1  # of tokens, reads, requests: so that no sum of a column wraps
LONGEST_NS = 2**61  # 73 years, either way: neither a difference of two times nor of two differences wraps
BLOCK = 1 << 20  # messages that are worked on at once
_NONE = np.zeros(0, np.int64)
_NO_DELAYS, _NO_CAUSES = np.zeros(0, np.int32), np.zeros(0, np.int8)
# `delay_cause` names with these what delayed a message.
NO_CAUSE, PATH, REORDERING, RETRANSMISSION = range(4)
_ROWS = 1 << 14  # requests that are checked together


class Record(msgspec.Struct):
    """One decoded request; times are CLOCK_MONOTONIC nanoseconds, counts -1 where unknown.

    `arrival_ns` and `tokens` are int64[messages]: the messages that carried tokens, in order,
    and how many each carried. `delay_us` (int32) and `delay_cause` (int8) are as long, or empty where nothing
    is known of the path. A failed request keeps what arrived before it failed.
    """

    index: int  # its place in the plan
    slot: int  # its connection
    intended_ns: int  # when it was due
    sent_ns: int  # right before its first byte went to the kernel
    end_ns: int  # last byte of the response
    connect_ns: int = 0  # time to open the connection, if it had to
    resends: int = 0  # how often it was sent again: the server had closed the idle connection
    first_byte_ns: int = 0  # of the response
    arrival_ns: Int64 = _NONE
    tokens: Int64 = _NONE
    delay_us: Ints = _NO_DELAYS
    delay_cause: Ints = _NO_CAUSES
    planned_input: int = UNKNOWN  # the plan's prompt tokens
    planned_output: int = UNKNOWN  # the answer's length that was requested
    input_tokens: int = UNKNOWN  # usage.prompt_tokens
    output_tokens: int = UNKNOWN  # usage.completion_tokens, else `text_tokens`, else the messages counted
    cached_tokens: int = UNKNOWN  # usage.prompt_tokens_details.cached_tokens
    server_queue_ns: int = UNKNOWN  # the server's own: queued → scheduled
    server_ttft_ns: int = UNKNOWN  # the server's own: scheduled → first token, so without the queue
    http_status: int = UNKNOWN  # of the response
    text_tokens: int = UNKNOWN  # of the text, by a tokenizer: counted after the run, where there is no usage
    visible_ns: int = UNKNOWN  # arrival of the first message with text of the answer itself, not reasoning
    server_prompt_tokens: int = UNKNOWN  # llama.cpp's `timings`: prompt tokens computed
    server_cached_tokens: int = UNKNOWN  # prompt tokens that the server found in its cache
    server_output_tokens: int = UNKNOWN  # tokens that the server generated
    server_prefill_ns: int = UNKNOWN  # the server's own: scheduled, or taken by a slot → first token
    server_decode_ns: int = UNKNOWN  # the server's own: first token → last
    text_ns: int = UNKNOWN  # arrival of the first message with text, of reasoning too
    hidden_tokens: int = UNKNOWN  # usage.total_tokens beyond prompt and completion
    thought_tokens: int = UNKNOWN  # usage's reasoning_tokens
    word_gaps: int = UNKNOWN  # between words of the text, without the first message's; where it was examined
    inner_gaps: int = UNKNOWN  # of these, within a message
    server_drafts: int = UNKNOWN  # the server's own: steps that verified draft tokens (vLLM's `metrics`)
    server_accepted_tokens: int = UNKNOWN  # and draft tokens accepted (of llama.cpp's `timings` too)
    image_tokens: int = UNKNOWN  # of the prompt's, those of its images: usage's details
    rtt_ns: int = UNKNOWN  # the connection's least round trip, by the kernel
    request_delay_ns: int = UNKNOWN  # until the segment of the request that got through was sent
    server_first_token_ns: int = UNKNOWN  # the server's own: its arrival there → first token
    usage: bool = False  # output_tokens is the server's own count
    exact_tokens: bool = True  # tokens per message are known, not spread evenly
    shared_reads: int = 0  # token messages coalesced with an earlier one in a read
    shared_lag_ns: int = 0  # read lag (user-space minus kernel timestamp), summed over these messages
    reads: int = 0  # of its response by the client
    unstamped_reads: int = 0  # reads without a kernel timestamp that can be true
    impossible_stamps: int = 0  # reads whose kernel timestamp cannot be true: the clock was set
    out_of_order: int = UNKNOWN  # segments that came before an earlier one, by the kernel's count
    retransmitted: int = UNKNOWN  # segments of the request that were sent again, by the kernel's count
    lag_sum_ns: int = 0  # read lag, summed over the reads
    lag_max_ns: int = 0  # the longest
    finish_reason: str = ""
    failure: Failure | None = None
    text: str | None = None  # kept only when asked for, and until its tokens are counted


# A column and the bounds of its values. A kernel's timestamp follows a stepped clock: of a board that had no
# time yet, by decades and to below 0.
_Count = Annotated[Int64, (0, MOST_COUNT)]
_MaybeCount = Annotated[Int64, (-1, MOST_COUNT)]
_Flag = Annotated[Int64, (0, 1)]
_Time = Annotated[Int64, (0, LONGEST_NS)]
_MaybeTime = Annotated[Int64, (-1, LONGEST_NS)]
_SignedTime = Annotated[Int64, (-LONGEST_NS, LONGEST_NS)]


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """The scalars of several Records, int64[requests] each; journals hold them in this order.

    Another set of columns needs another number in `journal.MAGIC`.
    """

    index: _Time  # the request's number in the plan
    slot: _Count
    intended_ns: _Time
    sent_ns: _Time
    end_ns: _SignedTime
    connect_ns: _SignedTime
    resends: _Count
    first_byte_ns: _SignedTime
    planned_input: _MaybeCount
    planned_output: _MaybeCount
    input_tokens: _MaybeCount
    output_tokens: _MaybeCount
    cached_tokens: _MaybeCount
    usage: _Flag
    exact_tokens: _Flag
    shared_reads: _Count
    shared_lag_ns: _SignedTime
    reads: _Count
    unstamped_reads: _Count
    lag_sum_ns: _SignedTime
    lag_max_ns: _SignedTime
    server_queue_ns: _MaybeTime
    server_ttft_ns: _MaybeTime
    impossible_stamps: _MaybeCount
    http_status: _MaybeCount
    text_tokens: _MaybeCount
    visible_ns: _SignedTime  # -1: none
    server_prompt_tokens: _MaybeCount
    server_cached_tokens: _MaybeCount
    server_output_tokens: _MaybeCount
    server_prefill_ns: _MaybeTime
    server_decode_ns: _MaybeTime
    out_of_order: _MaybeCount
    retransmitted: _MaybeCount
    text_ns: _SignedTime  # -1: none
    hidden_tokens: _MaybeCount
    thought_tokens: _MaybeCount
    word_gaps: _MaybeCount
    inner_gaps: _MaybeCount
    server_drafts: _MaybeCount
    server_accepted_tokens: _MaybeCount
    image_tokens: _MaybeCount
    rtt_ns: _MaybeTime
    request_delay_ns: _MaybeTime
    server_first_token_ns: _MaybeTime

    def __len__(self) -> int:
        return len(self.index)

    @property
    def columns(self) -> dict[str, Int64]:
        """Each column by its name, in the stored order."""
        return {name: getattr(self, name) for name in BOUNDS}

    @property
    def sent(self) -> Bool:
        """Marks the requests that were sent, bool[requests]."""
        return self.sent_ns > 0

    def select(self, mask: Bool) -> Columns:
        """Select requests by a mask, bool[requests], without messages; self if all are selected."""
        return self if mask.all() else Columns(**{name: rows[mask] for name, rows in self.columns.items()})


BOUNDS: dict[str, tuple[int, int]] = {
    name: kind.__metadata__[0] for name, kind in get_type_hints(Columns, include_extras=True).items()
}
_LOWEST = np.array([low for low, _ in BOUNDS.values()], np.int64)[:, None]
_HIGHEST = np.array([high for _, high in BOUNDS.values()], np.int64)[:, None]


class MessageColumn(NamedTuple):
    """A column with a value for each message of a run; an optional one has all or none."""

    name: str
    kind: type[np.signedinteger[Any]]
    bounds: tuple[int, int]
    optional: bool = False


MESSAGE_COLUMNS = (
    MessageColumn("arrival_ns", np.int64, BOUNDS["end_ns"]),
    MessageColumn("tokens", np.int64, BOUNDS["reads"]),
    MessageColumn("delay_us", np.int32, (0, MOST_COUNT), optional=True),  # beyond the connection's quickest
    MessageColumn("delay_cause", np.int8, (NO_CAUSE, RETRANSMISSION), optional=True),
)
_OPTIONAL = tuple(column.name for column in MESSAGE_COLUMNS if column.optional)
_WORDS = ("failure_kind", "failure_detail", "finish_reason")
_STORED = (*BOUNDS, "start", *(column.name for column in MESSAGE_COLUMNS), *_WORDS, "words", "word_start")


class MessageBlock(msgspec.Struct, frozen=True):
    """The messages of the requests from `first` up to `last`, not included."""

    first: int
    last: int
    start: Int64  # of the block's own arrays, int64[last - first + 1]
    arrival_ns: Int64
    tokens: Int64
    delay_us: Ints
    delay_cause: Ints

    @property
    def message_columns(self) -> dict[str, NDArray[Any]]:
        """Each column of MESSAGE_COLUMNS by its name; an optional one that the run lacks is empty."""
        return {column.name: getattr(self, column.name) for column in MESSAGE_COLUMNS}


class Records(Columns, frozen=True, kw_only=True, dict=True):
    """Every request of a run, sorted by plan index, as columns: each scalar of Record is int64[requests].

    The messages of request i are `arrival_ns[start[i]:start[i + 1]]` and `tokens[...]`, int64[all messages].
    `delay_us[...]`, int32, is how much longer its last byte was on the way than the connection's quickest, 0
    below the 1 ms grain of TCP's timestamps, and `delay_cause[...]`, int8, what held it up: NO_CAUSE, PATH,
    REORDERING or RETRANSMISSION. Both are empty where no request of the run has them.
    """

    start: Int64
    arrival_ns: Int64
    tokens: Int64
    delay_us: Ints = _NO_DELAYS
    delay_cause: Ints = _NO_CAUSES
    failures: list[Failure | None]
    finish_reasons: list[str]
    texts: list[str | None]

    @cached_property
    def ok(self) -> Bool:
        """Marks the requests that succeeded, bool[requests], read-only."""
        marks = np.fromiter((f is None for f in self.failures), np.bool_, len(self))
        marks.flags.writeable = False  # a report asks for them dozens of times
        return marks

    @property
    def message_columns(self) -> dict[str, NDArray[Any]]:
        """Each column of MESSAGE_COLUMNS by its name; an optional one that the run lacks is empty."""
        return {column.name: getattr(self, column.name) for column in MESSAGE_COLUMNS}

    @property
    def cancelled(self) -> Bool:
        """Marks the requests that the client cancelled as planned, bool[requests]: neither ok nor failed."""
        return self.mark_kinds({FailureKind.USER_CANCELLED})

    @property
    def cut_off(self) -> Bool:
        """Marks the requests that the client cut off, bool[requests]: not failures of the server."""
        return self.mark_kinds(CUT_OFF)

    def mark_kinds(self, kinds: Container[FailureKind]) -> Bool:
        """Mark the requests that ended in one of these ways, bool[requests]."""
        marks, rows = np.zeros(len(self), np.bool_), np.flatnonzero(~self.ok)
        marks[rows] = [(f := self.failures[row]) is not None and f.kind in kinds for row in rows.tolist()]
        return marks

    @property
    def failed(self) -> list[Failure]:
        """The failures in plan order, also of requests cut off, but not of those cancelled as planned."""
        return [f for f in self.failures if f is not None and f.kind is not FailureKind.USER_CANCELLED]

    @property
    def in_one_block(self) -> bool:
        """Whether all messages fit into one block."""
        return len(self.arrival_ns) <= BLOCK

    def spans(self) -> list[tuple[int, int]]:
        """List [first, last) requests of each block: BLOCK messages at most, but all of a single request."""
        if self.in_one_block:
            return [(0, len(self))]
        spans, first = [], 0
        while first < len(self):
            last = int(self.start.searchsorted(self.start[first] + BLOCK, side="right")) - 1
            spans.append((first, max(last, first + 1)))
            first = spans[-1][1]
        return spans

    @property
    def is_counted(self) -> bool:
        """Whether no text is kept of an answer whose tokens the server did not count."""
        return all(counted or text is None for counted, text in zip(self.usage, self.texts, strict=True))

    def blocks(self, spans: Iterable[tuple[int, int]] | None = None) -> Iterator[MessageBlock]:
        """Yield the messages block by block, of all or some `spans()`; mapped pages are freed after each."""
        for first, last in self.spans() if spans is None else spans:
            begin, end = self.start[first], self.start[last]
            yield MessageBlock(
                first=first,
                last=last,
                start=self.start[first : last + 1] - begin,
                **{name: column[begin:end] for name, column in self.message_columns.items()},
            )
            release_pages(*self.message_columns.values())

    def sum_message_tokens(self) -> Int64:
        """Count the tokens that the messages of each request carried, int64[requests]."""
        carried = [_NONE]
        for block in self.blocks():
            before = _find_starts(block.tokens)
            carried.append(before[block.start[1:]] - before[block.start[:-1]])
        return np.concatenate(carried)

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> Records:
        """Make columns of single records, sorted by plan index."""
        rows = sorted(records, key=lambda record: record.index)
        counts = np.fromiter((len(r.arrival_ns) for r in rows), np.int64, len(rows))
        return cls(
            **{name: np.fromiter(map(attrgetter(name), rows), np.int64, len(rows)) for name in BOUNDS},
            start=_find_starts(counts),
            **{column.name: _join_rows(rows, column) for column in MESSAGE_COLUMNS},
            failures=[r.failure for r in rows],
            finish_reasons=[r.finish_reason for r in rows],
            texts=[r.text for r in rows],
        )

    @classmethod
    def join(cls, parts: Iterable[Records], spill: Path | None = None) -> Records:
        """Join parts of a run by plan index; raises ValueError if two hold the same request.

        With `spill`, the messages of a long run go to files without a name in that directory, and are mapped.
        Parts that can be gone through twice are held one at a time. Raises OSError where the disk is full.
        """
        if iter(parts) is parts:
            parts = list(parts)
        tables, counts, optional = [np.zeros((len(BOUNDS), 0), np.int64)], [_NONE], set[str]()
        failures, finish_reasons, texts = list[Failure | None](), list[str](), list[str | None]()
        for part in parts:
            tables.append(np.stack([*part.columns.values()]))
            counts.append(np.diff(part.start))
            failures += part.failures
            finish_reasons += map(sys.intern, part.finish_reasons)
            texts += part.texts
            optional.update(name for name in _OPTIONAL if len(getattr(part, name)))
        order = np.argsort(np.concatenate([table[0] for table in tables]), kind="stable")
        # One column after another: all at once would double the memory.
        columns = {
            name: np.concatenate([table[at] for table in tables])[order] for at, name in enumerate(BOUNDS)
        }
        if (np.diff(columns["index"]) == 0).any():
            raise ValueError("two parts of a run hold the same request")
        start = _find_starts(np.concatenate(counts)[order])
        place = np.empty(len(order), np.int64)  # where the messages of each request go
        place[order] = start[:-1]
        messages = join_messages(
            ((part.start, part.message_columns) for part in parts),
            {c.name: c.kind for c in MESSAGE_COLUMNS if not c.optional or c.name in optional},
            place,
            int(start[-1]),
            spill if start[-1] > SPILLED else None,
        )
        where = order.tolist()
        return cls(
            **columns,
            start=start,
            **messages,
            failures=[failures[i] for i in where],
            finish_reasons=[finish_reasons[i] for i in where],
            texts=[texts[i] for i in where],
        )

    @classmethod
    def join_in_turn(cls, parts: Iterable[Records]) -> Records:
        """Join the records of several runs as if they were one's, each numbered on from the one before."""
        numbered, first = list[Records](), 0
        for part in parts:
            numbered.append(replace(part, index=part.index + first))
            first += int(part.index.max(initial=-1)) + 1
        return numbered[0] if len(numbered) == 1 else cls.join(numbered)

    def select_rows(self, mask: Bool) -> Records:
        """Select records by a mask, bool[requests], their messages copied; self if all are selected."""
        if mask.all():
            return self
        rows, counts = np.flatnonzero(mask).tolist(), np.diff(self.start)
        messages = np.repeat(mask, counts)
        return Records(
            **{name: column[mask] for name, column in self.columns.items()},
            start=_find_starts(counts[mask]),
            **{name: each[messages] if len(each) else each for name, each in self.message_columns.items()},
            failures=[self.failures[row] for row in rows],
            finish_reasons=[self.finish_reasons[row] for row in rows],
            texts=[self.texts[row] for row in rows],
        )

    def pack(self) -> bytes:
        """Serialize these records, texts too, as a frame of the journal, which `unpack` reads."""
        return _ENCODER.encode(
            _Frame(
                scalars=np.stack([*self.columns.values()]).astype("<i8").tobytes(),
                counts=np.diff(self.start).astype("<i8").tobytes(),
                arrival_ns=self.arrival_ns.astype("<i8", copy=False).tobytes(),
                tokens=narrow_counts(self.tokens),
                failures=[(f.kind.value, f.detail.encode(*TEXT_CODEC)) if f else None for f in self.failures],
                finish_reasons=[reason.encode(*TEXT_CODEC) for reason in self.finish_reasons],
                texts=[None if text is None else text.encode(*TEXT_CODEC) for text in self.texts],
                **{name: narrow_counts(getattr(self, name)) for name in _OPTIONAL},
            )
        )

    @classmethod
    def unpack(cls, data: bytes) -> Records:
        """Deserialize a frame of the journal; raises ValueError if it is damaged or impossible."""
        try:
            frame = _DECODER.decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"a frame is damaged: {error}") from None
        requests = len(frame.failures)
        if not len(frame.finish_reasons) == len(frame.texts) == requests:
            raise ValueError("a frame is damaged: its lists differ in length")
        arrival_ns = np.frombuffer(frame.arrival_ns, "<i8").astype(np.int64)
        counts = np.frombuffer(frame.counts, "<i8").astype(np.int64)
        if len(counts) and not (counts.min() >= 0 and counts.max() <= len(arrival_ns)):
            raise ValueError("a frame is damaged: it counts chunks that it does not hold")
        if len(frame.scalars) != 8 * requests * len(BOUNDS):
            raise ValueError("a frame is damaged, or of another loadgen: its columns are not those of a run")
        table = np.frombuffer(frame.scalars, "<i8").astype(np.int64).reshape(len(BOUNDS), requests)
        records = cls(
            **dict(zip(BOUNDS, table, strict=True)),
            start=_find_starts(counts),
            arrival_ns=arrival_ns,
            tokens=widen_counts(frame.tokens, len(arrival_ns)),
            **{
                c.name: widen_counts(data, len(arrival_ns) if data else 0, c.kind)
                for c in MESSAGE_COLUMNS
                if c.optional
                for data in (getattr(frame, c.name),)
            },
            failures=[
                Failure(FailureKind(f[0]), f[1].decode(*TEXT_CODEC)) if f else None for f in frame.failures
            ],
            finish_reasons=[reason.decode(*TEXT_CODEC) for reason in frame.finish_reasons],
            texts=[None if text is None else text.decode(*TEXT_CODEC) for text in frame.texts],
        )
        check_columns(records.columns, records.start, records.message_columns)
        return records

    def save(self, path: Path) -> None:
        """Write every column but the texts to an uncompressed `.npz`, whole or not at all; raises OSError."""
        words, lacking = Words(), [name for name in _OPTIONAL if not len(getattr(self, name))]
        stored: dict[str, NDArray[Any]] = dict(
            self.columns,
            start=self.start,
            **{name: each for name, each in self.message_columns.items() if name not in lacking},
            failure_kind=words.number_words([f.kind.value if f else "" for f in self.failures]),
            failure_detail=words.number_words([f.detail if f else "" for f in self.failures]),
            finish_reason=words.number_words(self.finish_reasons),
        )
        stored["words"], stored["word_start"] = words.pack()
        write_whole(path, lambda file: write_columns(file, stored))

    @classmethod
    def load(cls, path: Path) -> Records:
        """Read what `save` wrote, without texts; long columns stay in the file and are read-only.

        Raises OSError where it cannot be read, ValueError where it is not such a file or cannot be a run's.
        """
        stored = read_columns(path, _STORED)
        if missing := [name for name in _STORED if name not in {*stored, *_OPTIONAL}]:
            raise ValueError(f"column {missing[0]} is missing")
        requests = len(stored["index"])
        scalars = {name: stored[name].astype(np.int64, copy=False) for name in BOUNDS}
        messages = {c.name: stored.get(c.name, np.zeros(0, c.kind)) for c in MESSAGE_COLUMNS}
        check_columns(scalars, stored["start"], messages)
        check_rows({name: stored[name] for name in _WORDS})
        if wrong := [name for name in _WORDS if len(stored[name]) != requests]:
            raise ValueError(f"column {wrong[0]} has {len(stored[wrong[0]])} values for {requests} requests")
        words = unpack_words(stored["words"], stored["word_start"])
        kinds, details, reasons = (pick_words(words, stored[name]) for name in _WORDS)
        failures = zip(kinds, details, strict=True)
        return cls(
            **scalars,
            start=stored["start"],
            **messages,
            failures=[Failure(FailureKind(kind), why) if kind else None for kind, why in failures],
            finish_reasons=reasons,
            texts=[None] * requests,
        )


class _Frame(msgspec.Struct, array_like=True, frozen=True):
    """Records as one serialized message: columns of little-endian int64; counts in the least width."""

    scalars: bytes  # int64[columns, requests], in the order of BOUNDS
    counts: bytes  # messages of each request
    arrival_ns: bytes
    tokens: bytes  # unsigned; as wide as their number of bytes gives
    failures: list[tuple[str, bytes] | None]
    finish_reasons: list[bytes]
    texts: list[bytes | None]
    delay_us: bytes = b""  # as `tokens`; empty where the part has none
    delay_cause: bytes = b""


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Frame)


def _find_starts(counts: Int64) -> Int64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _join_rows(rows: list[Record], column: MessageColumn) -> NDArray[Any]:
    """Concatenate a message column of single records; 0 for those that lack it, empty if all do."""
    values = [getattr(row, column.name) for row in rows]
    if column.optional and any(map(len, values)):
        values = [v if len(v) else np.zeros(len(row.arrival_ns)) for v, row in zip(values, rows, strict=True)]
    return np.concatenate([np.zeros(0, column.kind), *values], dtype=column.kind, casting="unsafe")


def check_columns(columns: Mapping[str, Int64], start: Int64, messages: Mapping[str, NDArray[Any]]) -> None:
    """Raise ValueError unless these columns can be a run's: of their types, equally long, within bounds."""
    kinds = {column.name: column.kind for column in MESSAGE_COLUMNS}
    check_rows({name: columns[name] for name in BOUNDS})
    check_rows({name: messages[name] for name in kinds}, kinds)
    requests = len(columns["index"])
    for name in BOUNDS:
        if len(columns[name]) != requests:
            raise ValueError(f"column {name} has {len(columns[name])} values for {requests} requests")
    for first in range(0, max(requests, 1), _ROWS):
        table = np.stack([columns[name][first : first + _ROWS] for name in BOUNDS])
        if (beyond := ((table < _LOWEST) | (table > _HIGHEST)).any(axis=1)).any():
            name = list(BOUNDS)[int(beyond.argmax())]
            raise ValueError(f"column {name} holds values beyond {BOUNDS[name][0]} to {BOUNDS[name][1]}")
    if (np.diff(columns["index"]) <= 0).any():
        raise ValueError("column index is not in order, or names a request twice")
    arrivals = len(messages["arrival_ns"])
    for name, _, _, optional in MESSAGE_COLUMNS:
        if len(messages[name]) not in ((0, arrivals) if optional else (arrivals,)):
            raise ValueError(f"column {name} has {len(messages[name])} values for {arrivals} arrivals")
    if len({len(messages[name]) for name in _OPTIONAL}) > 1:
        raise ValueError(f"of the columns {' and '.join(_OPTIONAL)} one is missing")
    check_start(start, requests, arrivals)
    for name, _, (low, high), _ in MESSAGE_COLUMNS:
        if not is_within(messages[name], low, high):
            raise ValueError(f"column {name} holds values beyond {low} to {high}")
