"""Deadlines, stalls and the clock's offset, on canned bytes and virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from builders.loops import loop_over, read_tables
from builders.required import require
from fakes.scripted_server import chunk, job_of, target_of
from fakes.virtual_time import VirtualTime
from loadgen.base.clock import WallOffset
from loadgen.base.errors import UsageError
from loadgen.base.urls import check_headers, check_path, check_request_id_prefix
from loadgen.run.command.options import parse
from loadgen.transport.deadlines import (
    Deadlines,
    Stream,
    is_closed_while_idle,
)
from loadgen.transport.failure import FailureKind
from loadgen.transport.sending.job import Limits
from loadgen.wire.http1 import LONGEST_HEAD_BYTES, Heads
from loadgen.wire.openai import Completions

TABLES = read_tables("deadlines")

SECOND = 1_000_000_000
MS = 1_000_000
UNKNOWN = chunk(b'data: {"choices":[],"thinking":"x"}\n\n')


@dataclass
class Made(Stream):
    """A stream of canned reads."""

    reads: list[bytes] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)

    def list_since(self, count: int) -> list[bytes]:
        return self.reads[count:]

    def seen_at(self, read: int) -> int:
        return self.seen[read]

    def get(self, data: bytes, at_ns: int) -> None:
        self.reads.append(data)
        self.seen.append(at_ns)


@dataclass
class Counted:
    """The dialect's look for a token, and how many bytes it was shown."""

    seen: Callable[[bytes], bool] = Completions().has_token
    shown: int = 0

    def __call__(self, tail: bytes) -> bool:
        self.shown += len(tail)
        return self.seen(tail)


@pytest.mark.parametrize("limit_s", [3, 300])
def test_a_stream_of_pings_is_looked_at_in_proportion_to_its_bytes(limit_s: int) -> None:
    """Events of a field that is not known, 100 a second, for as long as the stall timeout."""
    stream, seen = Made(sent_ns=SECOND, progress_ns=SECOND), Counted()
    limits = Limits(stall_timeout_ns=limit_s * SECOND)
    deadlines = Deadlines(
        job_of(target_of("127.0.0.1", 1), 1, 1, limits=limits, token_seen=seen), lambda: [stream]
    )
    now_ns, stalled = SECOND, False
    while not stalled:
        now_ns += 10 * MS
        stream.get(UNKNOWN, now_ns)
        if now_ns % (100 * MS) == 0:
            stalled = deadlines.find_stall(stream, now_ns) is not None
    assert limit_s * SECOND < now_ns - SECOND <= limit_s * SECOND + 200 * MS
    total = sum(map(len, stream.reads))
    assert total <= seen.shown <= 2.5 * total


@pytest.mark.parametrize(
    ("late_ns", "put_off", "stopped_ns"),
    [(-50 * MS, False, 0), (900 * MS, False, 900 * MS), (10 * SECOND, True, 10 * SECOND)],
)
def test_time_in_which_this_process_was_stopped_counts_against_nobody(
    late_ns: int, put_off: bool, stopped_ns: int
) -> None:
    stream = Made(sent_ns=SECOND, progress_ns=SECOND)
    limits = Limits(request_timeout_ns=4 * SECOND, stall_timeout_ns=3 * SECOND)
    job = job_of(target_of("127.0.0.1", 1), 1, 1, limits=limits, token_seen=Completions().has_token)
    deadlines = Deadlines(job, lambda: [stream])
    now_ns = 3 * SECOND + max(late_ns, 0)
    assert deadlines.put_off(late_ns, now_ns) is put_off
    assert deadlines.stopped_ns == stopped_ns
    assert deadlines.find_timeout(stream, now_ns) is None
    assert deadlines.find_stall(stream, now_ns + 100 * MS) is None
    later_ns = now_ns + 4 * SECOND
    timed_out, stalled = deadlines.find_timeout(stream, later_ns), deadlines.find_stall(stream, later_ns)
    assert require(timed_out).kind is FailureKind.TIMEOUT
    assert require(stalled).kind is FailureKind.STALL


@pytest.mark.parametrize(
    ("after_ns", "excused_ns", "idle"),
    [(0, 0, True), (100 * MS, 0, True), (101 * MS, 0, False), (5 * SECOND, 5 * SECOND, True)],
)
def test_only_what_is_lost_at_once_met_the_close_of_an_idle_connection(
    after_ns: int, excused_ns: int, idle: bool
) -> None:
    stream = Made(sent_ns=SECOND, excused_ns=excused_ns)
    assert is_closed_while_idle(stream, SECOND + after_ns) is idle


# The clock's offset.


def test_every_step_of_the_wall_clock_is_kept() -> None:
    virtual = VirtualTime(ns=10, wall_offset_ns=100 * SECOND)
    wall = WallOffset(virtual)
    for virtual.ns, virtual.wall_offset_ns in (
        (20, 102 * SECOND),
        (30, 102 * SECOND),
        (40, 100 * SECOND + 5),
    ):
        wall.measure()
    assert (wall.first_ns, wall.now_ns, wall.step_ns) == (100 * SECOND, 100 * SECOND + 5, 2 * SECOND)
    assert wall.list_replaced_ns(10) == (100 * SECOND, 102 * SECOND)
    assert wall.list_replaced_ns(30) == (102 * SECOND,)
    assert wall.list_replaced_ns(50) == ()


def test_a_step_is_noticed_when_it_is_looked_for() -> None:
    virtual = VirtualTime()
    wall = WallOffset(virtual)
    wall.check()
    assert wall.list_replaced_ns(0) == ()
    virtual.wall_offset_ns -= 3 * SECOND
    wall.check()
    assert wall.list_replaced_ns(0) == (wall.first_ns,)
    assert wall.now_ns == virtual.wall_offset_ns


# Heads.


@pytest.mark.parametrize("size", [1, 7, 25, 4096])
def test_heads_of_1xx_without_end_are_bounded_together(size: int) -> None:
    heads, given = Heads(), 0
    endless = b"HTTP/1.1 100 Continue\r\n\r\n" * (4096 + size)
    found = None
    while found is None:
        found = heads.feed(endless[given : given + size])
        given += size
    assert found == f"a response head of more than {LONGEST_HEAD_BYTES} bytes, with the 1xx ones before it"
    assert given <= LONGEST_HEAD_BYTES + 2 * size + 25


# What can be sent.


@loop_over(
    ("name", "value", "says"),
    TABLES["headers"],
)
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(name: str, value: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_headers([("X-Good", "yes"), (name, value)])
    assert says in str(refused.value)
    assert "secret" not in str(refused.value)


@loop_over("path", ["/v1/x\r\nX-Evil: 1", "/v1/a b", "/v1/é", "/v1/\0", "/v1/\x1b[2J"])
def test_a_path_that_cannot_be_sent_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="percent-encode"):
        check_path(path)
    with pytest.raises(UsageError):
        parse(["--base-url", "http://h:1", "--endpoint", path])
    with pytest.raises(UsageError):
        target_of("127.0.0.1", 1).__class__("http", "h", 1, path, (2, ("h", 1)), ())


@loop_over("prefix", ["é€", "a\r\nX-Evil: 1", "a\n", "\0", "\x7f"])
def test_a_prefix_that_cannot_be_sent_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="--request-id-prefix"):
        check_request_id_prefix(prefix)
    with pytest.raises(UsageError, match="--request-id-prefix"):
        parse(["--base-url", "http://h:1", "--request-id-prefix", prefix])
    with pytest.raises(UsageError, match="--request-id-prefix"):
        job_of(target_of("127.0.0.1", 1), 1, 1, request_id_prefix=prefix)
