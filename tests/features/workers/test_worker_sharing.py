"""The queue of requests and the start that the workers of a run share, whoever is faster."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.scripted_server import job_of, target_of
from loadgen.features.workers.worker_process import Queue, Shared, Together
from loadgen.transport.sending.sender import Outgoing

MS = 1_000_000


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


def test_an_empty_queue_has_nothing() -> None:
    queue = Queue(np.arange(0))
    assert (len(queue), queue.take_next(), list(Shared(queue))) == (0, -1, [])
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


def test_the_last_claims_end_the_count() -> None:
    queue = Queue(np.arange(2))
    first, second = (outgoing(queue, 4) for _ in range(2))
    assert (first.take()[0], first.count) == (0, 1)
    assert (second.take()[0], second.count) == (1, 1)
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
