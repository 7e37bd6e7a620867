"""Session figures: how many sessions of a run finished, what they took, and why some ended early."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from operator import attrgetter

import msgspec
import numpy as np

from loadgen.base.arrays import Int64, sum_exactly
from loadgen.base.clock import SECOND_NS
from loadgen.engines.refusals import TOOLS_UNREAD
from loadgen.facts.run_facts import Facts
from loadgen.features.sessions.critical_path import mark_critical_requests, measure_critical_path
from loadgen.features.sessions.turn_figures import divide_by_branch, divide_by_turn, list_depths, list_roles
from loadgen.figures.distribution import Distribution
from loadgen.figures.session_rows import SessionRows
from loadgen.records.record import Records
from loadgen.report.run_directory import RequestColumn, Result, ResultPart
from loadgen.transport.failure import FailureKind

_MOST_ENDS = 1000  # that a result lists
_P99 = (99.0,)
_WORDS = {
    FailureKind.CONTEXT_LIMIT: "context limit",
    FailureKind.USER_CANCELLED: "cancelled as planned",
    FailureKind.TIMEOUT: "timeout",
    FailureKind.UNNAMED: "an answer without an id",
}
# What a chat template or a server's settings refuse of a conversation, and its name.
_REFUSED_PARTS = {
    "tools refused": TOOLS_UNREAD,
    "system role refused": r"system (?:role|message)s? (?:is |are )?not supported|(?:not|n't) support "
    r"(?:the )?system (?:role|message|prompt)",
    "order of roles refused": r"roles must alternate|unexpected role",
}


class SessionFigures(msgspec.Struct, frozen=True):
    """Counts and durations of a run's sessions; durations, of finished ones, from first send to last byte."""

    planned: int  # as far as this run was to send them
    begun: int
    finished: int  # every planned turn succeeded
    ended_early: int  # a turn failed, or was cancelled as planned
    unfinished: int  # the run ended before them
    turns_not_sent: int  # of those that ended early
    mean_turns: float | None  # sent, of each session that began
    least_turns: int
    most_turns: int
    mean_planned_turns: float | None  # of the sessions that began
    duration: Distribution
    busy_share: float | None  # time with a turn sent and not answered / duration, of finished ones, 0 to 1
    lateness: Distribution  # sent - intended, of every turn that was sent
    mean_in_flight: float  # Σ (last end - first send) / the run's duration (Little)


class MeasuredPart(msgspec.Struct, frozen=True):
    """How much of a run its figures cover: until the first slot had no session left to begin."""

    seconds: float  # from the first request sent to that moment
    whole_s: float  # from there to the end of the last response
    left_out: int  # requests that ended later: they are in no figure of the block
    left_out_failed: int  # of these


class EarlyEnd(msgspec.Struct, frozen=True):
    """The turn that ended a session before its planned end."""

    session: int  # counted from 0 in the plan
    turn: int  # counted from 1
    index: int  # of the request in the plan
    reason: str  # in a few words
    place: str  # the row and conversation of the data file; "": not known
    detail: str  # the failure's

    def __str__(self) -> str:
        return f"session {self.session}, turn {self.turn}{f' ({self.place})' if self.place else ''}"


class StoredSessions(msgspec.Struct, frozen=True):
    """The sessions of a run as its result stores them."""

    figures: SessionFigures
    measured: MeasuredPart | None  # None: the figures are of the whole run
    ended_early: dict[str, int]  # by reason, most frequent first
    ends: list[EarlyEnd]  # the first ones, in the plan's order
    bodies_digest: str


def summarize_sessions(run: Result) -> StoredSessions | None:
    """Summarize the sessions of a run, with the first 1,000 early ends; None without sessions."""
    facts, records, rows = run.facts, run.records, run.sessions
    if rows is None:
        return None
    ends = _list_early_ends(facts, records, rows)
    return StoredSessions(
        figures=measure_sessions(rows, records, facts.own_sessions),
        measured=None if run.counted is records else measure_counted_part(records, run.counted),
        ended_early=dict(Counter(end.reason for end in ends).most_common()),
        ends=ends[:_MOST_ENDS],
        bodies_digest=facts.bodies_digest,
    )


