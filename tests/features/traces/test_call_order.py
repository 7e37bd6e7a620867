"""Call order: what each recorded call waited for, against the plain definition of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders.required import require
from loadgen.base.errors import UsageError
from loadgen.features.traces.call_order import RecordedCalls, SessionTrees, find_order

Calls = tuple[list[int], list[int], list[int], list[int]]  # begins, ends, agents, parents


def path(agent: int, parents: Sequence[int]) -> list[int]:
    above = []
    while agent >= 0:
        above.append(agent)
        agent = parents[agent]
    return above


def list_precedences(calls: Calls) -> list[set[int]]:
    """Every call that a call waited for, by the plain definition."""
    begins, ends, agents, parents = calls
    paths = [path(agent, parents) for agent in range(len(parents))]

    def list_ended(call: int) -> list[int]:
        return [p for p in range(call) if ends[p] <= begins[call]]

    def list_starters(agent: int) -> set[int]:
        if not agent:
            return set()
        first = next(call for call, of in enumerate(agents) if agent in paths[of])
        parent = parents[agent]
        own = {p for p in list_ended(first) if agents[p] == parent}
        if parent not in agents:  # a program
            own = {p for p in list_ended(first) if parent in paths[agents[p]]}
        return own or list_starters(parent)

    return [
        {p for p in list_ended(c) if agents[c] in paths[agents[p]]} | list_starters(agents[c])
        for c in range(len(begins))
    ]


def close(order: Sequence[Sequence[int]] | Sequence[set[int]]) -> list[set[int]]:
    reached: list[set[int]] = []
    for before in order:
        reached.append(set(before).union(*(reached[p] for p in before)))
    return reached


@st.composite
def recorded_calls(draw: st.DrawFn) -> Calls:
    agents = draw(st.integers(1, 6))
    parents = [-1, *(draw(st.integers(0, agent - 1)) for agent in range(1, agents))]
    callers = draw(st.lists(st.integers(0, agents - 1), min_size=1))
    times = st.tuples(st.integers(0, 12), st.integers(0, 5), st.sampled_from(callers))
    calls = sorted(draw(st.lists(times, max_size=24)), key=lambda call: call[0])
    begins = [begin for begin, _, _ in calls]
    return begins, [begin + took for begin, took, _ in calls], [agent for _, _, agent in calls], parents


@given(recorded_calls())
@example(([0, 2], [1, 3], [1, 2], [-1, 0, 0]))  # a program's sub-agents
@example(([0, 2, 4], [1, 3, 5], [0, 1, 2], [-1, 0, 0]))  # sub-agents that the main line starts
@example(([0, 2, 3], [1, 9, 4], [0, 1, 2], [-1, 0, 1]))  # one started by an agent that is still at work
@example(([5, 5, 11], [10, 5, 12], [0, 0, 1], [-1, 0]))  # a call without duration beside a longer one
def test_order_is_the_plain_definition_transitively_reduced(calls: Calls) -> None:
    (order, _), plain = find_order(*calls), list_precedences(calls)
    reached = close(plain)
    assert all(p < c for c, before in enumerate(plain) for p in before)
    assert order == [sorted(before.difference(*(reached[p] for p in before))) for before in plain]
    assert close(order) == reached


def test_delays_are_recorded_pauses_or_what_the_times_leave() -> None:
    calls = RecordedCalls()
    agent = calls.add_agent(0, "explore")
    calls.add(0, 2)
    calls.add(3, 5, agent, pause_ns=9)  # it waits for another agent's call: its pause is of its own line
    calls.add(3, 4)
    calls.add(6, 8, pause_ns=4)
    calls.add(9, 9, agent, pause_ns=1)
    calls.tools_ns = {0: [(4, 9)], agent: [(1, 7), (8, 12)]}
    trees = SessionTrees()
    assert trees.add(calls) == [0, 1, 0, 0, 1]
    trees.add(calls)
    waits, delays_ns = trees.make()
    assert delays_ns.tolist() == [0, 1, 1, 1, 1] * 2
    assert require(waits.tool_ns).tolist() == [0, 1, 0, 1, 1] * 2
    assert waits.list_before(8) == [6, 7]
    assert waits.role_names == ("main", "explore")
    assert waits.depths.tolist() == [0, 1, 0, 0, 1] * 2
    waits.check(np.array([0, 5, 10]))


def test_tools_that_work_at_once_are_counted_once() -> None:
    calls, trees = RecordedCalls(), SessionTrees()
    calls.add(0, 2)
    calls.add(20, 22)
    calls.tools_ns = {0: [(8, 12), (3, 9), (4, 6), (-5, 1)]}
    trees.add(calls)
    assert require(trees.make()[0].tool_ns).tolist() == [0, 9]


@pytest.mark.long
@pytest.mark.timeout(30)
@pytest.mark.parametrize(("agents", "silent"), [(1, 0), (10_000, 0), (10_000, 1)])
def test_a_hundred_thousand_calls_are_ordered_and_measured_in_seconds(agents: int, silent: int) -> None:
    rng = np.random.default_rng(5)
    begins = np.sort(rng.integers(0, 10**7, 100_000))
    ends = begins + rng.integers(0, 3000, 100_000)
    of = rng.integers(silent, agents, 100_000).tolist()
    order, _ = find_order(begins.tolist(), ends.tolist(), of, [-1] + [0] * (agents - 1))
    assert len(order) == 100_000
    calls, trees = RecordedCalls(), SessionTrees()
    for i in range(100_000):
        calls.add(10 * i, 10 * i + 5)
    calls.tools_ns = {0: [(10 * i + 6, 10 * i + 9) for i in range(100_000)]}
    trees.add(calls)
    assert require(trees.make()[0].tool_ns).tolist() == [0, *[3] * 99_999]


def fan(count: int) -> RecordedCalls:
    """As many calls at once as agents that begin after all of them."""
    calls = RecordedCalls()
    for _ in range(count):
        calls.add(0, 10)
    for _ in range(count):
        calls.add(20, 30, calls.add_agent(0, "reader"))
    return calls


def test_agents_that_are_started_at_once_share_what_they_wait_for() -> None:
    trees = SessionTrees()
    trees.add(fan(3))
    trees.add(fan(2))
    waits, _ = trees.make()
    before = np.split(waits.before, waits.starts[1:-1])
    assert [each.tolist() for each in before] == [[]] * 3 + [[0, 1, 2]] * 3 + [[]] * 2 + [[6, 7]] * 2


def test_waits_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.features.traces.call_order.MOST_WAITS", 99)
    SessionTrees().add(fan(9))
    with pytest.raises(UsageError, match="calls of one session wait for more than 99 others together"):
        SessionTrees().add(fan(10))
    trees = SessionTrees()
    trees.add(fan(9))
    with pytest.raises(UsageError, match="calls of all sessions wait for more than 99"):
        trees.add(fan(9))
