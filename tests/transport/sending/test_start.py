"""Start: at once, at an instant, or once several processes are ready."""

from __future__ import annotations

import os

import pytest

from loadgen.transport.sending.start import At, AtOnce, RunStart, Together, wait_for_start

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
