"""Sessions: which session and turn each request of a run is, how each session ended, and what they took."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Float64, Int64, sum_exactly
from loadgen.base.clock import SECOND_NS
from loadgen.figures.distribution import Distribution
from loadgen.figures.record import Records
from loadgen.figures.steady_state import ends_without_waits, had_failed
from loadgen.transport.failure import FailureKind

_LONG = FailureKind.CONTEXT_LIMIT
_P99 = (99.0,)


class SessionRows(msgspec.Struct, frozen=True):
    """The sessions that a run began, in the plan's order, and the requests that are their turns.

    Session i has the requests `first[i]` to `first[i + 1]`, the latter not included: `first` is
    int64[sessions + 1]. Of each session exactly one of `finished`, `early` and `unfinished` holds.
    """

    session: Int64  # int64[requests], counted from 0 in the plan
    turn: Int64  # int64[requests], counted from 1
    numbers: Int64  # int64[sessions begun]: the plan's number of each
    first: Int64
    planned: Int64  # int64[sessions begun]: turns as planned
    finished: Bool  # every planned turn succeeded
    early: Bool  # a turn that failed, or was cancelled as planned, ended it
    unfinished: Bool  # the run ended before it

    def __len__(self) -> int:
        """How many sessions began."""
        return len(self.numbers)

    @property
    def sent(self) -> Int64:
        """The turns of each session that have a record, int64[sessions begun]."""
        return np.diff(self.first)

    @property
    def last(self) -> Int64:
        """The row of each session's last turn so far, int64[sessions begun]."""
        return self.first[1:] - 1

    @property
    def begins(self) -> Bool:
        """Which requests are the first turn of a session, bool[requests]."""
        begins: Bool = self.turn == 1
        return begins

    @property
    def dropped(self) -> int:
        """Turns that were not sent since an earlier one of their session failed."""
        return int((self.planned - self.sent)[self.early].sum())

    def dropped_indices(self, records: Records) -> Int64:
        """The plan indices of these turns, ascending."""
        next_index = records.index[self.last] + 1
        counts = np.where(self.early, self.planned - self.sent, 0)
        offsets = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        dropped: Int64 = np.repeat(next_index, counts) + offsets
        return dropped

    def means(self, rows: Int64, values: Float64) -> tuple[Int64, Float64]:
        """The first of some requests of each session, and values in which that has the mean of its own."""
        begins = np.flatnonzero(np.diff(self.session[rows], prepend=-1))
        means = values.copy()
        if len(rows):
            counts = np.diff(np.append(begins, len(rows)))
            means[rows[begins]] = np.add.reduceat(values[rows], begins) / counts
        return rows[begins], means

    def grown(self, records: Records) -> int:
        """How many sessions ended at the model's context limit, after a turn that succeeded."""
        kinds = (failure is not None and failure.kind is _LONG for failure in records.failures)
        return int((np.fromiter(kinds, np.bool_, len(records)) & (self.turn > 1)).sum())

    def spans_ns(self, records: Records) -> tuple[Int64, Int64]:
        """When each session that sent a turn sent its first one, and when its last one ended."""
        sent = records.sent
        rows = np.flatnonzero(sent)
        of = self.session[rows]
        begins = np.flatnonzero(np.diff(of, prepend=-1))
        if not len(rows):
            return rows, rows
        ends_ns: Int64 = np.maximum.reduceat(records.end_ns[rows], begins)
        return records.sent_ns[rows[begins]], np.maximum(ends_ns, records.sent_ns[rows[begins]])


def session_rows(records: Records, session_turns: Sequence[int]) -> SessionRows | None:
    """The sessions of these records; `session_turns` are the turns of each as planned, empty: there are none.

    Raises ValueError where the records hold a request that is of no session.
    """
    if not session_turns:
        return None
    turns = np.array(session_turns, np.int64)
    ends = np.cumsum(turns)
    if len(records) and int(records.index[-1]) >= ends[-1]:
        raise ValueError(f"request {records.index[-1]} is beyond the {len(turns)} planned sessions")
    session = np.searchsorted(ends, records.index, side="right")
    first = np.flatnonzero(np.diff(session, prepend=-1))
    numbers, bounds = session[first], np.append(first, len(records))
    planned, last = turns[numbers], bounds[1:] - 1
    ended = [records.failures[row] for row in last.tolist()]
    failed = had_failed(records.failures, last)
    ok = np.fromiter((f is None for f in ended), np.bool_, len(ended))
    finished = ok & (np.diff(bounds) == planned)
    return SessionRows(
        session=session,
        turn=records.index - (ends - turns)[session] + 1,
        numbers=numbers,
        first=bounds,
        planned=planned,
        finished=finished,
        early=failed,
        unfinished=~(finished | failed),
    )


def dry_ns(
    rows: SessionRows, records: Records, duration_ns: int, to_begin: int = 0, queues: int = 1
) -> int | None:
    """When the first slot of a closed loop had no session left to begin; None where that is not known.

    A slot whose last session is over ran dry as that ended; where that failed, not before the last of its
    queue began, or before the time was up where not all `to_begin` did. The others were stopped, after
    `duration_ns` of sending; 0: they were to go on. Slot s takes from the queue s mod `queues`. One slot
    alone has no tail, and is none.
    """
    slots, sent_ns = records.slot[rows.last], records.sent_ns[records.sent]
    if not len(sent_ns) or (slots == slots[0]).all():
        return None
    first, begin_ns = rows.first[:-1], int(sent_ns.min())
    ends_ns = np.maximum.reduceat(records.end_ns, first)
    # The last session of each slot is the one that began last: what is later in order replaces the earlier.
    order = np.argsort(records.intended_ns[first], kind="stable")
    latest = {int(slot): int(at) for slot, at in zip(slots[order], order, strict=True)}
    at = np.fromiter(latest.values(), np.int64, len(latest))
    over, began_ns = ~rows.unfinished[at], np.maximum(records.sent_ns[first], records.intended_ns[first])
    if duration_ns and len(rows) < to_begin:
        began_ns = np.full_like(began_ns, begin_ns + duration_ns)
    idle_ns = ends_without_waits(slots[at], ends_ns[at], rows.early[at], (slots, began_ns), queues)
    if duration_ns:
        idle_ns = np.where(over, idle_ns, np.maximum(idle_ns, begin_ns + duration_ns))
    elif not over.all():
        idle_ns = idle_ns[over]
    return int(idle_ns.min()) if len(idle_ns) else None


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
