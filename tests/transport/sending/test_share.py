"""Share, orders and the requests built ahead: which process sends what, whoever is faster."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.scripted_server import job_of, target_of
from loadgen.features.workers.worker_process import Queue, Shared, Together
from loadgen.transport.sending.job import WHOLE, At, AtOnce, Job, Listed, RunStart, Share, wait_for_start
from loadgen.transport.sending.sender import Outgoing

COUNTS = st.integers(0, 60)
PARTS = st.integers(1, 9)


def of_all(parts: list[Share], count: int) -> list[int]:
    return sorted(int(index) for part in parts for index in part.list_indices(count))


@given(count=COUNTS, shards=PARTS, workers=PARTS)
def test_shards_and_their_workers_send_each_request_once(count: int, shards: int, workers: int) -> None:
    parts = [part for number in range(shards) for part in Share(number, shards).split(workers)]
    assert of_all(parts, count) == list(range(count))
    for number in range(shards):
        own = of_all(Share(number, shards).split(workers), count)
        assert own == list(range(number, count, shards))


@given(most=COUNTS, shards=PARTS, workers=PARTS)
def test_no_slot_belongs_to_two_processes(most: int, shards: int, workers: int) -> None:
    parts = [part for number in range(shards) for part in Share(number, shards).split(workers)]
    slots = [part.number_slot(position) for part in parts for position in range(part.count_slots(most))]
    assert sorted(slots) == list(range(most))


@given(st.lists(st.integers(0, 7), max_size=40), PARTS)
def test_sessions_stay_whole(sessions: list[int], shards: int) -> None:
    column = np.array(sessions, np.int64)
    parts = [Share(number, shards).list_indices(len(column), column) for number in range(shards)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(column)))
    homes = [{int(session) for session in column[part]} for part in parts]
    assert sum(map(len, homes)) == len(set(sessions))


def test_a_whole_plan_is_its_own_only_share() -> None:
    assert WHOLE.list_indices(3).tolist() == [0, 1, 2]
    assert [WHOLE.number_slot(position) for position in range(3)] == [0, 1, 2]
    assert WHOLE.split(1) == [WHOLE]


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


def test_an_empty_queue_has_nothing() -> None:
    queue = Queue(np.arange(0))
    assert (len(queue), queue.take_next(), list(Shared(queue))) == (0, -1, [])
    queue.close()


def job(order: Listed | Shared, slots: int) -> Job:
    target = target_of("127.0.0.1", 1)
    return job_of(target, 0, slots, order=order, body=lambda index: b"%d" % index)


def bodies(requests: list[tuple[int, bytes]]) -> list[int]:
    return [int(request.rsplit(b"\r\n\r\n", 1)[1]) for _, request in requests]


@pytest.mark.parametrize("ahead", [0, 1, 3, 99])
def test_requests_leave_in_their_order_however_many_are_built(ahead: int) -> None:
    out = Outgoing(job(Listed([4, 7, 9, 11, 20]), 2))
    taken = []
    while out.next < out.count:
        for _ in range(ahead):
            out.build_ahead()
        taken.append(out.take())
    assert [index for index, _ in taken] == bodies(taken) == [4, 7, 9, 11, 20]
    assert out.count == out.built == 5


def test_of_a_queue_no_more_is_claimed_ahead_than_there_are_slots() -> None:
    queue = Queue(np.arange(10))
    out = Outgoing(job(Shared(queue), 3))
    while out.build_ahead():
        pass
    assert queue.take_next() == 3
    queue.close()


@given(st.lists(st.integers(0, 1), max_size=60), st.integers(0, 12))
def test_two_processes_take_all_of_a_queue_whatever_their_pace(turns: list[int], count: int) -> None:
    queue = Queue(np.arange(count))
    outs = [Outgoing(job(Shared(queue), 2)) for _ in range(2)]
    taken: list[int] = []
    for turn in [*turns, *([0, 1] * count)]:
        out = outs[turn]
        if out.next < out.count:
            taken.append(out.take()[0])
            out.build_ahead()
    assert sorted(taken) == list(range(count))
    assert all(out.next == out.count for out in outs)
    queue.close()


def test_the_last_claims_end_the_count() -> None:
    queue = Queue(np.arange(2))
    first, second = (Outgoing(job(Shared(queue), 4)) for _ in range(2))
    assert (first.take()[0], first.count) == (0, 1)
    assert (second.take()[0], second.count) == (1, 1)
    queue.close()


MS = 1_000_000


class Ticking:
    """A clock that each turn moves on, and the turns that were taken."""

    def __init__(self, now_ns: int, stop_after: int = 10**9) -> None:
        self.time_ns, self.stop_after = now_ns, stop_after
        self.turns: list[float] = []

    def now_ns(self) -> int:
        return self.time_ns

    def turn(self, timeout_s: float) -> bool:
        self.turns.append(timeout_s)
        self.time_ns += int(timeout_s * 1e9) or MS // 10
        return len(self.turns) >= self.stop_after


@pytest.mark.parametrize(
    ("start", "began_ns", "turns"),
    [
        pytest.param(AtOnce(), 50 * MS, 0, id="at once"),
        pytest.param(At(40 * MS), 40 * MS, 0, id="an instant that has passed"),
        pytest.param(At(50 * MS), 50 * MS, 0, id="now"),
        pytest.param(At(60 * MS), 60 * MS, 9 + 10, id="later: sleeping, then spinning"),
    ],
)
def test_a_run_begins_at_its_instant(start: RunStart, began_ns: int, turns: int) -> None:
    clock = Ticking(50 * MS)
    assert wait_for_start(start, clock.now_ns, clock.turn) == began_ns
    assert len(clock.turns) == turns
    assert clock.time_ns == max(began_ns, 50 * MS)


def test_a_stop_ends_the_wait() -> None:
    clock = Ticking(50 * MS, stop_after=2)
    assert wait_for_start(Together(2).make_start(0), clock.now_ns, clock.turn) == 51 * MS
    assert len(clock.turns) == 2


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


def test_processes_do_not_begin_before_the_earliest_instant() -> None:
    together = Together(1, earliest_ns=900 * MS)
    together.make_start(0).begin_ns(0)
    together.release(1, ended=set())
    assert together.make_start(0).begin_ns(2) == 900 * MS


@pytest.mark.whole
def test_the_start_crosses_a_fork() -> None:
    together = Together(1)
    child = os.fork()
    if not child:
        together.make_start(0).begin_ns(1)
        os._exit(0)
    os.waitpid(child, 0)
    assert together.release(1, ended=set())
