"""Session figures: what a run's sessions and each turn of them got, and why sessions ended early."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from operator import attrgetter

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Int64, sum_exactly
from loadgen.base.clock import SECOND_NS
from loadgen.engines.refusals import TOOLS_UNREAD
from loadgen.facts.run_facts import Facts
from loadgen.figures.distribution import Distribution
from loadgen.figures.metrics import count_cached_tokens, measure_part
from loadgen.figures.per_request import PerRequest
from loadgen.figures.session_rows import SessionRows, find_sessions
from loadgen.records.record import Records
from loadgen.report.run_directory import Result, ResultPart
from loadgen.transport.failure import FailureKind

_MOST_ENDS = 1000  # that a result lists
_OWN_ROW = 4  # turns that have a row of their own; after them 5 to 8, 9 to 16, and so on
_P99 = (99.0,)
_WORDS = {
    FailureKind.CONTEXT_LIMIT: "context limit",
    FailureKind.USER_CANCELLED: "cancelled as planned",
    FailureKind.TIMEOUT: "timeout",
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


class TurnFigures(msgspec.Struct, frozen=True):
    """The figures of one turn or range of turns; latencies (ms) over successes, NaN without any."""

    first: int  # turn, counted from 1
    last: int
    requests: int
    failed: int
    mean_input_tokens: float | None  # by usage, else as planned; None: not known
    cached_tokens: int  # of successes that report them
    cached_of: int  # prompt tokens of these
    cached_share: float | None  # cached_tokens / cached_of, 0 to 1; None: no response reports any
    mean_output_tokens: float | None
    mean_ttft_ms: float
    median_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    mean_e2el_ms: float

    @property
    def name(self) -> str:
        """The turn, or range of turns, as `3` or `5–8`."""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


def divide_by_turn(run: Result) -> list[TurnFigures]:
    """Compute the figures of turns 1, 2, 3, 4, 5–8, 9–16, …; [] without sessions."""
    records, turns = run.counted, run.facts.session_turns
    if not turns:
        return []
    sessions = find_sessions(records, turns)
    each, turn = PerRequest.from_records(records, run.ask), sessions.turn
    rows, first = [], 1
    while first <= turn.max(initial=0):
        last = first if first <= _OWN_ROW else 2 * (first - 1)
        if (part := (turn >= first) & (turn <= last)).any():
            rows.append(_measure_turns((first, last), part, records, each))
        first = last + 1
    return rows


def _measure_turns(turns: tuple[int, int], part: Bool, records: Records, each: PerRequest) -> TurnFigures:
    """Compute the figures of a range of turns (first, last), whose requests `part` marks, bool[requests]."""
    ok = part & each.ok
    hits, looked_up, _ = count_cached_tokens(records, part)
    return TurnFigures(
        *turns,
        requests=int(part.sum()),
        failed=int((part & each.failed).sum()),
        mean_input_tokens=_compute_known_mean(each.input_tokens[ok]),
        cached_tokens=hits,
        cached_of=looked_up,
        cached_share=hits / looked_up if looked_up else None,
        mean_output_tokens=_compute_known_mean(each.output_tokens[ok]),
        **measure_part(TurnFigures, each, part),
    )


def _compute_known_mean(counts: Int64) -> float | None:
    """Return the mean of the counts that are 0 or more; None without any."""
    known = counts[counts >= 0]
    return float(np.mean(known)) if len(known) else None


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
    waited_ns = sum_exactly((records.end_ns - records.sent_ns)[finished])
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


PARTS: Mapping[str, ResultPart] = {
    "by_turn": ResultPart(attrgetter("session_turns"), divide_by_turn),
    "sessions": ResultPart(attrgetter("session_turns"), summarize_sessions),
}
