"""Gates: a limit that changes over time, and one on requests in prefill, are held exactly and used fully."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from fakes.scripted_server import (
    HEAD,
    LAST,
    PING,
    Answer,
    Driven,
    chunk,
    drive,
    events,
    job_of,
    kinds,
    stream,
)
from fakes.virtual_network import VirtualServer
from loadgen.base.arrays import Int64
from loadgen.plan.planned_requests import Cancellations, ConcurrencySteps, make_cancellations
from loadgen.settings.load_settings import CancelPoint
from loadgen.transport.capture import Capture
from loadgen.transport.failure import FailureKind
from loadgen.transport.sending.job import Job, Target
from loadgen.wire.openai import Completions

MS = 1_000_000
SECOND = 1000 * MS
UP_AND_DOWN = ConcurrencySteps(np.array([0, 1, 2, 3], np.int64) * SECOND, np.array([2, 5, 1, 3], np.int64))
# httpx's event loop wakes up to a millisecond late
SOON_NS = 2 * MS


def under_way(driven: Driven, at_ns: Int64) -> Int64:
    """How many requests were under way at times after the start."""
    sent_ns = np.sort([capture.sent_ns for capture in driven.captures]) - driven.health.started_ns
    ended_ns = np.sort([capture.end_ns for capture in driven.captures]) - driven.health.started_ns
    return np.searchsorted(sent_ns, at_ns, "right") - np.searchsorted(ended_ns, at_ns, "right")


def test_a_limit_that_changes_is_held_at_each_instant(transport: str) -> None:
    server = VirtualServer(lambda _: stream(4, 0.01))  # 40 ms
    job = job_of(server.target(), 10_000, 5, concurrency_steps=UP_AND_DOWN, duration_ns=4 * SECOND)
    driven = drive(job, transport, server)
    assert set(kinds(driven)) == {None}
    for begin_s, limit in (
        (0.0, 2),
        (1.0, 5),
        (2.1, 1),
        (3.0, 3),
    ):  # 0.1 s until what was under way has ended
        at_ns = np.arange(int(begin_s * SECOND) + SOON_NS, int(begin_s + 1) * SECOND - SOON_NS, MS // 10)
        running = under_way(driven, at_ns)
        assert running.max() == limit
        assert (running == limit).mean() > 0.95


def test_a_lower_limit_cuts_nothing_that_is_under_way(transport: str) -> None:
    steps = ConcurrencySteps(np.array([0, SECOND], np.int64), np.array([4, 1], np.int64))
    server = VirtualServer(lambda _: stream(3, 0.5))  # 2.5 s
    driven = drive(job_of(server.target(), 6, 4, concurrency_steps=steps), transport, server)
    assert kinds(driven) == [None] * 6
    first_ns, second_ns = (driven.captures[i].sent_ns for i in (4, 5))
    assert first_ns > max(capture.end_ns for capture in driven.captures[:4]) - SOON_NS
    assert second_ns >= driven.captures[4].end_ns


# Requests in prefill.


def prefilled(seconds: float, tokens: int = 3, pings: int = 0) -> Answer:
    """A head and pings at once, the first token after some seconds, the others 50 ms apart."""
    first, *rest = events(tokens)
    answer: list[bytes | float] = [HEAD, *[chunk(PING)] * pings, seconds, chunk(first)]
    for event in rest:
        answer += [0.05, chunk(event)]
    return Answer([*answer, LAST])


def in_prefill(driven: Driven, prefill_ns: int) -> tuple[int, float]:
    """The most requests in prefill at once, and how many there were in the mean, until the last was sent."""
    sent_ns = np.sort([capture.sent_ns for capture in driven.captures])
    begun_ns = sent_ns + prefill_ns
    at_ns = np.arange(sent_ns[0], sent_ns[-1], MS // 10)
    count = np.searchsorted(sent_ns, at_ns, "right") - np.searchsorted(begun_ns, at_ns, "right")
    return int(count.max()), float(count.mean())


@pytest.mark.parametrize("open_loop", [False, True])
@loop_over("pings", [0, 3])
def test_no_more_are_in_prefill_than_the_cap(transport: str, open_loop: bool, pings: int) -> None:
    server = VirtualServer(lambda _: prefilled(0.1, 20, pings))
    offsets_ns = np.zeros(40, np.int64) if open_loop else None
    job = job_of(server.target(), 40, 40, offsets_ns=offsets_ns, prefill_concurrency=4)
    driven = drive(job, transport, server)
    assert kinds(driven) == [None] * 40
    most, mean = in_prefill(driven, 100 * MS)
    assert most == 4
    assert mean > 3.8


def test_a_request_that_fails_leaves_prefill(epoll: str) -> None:
    server = VirtualServer(
        lambda asked: (
            Answer([b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"]) if asked.number < 8 else stream(2)
        )
    )
    driven = drive(job_of(server.target(), 12, 6, prefill_concurrency=1), epoll, server)
    assert kinds(driven)[8:] == [None] * 4


CUT = FailureKind.USER_CANCELLED


def cancelling(target: Target, count: int, concurrency: int, every: int, point: CancelPoint) -> Job:
    """A closed loop in which one request of `every` is to be cancelled, the first one among them."""
    cancellations = Cancellations(np.arange(count) % every == 0, point)
    dialect = Completions()
    seen, counted = dialect.has_token, dialect.count_token_messages
    return job_of(
        target, count, concurrency, cancellations=cancellations, token_seen=seen, token_messages=counted
    )


def cut(driven: Driven) -> list[Capture]:
    """The captures of the requests that were cancelled."""
    return [capture for capture, kind in zip(driven.captures, kinds(driven), strict=True) if kind is CUT]


@loop_over("after_ns", [3 * MS, 250 * MS, 2 * SECOND])
def test_a_request_is_cancelled_at_its_time_after_sending(transport: str, after_ns: int) -> None:
    server = VirtualServer(lambda _: stream(3, 1.0))  # 5 s
    driven = drive(cancelling(server.target(), 9, 3, 3, CancelPoint(after_ns=after_ns)), transport, server)
    assert kinds(driven) == [CUT, None, None] * 3
    late_ns = [capture.end_ns - capture.sent_ns - after_ns for capture in cut(driven)]
    assert min(late_ns) >= 0
    assert max(late_ns) < MS // 5


def test_each_request_is_cancelled_at_its_own_point(transport: str) -> None:
    points = (3 * SECOND, 0), (0, 2), (SECOND, 0), (SECOND // 2, 0)
    own = {index: CancelPoint(*point) for index, point in enumerate(points)}
    server = VirtualServer(lambda _: stream(8, 0.4))
    job = cancelling(server.target(), 5, 5, 1, CancelPoint())
    job = replace(job, cancellations=make_cancellations(own, 5))
    driven = drive(job, transport, server)
    captures = sorted(driven.captures, key=lambda capture: capture.index)
    took_s = [(capture.end_ns - capture.sent_ns) / SECOND for capture in captures[:4]]
    assert took_s == pytest.approx([3, 0.8, 1, 0.5], abs=0.01)
    assert [capture.failure and capture.failure.kind for capture in captures] == [CUT] * 4 + [None]


@loop_over("split", [0, 20])
def test_a_request_is_cancelled_once_its_tokens_have_come(transport: str, split: int) -> None:
    whole = [chunk(event) for event in events(20)]
    pieces = [part for data in whole for part in (0.05, data[:split], 0.003, data[split:]) if part != b""]
    server = VirtualServer(lambda _: Answer([HEAD, chunk(PING), *pieces, LAST]))
    driven = drive(cancelling(server.target(), 4, 2, 2, CancelPoint(after_tokens=7)), transport, server)
    assert kinds(driven) == [CUT, None] * 2
    for capture in cut(driven):
        assert Completions().count_token_messages(capture.raw) == 7
        assert 0 <= capture.end_ns - int(capture.user_ns()[-1]) < 3 * MS


def test_a_request_that_ends_before_is_a_success(transport: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.1))  # 0.5 s
    for point in (CancelPoint(after_ns=SECOND), CancelPoint(after_tokens=4)):
        driven = drive(cancelling(server.target(), 6, 2, 1, point), transport, server)
        assert kinds(driven) == [None] * 6
