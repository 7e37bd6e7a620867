"""Session figures of a stored run: which requests they are of, by turn, and why sessions ended early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from loadgen.engines import refusals
from loadgen.figures.part_figures import TurnFigures, turn_figures
from loadgen.figures.per_request import MetricOptions, PerRequest
from loadgen.figures.record import Records
from loadgen.figures.session_rows import (
    MeasuredPart,
    SessionFigures,
    SessionRows,
    dry_ns,
    measured_part,
    session_figures,
    session_rows,
)
from loadgen.transport.failure import Failure, FailureKind
from loadgen.verdict.run_facts import Facts

_MOST_PLACES = 1000  # of ended sessions that facts hold
_MOST_ENDS = 1000  # that a result lists
_WORDS = {
    FailureKind.CONTEXT_LIMIT: "context limit",
    FailureKind.USER_CANCELLED: "cancelled as planned",
    FailureKind.TIMEOUT: "timeout",
}


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
    """What a result holds of its sessions."""

    figures: SessionFigures
    measured: MeasuredPart | None  # None: the figures are of the whole run
    ended_early: dict[str, int]  # by reason, most frequent first
    ends: list[EarlyEnd]  # the first ones, in the plan's order
    bodies_digest: str


def select_counted(facts: Facts, records: Records) -> Records:
    """The requests that a run's figures are of.

    Of sessions in a closed loop those that ended before the first slot had no session left to begin: what
    follows is under less and less load. All, where the run was cut short, or nothing succeeded before that.
    """
    rows = session_rows(records, facts.session_turns)
    if rows is None or facts.held_concurrency is None or facts.partial or facts.lost:
        return records
    until_ns = dry_ns(rows, records, facts.profile.duration_ns, facts.own_sessions, facts.queues)
    if until_ns is None:
        return records
    within = records.end_ns <= until_ns
    return records.only(within) if (within & records.ok).any() else records


def compute_by_turn(facts: Facts, records: Records, ask: MetricOptions) -> list[TurnFigures]:
    """The figures of each turn, or range of turns; empty where there are no sessions."""
    rows = session_rows(records, facts.session_turns)
    if rows is None:
        return []
    return turn_figures(rows.turn, records, PerRequest.of(records, ask))


def summarize_sessions(facts: Facts, records: Records, of: Records) -> StoredSessions | None:
    """The sessions of a run whose figures are `of` these records; None: it has none."""
    rows = session_rows(records, facts.session_turns)
    if rows is None:
        return None
    ends = find_early_ends(facts, records, rows)
    return StoredSessions(
        figures=session_figures(rows, records, facts.own_sessions),
        measured=None if of is records else measured_part(records, of),
        ended_early=dict(Counter(end.reason for end in ends).most_common()),
        ends=ends[:_MOST_ENDS],
        bodies_digest=facts.bodies_digest,
    )


def find_early_ends(facts: Facts, records: Records, rows: SessionRows) -> list[EarlyEnd]:
    """The sessions that a turn ended early, in the plan's order."""
    places = dict(facts.turn_places)
    ends = []
    for at in np.flatnonzero(rows.early).tolist():
        row = int(rows.last[at])
        failure, index = records.failures[row], int(records.index[row])
        if failure is not None:
            number, turn = int(rows.numbers[at]), int(rows.turn[row])
            place = places.get(index, "")
            ends.append(EarlyEnd(number, turn, index, _name_reason(failure), place, failure.detail))
    return ends


def _name_reason(failure: Failure) -> str:
    return _WORDS.get(failure.kind) or refusals.name_refused_part(failure.detail) or failure.kind.value


def find_places(
    session_turns: Sequence[int], records: Records, where: Callable[[int], str]
) -> tuple[tuple[int, str], ...]:
    """The plan index and the place of each turn that ended its session early, of the first ones.

    `where` is the row and conversation of a plan index, in words.
    """
    rows = session_rows(records, session_turns)
    if rows is None:
        return ()
    ended = records.index[rows.last[rows.early]][:_MOST_PLACES].tolist()
    return tuple((index, where(index)) for index in ended)
