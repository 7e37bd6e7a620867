"""Records travel whole through journals, join by plan index, and what cannot be a run's is refused."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.loops import loop_over
from loadgen.records import record
from loadgen.records.record import BOUNDS, LONGEST_NS, MESSAGE_COLUMNS, MOST_COUNT, Record, Records
from loadgen.transport.failure import Failure, FailureKind

TEXT = st.text(max_size=9) | st.sampled_from(["\ud800 half a pair", "\0", "end\0"])
NS = st.integers(-LONGEST_NS, LONGEST_NS)


def within(name: str) -> st.SearchStrategy[int]:
    return st.integers(*BOUNDS[name])


@st.composite
def a_record(draw: st.DrawFn, index: int) -> Record:
    messages = draw(st.integers(0, 4))
    scalars: dict[str, Any] = {name: draw(within(name)) for name in BOUNDS if name != "index"}
    if draw(st.booleans()):
        scalars |= {
            column.name: np.array([draw(st.integers(*column.bounds)) for _ in range(messages)], column.kind)
            for column in MESSAGE_COLUMNS
            if column.optional
        }
    return Record(
        index=index,
        **scalars,
        arrival_ns=np.array(draw(st.lists(NS, min_size=messages, max_size=messages)), np.int64),
        tokens=np.array(
            draw(st.lists(st.integers(0, MOST_COUNT), min_size=messages, max_size=messages)), np.int64
        ),
        finish_reason=draw(TEXT),
        failure=draw(st.none() | st.builds(Failure, st.sampled_from(FailureKind), TEXT)),
        text=draw(st.none() | TEXT),
    )


@st.composite
def some_records(draw: st.DrawFn) -> list[Record]:
    indices = draw(st.lists(st.integers(0, 50), unique=True, max_size=6))
    return [draw(a_record(index)) for index in indices]


def plain(records: Records) -> dict[str, Any]:
    """Everything of these records as values that `==` compares."""
    return {
        "columns": {name: column.tolist() for name, column in records.columns.items()},
        "start": records.start.tolist(),
        "messages": {name: column.tolist() for name, column in records.message_columns.items()},
        "dtypes": {str(column.dtype) for column in (*records.columns.values(), records.start)},
        "kinds": [column.dtype.name for column in records.message_columns.values()],
        "failures": records.failures,
        "finish_reasons": records.finish_reasons,
        "texts": records.texts,
    }


@given(some_records())
def test_a_frame_gives_the_records_again(rows: list[Record]) -> None:
    records = Records.from_records(rows)
    assert plain(Records.unpack(records.pack())) == plain(records)


@given(some_records())
def test_a_file_gives_the_records_again(tmp_path: Path, rows: list[Record]) -> None:
    records = Records.from_records(msgspec.structs.replace(row, text=None) for row in rows)
    records.save(tmp_path / "arrivals.npz")
    assert plain(Records.load(tmp_path / "arrivals.npz")) == plain(records)


DELAYED: dict[str, Any] = {
    "delay_us": np.array([0, 70_000], np.int32),
    "delay_cause": np.array([0, 3], np.int8),
}


def test_messages_have_delays_or_the_run_has_none() -> None:
    """A request that lacks them has zeros if another one has them, in one part and over parts."""
    rows = [
        Record(i, 0, 1, 1, 9, arrival_ns=np.array([5, 9]), tokens=np.ones(2, np.int64), **of)
        for i, of in enumerate(({}, DELAYED, {}))
    ]
    whole = Records.from_records(rows)
    assert whole.delay_us.tolist() == [0, 0, 0, 70_000, 0, 0]
    assert whole.delay_cause.tolist() == [0, 0, 0, 3, 0, 0]
    assert plain(Records.join([Records.from_records([row]) for row in rows])) == plain(whole)
    assert [len(block.delay_us) for block in whole.blocks()] == [6]
    without = whole.select_rows(np.array([True, False, True]))
    assert (without.delay_us.tolist(), without.tokens.tolist()) == ([0] * 4, [1] * 4)
    plain_rows = Records.from_records(rows[:1])
    assert (len(plain_rows.delay_us), len(plain_rows.select_rows(np.array([False])).delay_cause)) == (0, 0)


@given(some_records(), st.data())
def test_parts_in_any_order_are_the_run(rows: list[Record], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    bounds = [0, *cuts, len(rows)]
    parts = [Records.from_records(rows[a:b]) for a, b in pairwise(bounds)]
    assert plain(Records.join(parts)) == plain(Records.from_records(rows))
    assert plain(Records.join(iter(parts))) == plain(Records.from_records(rows))


@given(some_records(), st.integers(1, 3))
def test_a_long_run_is_joined_in_a_file_of_no_name(tmp_path: Path, rows: list[Record], size: int) -> None:
    parts = [Records.from_records(rows[at : at + size]) for at in range(0, len(rows), size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "SPILLED", 0)
        found = Records.join(parts, spill=tmp_path)
        assert list(tmp_path.iterdir()) == []
    assert plain(found) == plain(Records.from_records(rows))
    assert not len(found.tokens) or not found.tokens.flags.writeable


class Parts:
    """Parts that are made anew each time, and counted while they live."""

    def __init__(self) -> None:
        self.most = 0

    def __iter__(self) -> Iterator[Records]:
        living: list[weakref.ref[Any]] = []
        for i in range(30):
            row = Record(29 - i, 0, 1, 1, 9, arrival_ns=np.arange(5) + i, tokens=np.ones(5, np.int64))
            part = Records.unpack(Records.from_records([row]).pack())
            living.append(weakref.ref(part.arrival_ns))
            self.most = max(self.most, sum(one() is not None for one in living))
            yield part


def test_parts_that_can_be_gone_through_again_are_not_kept(tmp_path: Path) -> None:
    parts = Parts()
    assert Records.join(parts, spill=tmp_path).arrival_ns[:6].tolist() == [29, 30, 31, 32, 33, 28]
    assert parts.most <= 3


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "SPILLED", 0)
    monkeypatch.setattr("os.pwrite", full)
    before = len(os.listdir("/proc/self/fd"))
    row = Record(0, 0, 1, 1, 9, arrival_ns=np.arange(5), tokens=np.ones(5, np.int64))
    with pytest.raises(OSError, match="No space"):
        Records.join([Records.from_records([row])], spill=tmp_path)
    assert (list(tmp_path.iterdir()), len(os.listdir("/proc/self/fd"))) == ([], before)


def test_a_request_cannot_be_in_two_parts() -> None:
    part = Records.from_records([Record(3, 0, 1, 1, 2)])
    with pytest.raises(ValueError, match="the same request"):
        Records.join([part, part])


def frame() -> list[Any]:
    rows = [Record(i, 0, 1, 1, 9, arrival_ns=np.array([5, 9]), tokens=np.array([1, 300])) for i in range(2)]
    values: list[Any] = msgspec.msgpack.decode(Records.from_records(rows).pack())
    return values


def changed(place: int, change: Callable[[Any], Any]) -> bytes:
    values = frame()
    values[place] = change(values[place])
    return msgspec.msgpack.encode(values)


def int64(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


@loop_over(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1", id="no msgpack"),
        pytest.param(b"\x91" * 5000, id="deep"),
        pytest.param(msgspec.msgpack.encode(frame())[:-1], id="cut"),
        pytest.param(msgspec.msgpack.encode(frame()[:3]), id="too few"),
        pytest.param(msgspec.msgpack.encode({"a": 1}), id="a map"),
        pytest.param(changed(0, lambda data: data[:-8]), id="half a column"),
        pytest.param(changed(0, lambda data: data[: 19 * 16]), id="columns too few"),
        pytest.param(changed(0, lambda data: data + data[:16]), id="a column of the future"),
        pytest.param(changed(0, lambda data: data[:-3]), id="half a number"),
        pytest.param(changed(0, lambda data: int64(1, 0) + data[16:]), id="out of order"),
        pytest.param(changed(0, lambda data: int64(1, 1) + data[16:]), id="a request twice"),
        pytest.param(changed(0, lambda data: int64(-1, 0) + data[16:]), id="before the plan"),
        pytest.param(changed(1, lambda data: int64(2)), id="counts of fewer"),
        pytest.param(changed(1, lambda data: int64(5, -1)), id="a negative count"),
        pytest.param(changed(1, lambda data: int64(2**62, 2**62)), id="counts that wrap"),
        pytest.param(changed(1, lambda data: int64(2, 1)), id="messages nobody's"),
        pytest.param(changed(2, lambda data: int64(2**62, 1, 2, 3)), id="an arrival out of bounds"),
        pytest.param(changed(2, lambda data: data[:8]), id="fewer arrivals"),
        pytest.param(changed(3, lambda data: data[:5]), id="no width"),
        pytest.param(changed(3, lambda data: int64(1, 1, 1, 2**31)), id="tokens out of bounds"),
        pytest.param(changed(3, lambda data: int64(1, 1, 1, -1)), id="negative tokens"),
        pytest.param(changed(4, lambda data: [None]), id="fewer failures"),
        pytest.param(changed(4, lambda data: [None, ["odd", b""]]), id="no such failure"),
        pytest.param(changed(4, lambda data: [None, ["stall", b"\xff"]]), id="no text"),
        pytest.param(changed(5, lambda data: [b"stop"]), id="fewer reasons"),
        pytest.param(changed(6, lambda data: [None, 5]), id="a number for a text"),
        pytest.param(changed(7, lambda data: b"\0"), id="fewer delays"),
        pytest.param(changed(7, lambda data: int64(0, 0, 0, 2**31)), id="a delay out of bounds"),
        pytest.param(changed(8, lambda data: b"\0\0\0\4"), id="no such cause"),
    ],
)
def test_what_is_no_frame_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        Records.unpack(data)


@given(st.data())
def test_a_frame_with_any_bytes_changed_is_refused_or_read(data: st.DataObject) -> None:
    raw = bytearray(Records.from_records([data.draw(a_record(0)), data.draw(a_record(1))]).pack())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        records = Records.unpack(bytes(raw))
    except ValueError:
        return
    assert plain(Records.unpack(records.pack())) == plain(records)
