"""Requests that the plan cancels: given up at their time, or once their tokens have come."""

from __future__ import annotations

import numpy as np

from builders.loops import loop_over
from fakes.scripted_server import (
    HEAD,
    LAST,
    PING,
    Answer,
    Asked,
    Driven,
    End,
    chunk,
    drive,
    events,
    job_of,
    kinds,
    stream,
)
from fakes.virtual_network import VirtualServer
from loadgen.plan.cancellations import Cancellations
from loadgen.settings.cancel_point import CancelPoint
from loadgen.transport.capture import Capture
from loadgen.transport.failure import FailureKind
from loadgen.transport.sending.job import Job, Target
from loadgen.wire.openai import Completions

MS = 1_000_000
SECOND = 1000 * MS
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


def test_before_the_head_and_amid_pings_it_is_cancelled_too(transport: str) -> None:
    pieces = ([3.0], [HEAD, *[0.1, chunk(PING)] * 30])
    server = VirtualServer(lambda asked: Answer([*pieces[asked.number % 2], LAST]))
    driven = drive(cancelling(server.target(), 4, 2, 1, CancelPoint(after_ns=SECOND)), transport, server)
    assert kinds(driven) == [CUT] * 4
    assert all(0 <= capture.end_ns - capture.sent_ns - SECOND < MS // 5 for capture in driven.captures)


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


def test_the_next_request_goes_over_a_new_connection_at_once(transport: str) -> None:
    server = VirtualServer(lambda _: stream(3, 1.0))
    driven = drive(cancelling(server.target(), 6, 2, 1, CancelPoint(after_ns=SECOND)), transport, server)
    assert kinds(driven) == [CUT] * 6
    assert server.connections == 6
    for earlier, later in zip(driven.captures, driven.captures[2:], strict=False):
        assert 0 <= later.sent_ns - earlier.end_ns < MS


def test_those_that_are_not_cancelled_keep_their_connection(transport: str) -> None:
    server = VirtualServer(lambda _: stream(2))
    driven = drive(cancelling(server.target(), 6, 2, 6, CancelPoint(after_ns=SECOND)), transport, server)
    assert kinds(driven) == [None] * 6
    assert server.connections == 2


def test_a_request_that_is_sent_again_is_cancelled_on_time(epoll: str) -> None:
    def script(asked: Asked) -> Answer:
        return (stream(2), Answer([], End.CLOSE), stream(3, 1.0))[asked.number]

    server = VirtualServer(script)
    driven = drive(cancelling(server.target(), 2, 1, 1, CancelPoint(after_ns=SECOND)), epoll, server)
    assert kinds(driven) == [None, CUT]
    assert driven.captures[1].resends == 1
    assert 0 <= driven.captures[1].end_ns - driven.captures[1].sent_ns - SECOND < MS // 5
