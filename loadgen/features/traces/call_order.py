"""Call order: which calls of a recorded session each call waited for, and which connection each took.

A call waited for the calls of its own agent and of that agent's descendants that had ended when it began, and
for what its agent was started by: its parent's own calls that had ended when the first call of the agent or a
descendant began, or, if none had, what the parent was started by. Of those, the calls that another of them
waited for, directly or not, are left out.

So an agent joins its sub-agents, and no later call of a sub-agent waits for a later one of its parent. An
agent that makes no call itself runs its sub-agents as a program does: an agent below it was started by all
calls below it that had ended.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count

import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Float64, Int64
from loadgen.base.errors import UsageError
from loadgen.base.text import clean_line
from loadgen.plan.planned_requests import Waits, make_waits

UNKNOWN_NS = -1  # an end, or a pause, that is not recorded
MAIN, SUBAGENT = "main", "subagent"
_MOST_LETTERS = 40  # of a role
MOST_WAITS = 1 << 22  # of a trace's calls for others: each takes 50 bytes, and as many in a run's facts
MOST_DEPTH = 64  # agents above one another
_NONE = -1


def name_role(recorded: str | None) -> str:
    """Name a sub-agent's role as a short line in lower case; `subagent` where none is recorded."""
    return clean_line(recorded).lower()[:_MOST_LETTERS] if recorded else SUBAGENT


class RecordedCalls:
    """The calls of one session in the order of their begins, filled one by one.

    `agents` are indices into `parents`, which has each agent's parent and -1 of the main line, and `roles`.
    """

    def __init__(self) -> None:
        self.begins_ns: list[int] = []
        self.ends_ns: list[int] = []  # none before its begin
        self.agents: list[int] = []
        self.pauses_ns: list[int] = []  # recorded after the call before it; UNKNOWN_NS: by its times
        self.tools_ns: dict[int, list[tuple[int, int]]] = {}  # when an agent's tools began and ended
        self.parents, self.roles = [_NONE], [MAIN]

    def __len__(self) -> int:
        return len(self.begins_ns)

    def add_agent(self, parent: int, role: str) -> int:
        """Add an agent below another, and return its index."""
        self.parents.append(parent)
        self.roles.append(role)
        return len(self.parents) - 1

    def add(self, begin_ns: int, end_ns: int, agent: int = 0, pause_ns: int = UNKNOWN_NS) -> None:
        """Add a call of an agent, not before the last one; an end before its begin becomes its begin."""
        self.begins_ns.append(begin_ns)
        self.ends_ns.append(max(begin_ns, end_ns))
        self.agents.append(agent)
        self.pauses_ns.append(pause_ns)


class _Frontiers:
    """The ended calls that no other ended one waited for: of each agent alone, and of it with those below it.

    What waits for one of them waits for all that it replaced.
    """

    def __init__(self, parents: Sequence[int]) -> None:
        self._parents = parents
        self._own: list[deque[int]] = [deque() for _ in parents]  # by their ends
        self._below: list[dict[int, None]] = [{} for _ in parents]
        self._listed: dict[tuple[int, bool], list[int]] = {}  # until a call ends: many wait for one

    def end(self, call: int, agent: int, begin_ns: int, ends_ns: Sequence[int], before: list[int]) -> None:
        """Add a call that ended, in the order of ends, with what it waited for."""
        own = self._own[agent]
        while own and own[0] < call and ends_ns[own[0]] <= begin_ns:
            own.popleft()
        own.append(call)
        while agent != _NONE:
            below = self._below[agent]
            for earlier in before:
                below.pop(earlier, None)
            below[call] = None
            self._listed.pop((agent, True), None)
            self._listed.pop((agent, False), None)
            agent = self._parents[agent]

    def list_calls(self, agent: int, alone: bool) -> list[int]:
        """List an agent's frontier, ascending: of it alone, or with the agents below it."""
        if (agent, alone) not in self._listed:
            self._listed[agent, alone] = sorted(self._own[agent] if alone else self._below[agent])
        return self._listed[agent, alone]


def find_order(
    begins_ns: Sequence[int], ends_ns: Sequence[int], agents: Sequence[int], parents: Sequence[int]
) -> tuple[list[list[int]], list[int]]:
    """Find what each call of a session waited for, as ascending indices below its own, and each one's lane.

    Calls are in the order of their begins, from 0 ns up. Of two that began at once, and have no duration, the
    second waited for the first. A lane is that of the call of its agent that ended last before it, else a new
    one, numbered from 0. The work is that of sorting the ends, and of what is found. Raises UsageError where
    that is more than MOST_WAITS.
    """
    frontiers, callers = _Frontiers(parents), set(agents)
    started_by: dict[int, list[int]] = {_NONE: []}  # of each agent that has begun
    running: list[tuple[int, int]] = []  # a heap
    order, lanes = list[list[int]](), list[int]()
    free: list[list[int]] = [[] for _ in parents]  # lanes of each agent, by their ends
    waits, new_lanes = 0, count()
    for call, (begin_ns, end_ns, agent) in enumerate(zip(begins_ns, ends_ns, agents, strict=True)):
        while running and running[0][0] <= begin_ns:
            _, over = heapq.heappop(running)
            frontiers.end(over, agents[over], begins_ns[over], ends_ns, order[over])
            free[agents[over]].append(lanes[over])
        begun, path = agent, list[int]()
        while begun not in started_by:
            path.append(begun)
            begun = parents[begun]
        for each in reversed(path):
            parent = parents[each]
            found = [] if parent == _NONE else frontiers.list_calls(parent, parent in callers)
            started_by[each] = found or started_by[parent]
        order.append(frontiers.list_calls(agent, False) or started_by[agent])
        waits += len(order[-1])
        if waits > MOST_WAITS:
            raise _refuse_waits("one session")
        lanes.append(free[agent].pop() if free[agent] else next(new_lanes))
        heapq.heappush(running, (end_ns, call))
    return order, lanes


