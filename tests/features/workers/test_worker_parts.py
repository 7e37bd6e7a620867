"""What workers are made of: totals, pipes, the health of several processes, and the CPUs they are given."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.loops import loop_over
from fakes.scripted_server import job_of, target_of
from loadgen.features.workers.workers import (
    EndedRequests,
    Queue,
    Shared,
    Together,
    WorkerEnd,
    WorkerMessage,
    WorkerResult,
    WorkerRun,
    join_health,
)
from loadgen.records.record import Record
from loadgen.run import worker_count
from loadgen.run.command.progress import NO_TTFTS, LiveTotals, Totals
from loadgen.run.firing import NO_HEALTH, DecodedTally
from loadgen.transport.capture import Health
from loadgen.transport.failure import Failure, FailureKind
from loadgen.transport.sending.sender import Outgoing

FIGURES = Totals(
    sent=9,
    ended=8,
    reads=70,
    decoded=7,
    failed=1,
    tokens=60,
    decoded_reads=65,
    ttft_sum_ns=5,
    ttft_count=6,
    ttft_counts=(*NO_TTFTS[2:], 2, 4),
)
REFUSED = Failure(FailureKind.CONNECT, "refused")
MS = 1_000_000


@loop_over("named", [True, False])
def test_totals_are_read_as_they_were_published(named: bool, tmp_path: Path) -> None:
    path = tmp_path / "totals" if named else None
    written = LiveTotals(path)
    read = LiveTotals(path) if named else written
    assert (read.read(), read.beats) == (Totals(), 0)
    written.publish(FIGURES)
    assert (read.read(), read.beats) == (FIGURES, 1)
    written.beat()
    assert (read.read(), read.beats) == (FIGURES, 2)


RESULT = WorkerResult(
    Health(1, 2, 3, 4, 5, 6), "", DecodedTally(1, 2, 3), [(b"R", b"x" * 1_000_000), (b"F", b"{}")]
)
ROWS = EndedRequests([(3, None), (2, REFUSED)], [(7, 10, 20)], "no space")


def test_a_pipe_delivers_messages_whole_in_whatever_pieces_they_come() -> None:
    near, far = socket.socketpair()
    theirs, ours = WorkerEnd(near), WorkerRun("worker 0 of 1", cast(Any, None), far, 0)
    theirs.sock.setblocking(False)
    pieces: list[bytes] = []

    class Gathered:
        def sendall(self, data: bytes) -> None:
            pieces.append(data)

    theirs_sock, theirs.sock = theirs.sock, Gathered()  # type: ignore[assignment]
    theirs.send(ROWS)
    theirs.send(RESULT)
    data, got = b"".join(pieces), list[WorkerMessage]()
    for begin in range(0, len(data), 65_537):
        theirs_sock.sendall(data[begin : begin + 65_537])
        got += ours.messages()
    assert got == [ROWS, RESULT]
    assert not ours.closed
    theirs_sock.close()
    assert list(ours.messages()) == []
    assert ours.closed
    ours.sock.close()


def test_what_saturation_is_judged_by_travels_only_where_it_is_judged() -> None:
    begun = Record(7, 0, 5, 10, 30, arrival_ns=np.array([20]), tokens=np.ones(1, np.int64))
    refused = Record(8, 0, 5, 10, 30, failure=REFUSED)
    for judged, sent in ((True, [(7, 10, 20)]), (False, [])):
        ended = EndedRequests()
        for record in (begun, refused):
            ended.note(record, judged)
        assert ended == EndedRequests([(1, None), (1, REFUSED)], sent)


def test_the_health_of_several_is_their_sum_or_their_worst() -> None:
    one = Health(10, 90, 40, 7, 3, 2, 1, 100, 5, 1)
    other = Health(12, 80, 60, 9, 1, 4, 2, 200, 0, 0, "no ring")
    assert join_health([one, other]) == Health(10, 90, 100, 9, 3, 4, 3, 300, 5, 1, "no ring", 60)
    assert join_health([]) == NO_HEALTH


EIGHT = {cpu: {cpu, cpu ^ 4} for cpu in range(8)}  # four cores of two threads each: 0 and 4, 1 and 5, …


@pytest.fixture
def system(tmp_path: Path) -> Path:
    for cpu, core in EIGHT.items():
        place = tmp_path / f"cpu{cpu}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(",".join(map(str, sorted(core))) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("ours", "servers", "workers", "cpus"),
    [
        (range(8), [0, 4], 2, (1, 2, 3, 5, 6, 7)),
        (range(8), [0, 1], 3, (2, 3, 4, 5, 6, 7)),
        (range(8), [0, 1], 4, ()),
        (range(8), range(8), 1, ()),  # it may run anywhere
        (range(4, 8), [0, 1], 2, ()),  # we are kept away from it already
        (range(8), [], 2, ()),  # it has ended
    ],
)
def test_workers_are_pinned_only_where_cpus_are_to_spare(
    ours: list[int], servers: list[int], workers: int, cpus: tuple[int, ...], system: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(worker_count, "read_affinities", lambda pid, affinity: set(servers))
    assert worker_count.find_spare_cpus([1], workers, lambda pid: set(ours), system) == cpus


def test_lists_of_cpus_are_read_and_written_as_the_kernel_does() -> None:
    assert list(worker_count.parse_cpu_list("0-3,8\n")) == [0, 1, 2, 3, 8]
    assert worker_count.format_cpu_list([8, 0, 1, 2, 3]) == "0-3,8"
    assert worker_count.format_cpu_list([]) == ""
    assert worker_count.read_siblings(9, Path("/nowhere")) == {9}


def outgoing(queue: Queue, slots: int) -> Outgoing:
    return Outgoing(job_of(target_of("127.0.0.1", 1), 0, slots, order=Shared(queue), body=lambda _: b""))


@pytest.mark.whole
def test_a_queue_gives_each_request_to_one_process() -> None:
    queue = Queue(np.arange(2000))
    ours, theirs = Shared(queue), Shared(queue)
    child = os.fork()
    if not child:
        for _ in theirs:
            pass
        os._exit(0)
    mine = list(ours)
    os.waitpid(child, 0)
    rest = theirs.list_taken(2000 - len(mine))
    assert sorted(mine + rest) == list(range(2000))
    assert mine == ours.list_taken(len(mine))
    assert queue.take_next() == -1
    queue.close()


def test_of_a_queue_no_more_is_claimed_ahead_than_there_are_slots() -> None:
    queue = Queue(np.arange(10))
    out = outgoing(queue, 3)
    while out.build_ahead():
        pass
    assert queue.take_next() == 3
    queue.close()


@given(st.lists(st.integers(0, 1), max_size=60), st.integers(0, 12))
def test_two_processes_take_all_of_a_queue_whatever_their_pace(turns: list[int], count: int) -> None:
    queue = Queue(np.arange(count))
    outs = [outgoing(queue, 2) for _ in range(2)]
    taken: list[int] = []
    for turn in [*turns, *([0, 1] * count)]:
        out = outs[turn]
        if out.next < out.count:
            taken.append(out.take()[0])
            out.build_ahead()
    assert sorted(taken) == list(range(count))
    assert all(out.next == out.count for out in outs)
    queue.close()


def test_processes_begin_together_once_all_are_ready() -> None:
    together = Together(3)
    first, second = together.make_start(0), together.make_start(1)
    assert first.begin_ns(1) == 0
    assert not together.release(2 * MS, ended=set())
    assert second.begin_ns(3) == 0
    assert not together.release(4 * MS, ended=set())
    assert together.release(5 * MS, ended={2})
    begin_ns = first.begin_ns(6 * MS)
    assert begin_ns == second.begin_ns(9 * MS) == 25 * MS
    assert together.release(30 * MS, ended=set())
    assert first.begin_ns(31 * MS) == begin_ns
