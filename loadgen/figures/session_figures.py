"""Session figures: how many sessions began and how they ended, how long they took, and who was waited for."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import total
from loadgen.base.clock import SECOND_NS
from loadgen.figures.distribution import Distribution
from loadgen.figures.record import Records
from loadgen.figures.session_rows import SessionRows

_P99 = (99.0,)


class MeasuredPart(msgspec.Struct, frozen=True):
    """How much of a run its figures are of: up to when the first slot had no session left to begin."""

    seconds: float  # from the first request sent to that moment
    whole_s: float  # from there to the end of the last response
    left_out: int  # requests that ended later: they are in no figure of the block
    left_out_failed: int  # of these


class SessionFigures(msgspec.Struct, frozen=True):
    """The sessions of a run, all of it; durations are of finished ones, first send to last byte."""

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


def session_figures(rows: SessionRows, records: Records, planned: int) -> SessionFigures:
    """The figures of a run's sessions, of which `planned` were to be sent."""
    sent, turns = records.sent, rows.sent
    finished = np.repeat(rows.finished, turns)  # of each request
    begins_ns = records.sent_ns[rows.first[:-1]][rows.finished]
    lasting_ns = records.end_ns[rows.last][rows.finished] - begins_ns
    waited_ns = total((records.end_ns - records.sent_ns)[finished])
    spans_ns = rows.spans_ns(records)
    run_ns = int(spans_ns[1].max() - spans_ns[0].min()) if len(spans_ns[0]) else 0
    held_ns = total(spans_ns[1] - spans_ns[0])
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
        busy_share=waited_ns / total(lasting_ns) if total(lasting_ns) else None,
        duration=Distribution.of(lasting_ns, _P99),
        lateness=Distribution.of((records.sent_ns - records.intended_ns)[sent], _P99),
        mean_in_flight=held_ns / run_ns if run_ns else 0.0,
    )


def measured_part(records: Records, counted: Records) -> MeasuredPart:
    """How much of a run the counted ones of its requests are."""
    sent_ns = records.sent_ns[records.sent]
    begin_ns = int(sent_ns.min())
    late = len(records) - len(counted)
    return MeasuredPart(
        seconds=(int(counted.end_ns.max()) - begin_ns) / SECOND_NS,
        whole_s=(int(records.end_ns.max()) - begin_ns) / SECOND_NS,
        left_out=late,
        left_out_failed=len(records.failed) - len(counted.failed) if late else 0,
    )