def _refuse_waits(owner: str) -> UsageError:
    return UsageError(
        f"--trace: calls of {owner} wait for more than {MOST_WAITS:,} others together, as where many agents "
        "begin after many calls that ran at once: take fewer sessions"
    )


class SessionTrees:
    """The order of the calls of many sessions, joined session after session.

    Begins may be rounded down to multiples of `grid_ns`. Ends are then too, where the order is found: a call
    that ended before another began is never after it.
    """

    def __init__(self, grid_ns: int = 1) -> None:
        self._grid_ns = grid_ns
        self._before: list[Int64] = []
        self._waits = 0  # numbers in all of these
        self._lanes: list[int] = []
        self._depths: list[int] = []
        self._roles: list[int] = []
        self._names: dict[str, int] = {MAIN: 0}
        self._tools_ns: list[int] = []
        self._has_tools = False
        self._delays_ns: list[int] = []

    def add(self, calls: RecordedCalls) -> list[int]:
        """Add a session with calls in the order of their begins, and return their lanes.

        Times count from the session's begin. A call's delay is its recorded pause if it waits for one call of
        its own agent alone; else the time from the latest end of those that it waits for, or of a root from
        the session's begin. The part of it counts as tools' in which any tool of its agent worked.
        """
        ends_ns = [end_ns // self._grid_ns * self._grid_ns for end_ns in calls.ends_ns]
        first, depths = len(self._before), [0]
        for parent in calls.parents[1:]:  # each was added before its agents
            depths.append(depths[parent] + 1)
        worked = {agent: _sum_spans(spans_ns) for agent, spans_ns in calls.tools_ns.items()}
        order, lanes = find_order(calls.begins_ns, ends_ns, calls.agents, calls.parents)
        self._waits += sum(map(len, order))
        if self._waits > MOST_WAITS:
            raise _refuse_waits("all sessions")
        shared: dict[int, Int64] = {}  # by the list that it is of: agents that are started at once have one
        for i, before in enumerate(order):
            if id(before) not in shared:
                shared[id(before)] = first + np.array(before, np.int64)
            self._before.append(shared[id(before)])
            agent, delay_ns = calls.agents[i], calls.pauses_ns[i]
            since_ns = max((calls.ends_ns[earlier] for earlier in before), default=calls.begins_ns[0])
            if delay_ns == UNKNOWN_NS or [calls.agents[earlier] for earlier in before] != [agent]:
                delay_ns = max(0, calls.begins_ns[i] - since_ns)
            tools_ns = 0
            if agent in worked:
                since, until = np.interp((since_ns, calls.begins_ns[i]), *worked[agent])
                tools_ns = max(round(until - since), 0)
            self._delays_ns.append(delay_ns)
            self._tools_ns.append(min(tools_ns, delay_ns))
            self._depths.append(depths[agent])
            self._roles.append(self._names.setdefault(calls.roles[agent], len(self._names)))
        self._has_tools = self._has_tools or bool(calls.tools_ns)
        self._lanes += lanes
        return lanes

    def make(self) -> tuple[Waits, Int64]:
        """Make the waits of all calls, with the tools' times if any are recorded, and the delays (ns)."""
        waits = make_waits(
            self._before,
            self._lanes,
            self._depths,
            self._roles,
            tuple(self._names),
            self._tools_ns if self._has_tools else None,
        )
        return waits, np.array(self._delays_ns, np.int64)


def reorder_waits(waits: Waits, order: Int64) -> Waits:
    """Return waits in another order, `order` each one's earlier index; those of a session keep theirs."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    chosen = waits.choose(order, np.zeros(len(order), np.int64))
    return replace(chosen, before=places[chosen.before])


def _sum_spans(spans_ns: Iterable[tuple[int, int]]) -> tuple[Float64, Float64]:
    """Return instants from 0 on, and how many ns of spans lie before each: a straight line between two."""
    instants_ns, sums_ns = [0], [0]
    for span_ns in sorted(spans_ns):
        begin_ns, end_ns = (max(at_ns, instants_ns[-1]) for at_ns in span_ns)
        instants_ns += [begin_ns, end_ns]
        sums_ns += [sums_ns[-1], sums_ns[-1] + end_ns - begin_ns]
    return np.array(instants_ns, np.float64), np.array(sums_ns, np.float64)
