"""The critical path of a session: which requests it waited for, and where its time went."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Int64, sum_exactly
from loadgen.base.clock import SECOND_NS
from loadgen.plan.planned_requests import Waits
from loadgen.records.record import Records
from loadgen.report.run_directory import Result

_NONE = -1  # in place of a row


class CriticalPath(msgspec.Struct, frozen=True):
    """Where the time of finished sessions went, along each one's critical path.

    The path ends with the request that ends last, and goes back from each request to the one that ended last
    of those it waited for. A session's time runs from when its first request was due to its last byte: it is
    the sum of the four parts. Times are means of a session, in seconds.
    """

    sessions: int
    session_s: float
    requests: float  # of a session
    path_requests: float  # of these, on the path
    request_s: float  # sent → end
    tool_s: float | None  # recorded as tools' work; None: not recorded, and in the pauses
    pause_s: float  # the other delays
    queued_s: float  # due → sent
    role_s: dict[str, float]  # request_s by role
    all_tool_s: float | None  # tools' work before all requests of the session, on the path or not
    all_queued_s: float  # of all requests of the session


class _PathRows(msgspec.Struct, frozen=True):
    """The critical paths of a run's finished sessions, of which each array is int64 or bool[records]."""

    on_path: Bool
    finished: Bool  # of a finished session
    ready_ns: Int64  # when the last of those it waited for ended; of a root, when its session's first was due
    tool_ns: Int64  # of the delay before it

    def measure_pauses(self, records: Records) -> Int64:
        """Return the pause before each request, tools' work in it, in nanoseconds."""
        pauses_ns: Int64 = np.maximum(records.intended_ns - self.ready_ns, 0)
        return pauses_ns

    def measure_queued(self, records: Records) -> Int64:
        """Return due → sent of each request, due not before what it waited for had ended, in nanoseconds."""
        return records.sent_ns - np.maximum(records.intended_ns, self.ready_ns)


def measure_critical_path(run: Result) -> CriticalPath | None:
    """Measure where the time of finished sessions went; None if none finished or all have one line."""
    waits, sessions, records = run.waits, run.sessions, run.records
    if waits is None or sessions is None or not (count := int(sessions.finished.sum())):
        return None
    rows = run.derive(_find_paths)
    path, whole = rows.on_path, rows.finished
    seconds = count * SECOND_NS
    pauses_ns, queued_ns = rows.measure_pauses(records), rows.measure_queued(records)
    tools_ns, lasting_ns = np.minimum(rows.tool_ns, pauses_ns), records.end_ns - records.sent_ns
    roles = waits.roles[records.index]
    has_tools = waits.tool_ns is not None
    tool_ns = sum_exactly(tools_ns[path])
    first = sessions.first[:-1][sessions.finished]
    last_ns = np.maximum.reduceat(records.end_ns, sessions.first[:-1])[sessions.finished]
    return CriticalPath(
        sessions=count,
        session_s=sum_exactly(last_ns - records.intended_ns[first]) / seconds,
        requests=int(whole.sum()) / count,
        path_requests=int(path.sum()) / count,
        request_s=sum_exactly(lasting_ns[path]) / seconds,
        tool_s=tool_ns / seconds if has_tools else None,
        pause_s=(sum_exactly(pauses_ns[path]) - tool_ns) / seconds,
        queued_s=sum_exactly(queued_ns[path]) / seconds,
        role_s={
            name: sum_exactly(lasting_ns[path & (roles == number)]) / seconds
            for number, name in enumerate(waits.role_names)
            if (whole & (roles == number)).any()
        },
        all_tool_s=sum_exactly(tools_ns[whole]) / seconds if has_tools else None,
        all_queued_s=sum_exactly(queued_ns[whole]) / seconds,
    )


def mark_critical_requests(run: Result) -> Sequence[int]:
    """Return 1 for each request on the critical path of a finished session, else 0; of sessions that wait."""
    marks: list[int] = run.derive(_find_paths).on_path.astype(np.int64).tolist()
    return marks


def _find_paths(run: Result) -> _PathRows:
    """Find the critical paths of a run's finished sessions, whose facts say what requests wait for."""
    records, sessions, waits = run.records, run.sessions, run.waits
    assert sessions is not None
    assert waits is not None
    whole = np.repeat(sessions.finished, sessions.sent)
    row_of = np.full(len(waits.lanes), _NONE)
    row_of[records.index] = np.arange(len(records))
    latest = _find_latest(records, waits, row_of)
    begun_ns = np.repeat(records.intended_ns[sessions.first[:-1]], sessions.sent)
    ready_ns = np.where(latest == _NONE, begun_ns, records.end_ns[latest])
    on_path = np.zeros(len(records), np.bool_)
    # The request of each session that ends last, and from all of them at once back to their roots.
    order = np.lexsort((records.end_ns, sessions.session))
    at = order[sessions.first[1:] - 1][sessions.finished]
    while len(at):
        on_path[at] = True
        at = latest[at]
        at = at[at != _NONE]
    tool_ns = np.zeros(len(records), np.int64) if waits.tool_ns is None else waits.tool_ns[records.index]
    return _PathRows(on_path, whole, ready_ns, tool_ns)


def _find_latest(records: Records, waits: Waits, row_of: Int64) -> Int64:
    """Find the row of the request that ended last of those that each waited for, -1 without one."""
    counts = np.diff(waits.starts)[records.index]
    ends = np.cumsum(counts)
    rows = np.repeat(np.arange(len(records)), counts)
    at = np.arange(len(rows)) + np.repeat(waits.starts[records.index] - (ends - counts), counts)
    before = row_of[waits.before[at]]
    order = np.lexsort((np.where(before == _NONE, 0, records.end_ns[before]), rows))
    latest = np.full(len(records), _NONE)
    has = counts > 0
    latest[has] = before[order[ends[has] - 1]]
    return latest