def measure_sessions(rows: SessionRows, records: Records, planned: int) -> SessionFigures:
    """Compute the figures of a run's sessions, of which `planned` were to be sent."""
    sent, turns = records.sent, rows.sent
    finished = np.repeat(rows.finished, turns)  # of each request
    begins_ns = records.sent_ns[rows.first[:-1]][rows.finished]
    ends_ns = np.maximum.reduceat(records.end_ns, rows.first[:-1]) if len(rows) else records.end_ns
    lasting_ns = ends_ns[rows.finished] - begins_ns
    waited_ns = _measure_busy(rows.session[finished], records.sent_ns[finished], records.end_ns[finished])
    spans_ns = rows.spans_ns(records)
    run_ns = int(spans_ns[1].max() - spans_ns[0].min()) if len(spans_ns[0]) else 0
    held_ns = sum_exactly(spans_ns[1] - spans_ns[0])
    return SessionFigures(
        planned=planned,
        begun=len(rows),
        finished=int(rows.finished.sum()),
        ended_early=int(rows.early.sum()),
        unfinished=int(rows.unfinished.sum()),
        turns_not_sent=rows.dropped,
        mean_turns=float(turns.mean()) if len(rows) else None,
        least_turns=int(turns.min()) if len(rows) else 0,
        most_turns=int(turns.max(initial=0)),
        mean_planned_turns=float(rows.planned.mean()) if len(rows) else None,
        busy_share=waited_ns / sum_exactly(lasting_ns) if sum_exactly(lasting_ns) else None,
        duration=Distribution.from_ns(lasting_ns, _P99),
        lateness=Distribution.from_ns((records.sent_ns - records.intended_ns)[sent], _P99),
        mean_in_flight=held_ns / run_ns if run_ns else 0.0,
    )


def _measure_busy(session: Int64, sent_ns: Int64, end_ns: Int64) -> int:
    """Measure how long sessions had a request on its way, in nanoseconds; `session` ascends."""
    if not len(session):
        return 0
    order = np.lexsort((sent_ns, session))
    sent_ns, end_ns = sent_ns[order], end_ns[order]
    begins = np.diff(session, prepend=-1) != 0
    # Laid one after another, so that no session lies in the time of another one.
    spans_ns = np.maximum.reduceat(end_ns, np.flatnonzero(begins)) - sent_ns[begins]
    laid_ns = (np.cumsum(spans_ns) - spans_ns - sent_ns[begins])[np.cumsum(begins) - 1]
    sent_ns, end_ns = sent_ns + laid_ns, np.maximum.accumulate(end_ns + laid_ns)
    return sum_exactly(end_ns - np.maximum(sent_ns, np.minimum(np.append(0, end_ns[:-1]), end_ns)))


def measure_counted_part(records: Records, counted: Records) -> MeasuredPart:
    """Return the seconds that the `counted` records cover, those of the run, and the requests left out."""
    sent_ns = records.sent_ns[records.sent]
    begin_ns = int(sent_ns.min())
    late = len(records) - len(counted)
    return MeasuredPart(
        seconds=(int(counted.end_ns.max()) - begin_ns) / SECOND_NS,
        whole_s=(int(records.end_ns.max()) - begin_ns) / SECOND_NS,
        left_out=late,
        left_out_failed=len(records.failed) - len(counted.failed) if late else 0,
    )


def _list_early_ends(facts: Facts, records: Records, rows: SessionRows) -> list[EarlyEnd]:
    """List the sessions that a turn ended early, in the plan's order."""
    places = dict(facts.turn_places)
    ends = []
    for at in np.flatnonzero(rows.early).tolist():
        row = int(rows.ending[at])
        failure, index = records.failures[row], int(records.index[row])
        if failure is not None:
            number, turn = int(rows.numbers[at]), int(rows.turn[row])
            place = places.get(index, "")
            reason = _WORDS.get(failure.kind) or name_refused_part(failure.detail) or failure.kind.value
            ends.append(EarlyEnd(number, turn, index, reason, place, failure.detail))
    return ends


def name_refused_part(message: str) -> str:
    """Name what an error refuses of a conversation (system role, tools, …); "" if unknown."""
    parts = (name for name, words in _REFUSED_PARTS.items() if re.search(words, message, re.IGNORECASE))
    return next(parts, "")


_HAS_SESSIONS, _HAS_BRANCHES = attrgetter("session_turns"), attrgetter("session_waits")
PARTS: Mapping[str, ResultPart] = {
    "by_turn": ResultPart(_HAS_SESSIONS, divide_by_turn),
    "by_branch": ResultPart(_HAS_BRANCHES, divide_by_branch),
    "sessions": ResultPart(_HAS_SESSIONS, summarize_sessions),
    "critical_path": ResultPart(_HAS_BRANCHES, measure_critical_path),
}
COLUMNS = {
    "after turn": (
        RequestColumn("role", "string", "of agents: main, or its sub-agent's", _HAS_BRANCHES, list_roles),
        RequestColumn("depth", "int64", "of agents: 0 on the main line", _HAS_BRANCHES, list_depths),
        RequestColumn(
            "critical",
            "int64",
            "of agents: 1 on the critical path of a finished session, else 0",
            _HAS_BRANCHES,
            mark_critical_requests,
        ),
    )
}
