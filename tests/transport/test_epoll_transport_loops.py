"""Both loops in virtual time: what they send, when, and until when; a stop and a duration end them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from builders.loops import loop_over
from fakes.scripted_server import (
    HEAD,
    Answer,
    Asked,
    Driver,
    End,
    chunk,
    drive,
    job_of,
    kinds,
    records,
    stream,
    token,
)
from fakes.virtual_network import VirtualServer
from loadgen.transport.epoll_transport import EpollTransport
from loadgen.transport.failure import FailureKind

MS = 1_000_000
SECOND = 1000 * MS


@loop_over("concurrency", [1, 3, 8])
def test_a_closed_loop_keeps_exactly_its_concurrency_under_way(epoll: str, concurrency: int) -> None:
    server = VirtualServer(lambda _: stream(4, 0.001))
    driven = drive(job_of(server.target(), 24, concurrency), epoll, server)
    assert server.connections == concurrency
    found = records(driven)
    changes = sorted([(r.sent_ns, 1) for r in found] + [(r.end_ns, -1) for r in found])
    assert np.cumsum([change for _, change in changes]).max() == concurrency
    for capture, record in zip(driven.captures, found, strict=True):
        earlier = [c for c in driven.captures if c.slot == capture.slot and c.index < capture.index]
        due_ns = earlier[-1].end_ns if earlier else driven.health.started_ns
        assert capture.intended_ns == due_ns
        assert record.sent_ns >= due_ns
    assert max(capture.sent_ns - capture.intended_ns for capture in driven.captures) < MS // 10
    assert driven.counters.sent == driven.counters.ended == 24


@loop_over("concurrency", [None, 2])
def test_an_open_loop_keeps_its_schedule(concurrency: int | None, transport: str) -> None:
    offsets_ns = np.arange(40) * 10 * MS
    server = VirtualServer(lambda _: stream(3, 0.001))
    job = job_of(server.target(), 40, concurrency, offsets_ns=offsets_ns, rate_per_s=100.0)
    driven = drive(job, transport, server)
    assert kinds(driven) == [None] * 40
    intended_ns = np.array([capture.intended_ns for capture in driven.captures])
    sent_ns = np.array([capture.sent_ns for capture in driven.captures])
    assert (intended_ns - driven.health.started_ns == offsets_ns).all()
    assert (sent_ns >= intended_ns).all()
    late_ns = (sent_ns - intended_ns)[1:]  # over httpx the first is connected after its time
    assert late_ns.max() < MS // 10


def test_an_open_loop_is_on_time_while_bodies_are_still_being_built(epoll: str) -> None:
    server = VirtualServer(lambda _: stream(2))

    def body(index: int) -> bytes:
        server.time.sleep(0.002)  # a body that takes its time
        return b"{}"

    offsets_ns = np.concatenate([np.arange(20) * 20 * MS, np.full(280, 450 * MS)])
    job = job_of(server.target(), 300, 300, body=body, offsets_ns=offsets_ns, rate_per_s=1.0)
    driven = drive(job, epoll, server)
    late_ns = np.array([capture.sent_ns - capture.intended_ns for capture in driven.captures[1:20]])
    assert late_ns.max() < 4 * MS  # a body or two


def test_an_open_loop_adds_connections_as_needed(epoll: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.1))
    offsets_ns = np.arange(60) * 2 * MS
    driven = drive(job_of(server.target(), 60, None, offsets_ns=offsets_ns, rate_per_s=1.0), epoll, server)
    assert 16 < server.connections <= 61
    assert kinds(driven) == [None] * 60


def test_an_open_loop_with_a_limit_never_exceeds_it_and_shows_the_queue(epoll: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.01))
    offsets_ns = np.zeros(12, np.int64)
    job = job_of(server.target(), 12, 3, offsets_ns=offsets_ns, rate_per_s=float("inf"))
    driven = drive(job, epoll, server)
    assert server.connections == 3
    late_ns = [capture.sent_ns - capture.intended_ns for capture in driven.captures]
    assert max(late_ns[:3]) < min(late_ns[3:])


# A duration instead of a count.


def test_when_time_is_up_a_closed_loop_finishes_what_is_under_way(transport: str) -> None:
    built: list[int] = []

    def body(index: int) -> bytes:
        built.append(index)
        return b"{}"

    server = VirtualServer(lambda _: stream(3, 0.02))
    job = job_of(server.target(), 1_000_000, 3, body=body, duration_ns=300 * MS)
    driven = drive(job, transport, server)
    assert len(server.asked) == len(driven.captures)
    count = len(driven.captures)
    assert count == 9  # three slots, an answer takes a little more than 100 ms
    assert kinds(driven) == [None] * count
    assert driven.counters.sent == driven.counters.ended == count
    assert [capture.index for capture in driven.captures] == list(range(count))
    over_ns = driven.health.started_ns + 300 * MS
    assert all(capture.intended_ns < over_ns for capture in driven.captures)
    assert len(built) <= count + 16384


def test_a_request_longer_than_the_duration_is_the_only_one_of_its_slot(transport: str) -> None:
    server = VirtualServer(lambda _: stream(3, 0.15))
    driven = drive(job_of(server.target(), 1000, 2, duration_ns=100 * MS), transport, server)
    assert kinds(driven) == [None, None]
    assert all(capture.end_ns > driven.health.started_ns + 100 * MS for capture in driven.captures)


def test_an_open_loop_leaves_what_its_limit_held_back_to_the_end(transport: str) -> None:
    offsets_ns = np.arange(10) * 20 * MS
    server = VirtualServer(lambda _: stream(3, 0.05))
    job = job_of(server.target(), 10, 1, offsets_ns=offsets_ns, rate_per_s=50.0, duration_ns=200 * MS)
    driven = drive(job, transport, server)
    assert kinds(driven) == [None]  # an answer takes 250 ms
    assert driven.counters.sent == driven.counters.ended == 1


def test_a_plan_that_is_done_before_its_time_is_up_does_not_wait_for_it(transport: str) -> None:
    server = VirtualServer(lambda _: stream())
    driven = drive(job_of(server.target(), 5, 2, duration_ns=3600 * SECOND), transport, server)
    assert kinds(driven) == [None] * 5


def test_a_refused_port_fails_one_request_per_slot_and_second(transport: str) -> None:
    server = VirtualServer(lambda _: stream(), refuses=True)
    driven = drive(job_of(server.target(), 1_000_000, 2, duration_ns=4500 * MS), transport, server)
    assert kinds(driven) == [FailureKind.CONNECT] * 10


# Stopping.


@pytest.mark.parametrize(
    ("transport", "offsets"),
    [
        *[(transport, None) for transport in ("wire", "ring", "httpx")],
        *[(transport, np.arange(50) * 50 * MS) for transport in ("wire", "ring")],
    ],
)
def test_a_stop_delivers_what_was_under_way_as_cancelled(transport: str, offsets: np.ndarray | None) -> None:
    holder: list[Callable[[], None]] = []

    def script(asked: Asked) -> Answer:
        if asked.number == 3:
            holder[0]()
        return stream() if int(asked.body) < 2 else Answer([HEAD, chunk(token())], End.HANG)

    server = VirtualServer(script)
    job = job_of(server.target(), 50, 2, body=lambda i: b"%d" % i, offsets_ns=offsets, rate_per_s=20.0)
    driver = Driver(job, transport, server)
    holder.append(driver.inbox.stop)
    driven = driver.run()
    assert kinds(driven) == [None, None, FailureKind.CANCELLED, FailureKind.CANCELLED]
    assert all(capture.sent_ns for capture in driven.captures)


def test_a_reader_that_is_gone_stops_the_run() -> None:
    server = VirtualServer(lambda _: Answer([HEAD], End.HANG))
    driver = Driver(job_of(server.target(), 10, 1), "wire", server)
    driver.inbox.stop()  # an unread byte makes the end of the pipe an error, not an end
    driver.inbox.sock.close()
    wire = EpollTransport(driver.job, driver.outbox, driver.counters, server)
    health = wire.run()
    assert health.ended_ns - health.started_ns < MS
    driver.outbox.sock.close()
