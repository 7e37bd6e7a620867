"""Share, start and the requests built ahead: which process sends what, and from when."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.scripted_server import job_of, target_of
from loadgen.settings.shard_settings import Share
from loadgen.transport.sending.job import At, AtOnce, Job, Listed, Order, RunStart, wait_for_start
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


def job(order: Order, slots: int) -> Job:
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
    assert wait_for_start(At(0), clock.now_ns, clock.turn) == 51 * MS
    assert len(clock.turns) == 2
