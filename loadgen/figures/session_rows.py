"""Sessions: which session and turn each request of a run is, how each session ended, and what they took."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.figures.steady_state import find_slot_ends, mark_failed
from loadgen.plan.planned_requests import Waits
from loadgen.records.record import Records

_MOST_PLACES = 1000  # of ended sessions that are kept


class SessionRows(msgspec.Struct, frozen=True):
    """The sessions that a run began, in the plan's order, and which records are their turns.

    Session i has the requests `first[i]` to `first[i + 1]`, the latter not included: `first` is
    int64[sessions + 1]. Of each session exactly one of `finished`, `early` and `unfinished` holds.
    """

    session: Int64  # int64[requests], counted from 0 in the plan
    turn: Int64  # int64[requests], counted from 1
    numbers: Int64  # int64[sessions begun]: the plan's number of each
    first: Int64
    planned: Int64  # int64[sessions begun]: turns as planned
    finished: Bool  # every planned turn succeeded, or was cancelled and its session went on, as in a trace
    early: Bool  # a turn failed, or was cancelled as planned, and all others not sent waited for such ones
    unfinished: Bool  # the run ended before it
    ending: Int64  # int64[sessions begun]: the row of the turn that failed first, else of the last one

    def __len__(self) -> int:
        """How many sessions began."""
        return len(self.numbers)

    @property
    def sent(self) -> Int64:
        """The number of turns of each session that have a record, int64[sessions]."""
        return np.diff(self.first)

    @property
    def begins(self) -> Bool:
        """Marks the requests that are the first turn of a session, bool[requests]."""
        begins: Bool = self.turn == 1
        return begins

    @property
    def dropped(self) -> int:
        """The number of turns not sent because one that they wait for failed or was cancelled."""
        return int((self.planned - self.sent)[self.early].sum())

    def dropped_indices(self, records: Records) -> Int64:
        """List the plan indices of the turns that `dropped` counts, ascending."""
        counts = np.where(self.early, self.planned, 0)
        offsets = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        planned = np.repeat(records.index[self.first[:-1]], counts) + offsets  # a session's first is sent
        dropped: Int64 = np.setdiff1d(planned, records.index, assume_unique=True)
        return dropped

    def means(self, rows: Int64, values: Float64) -> tuple[Int64, Float64]:
        """Return each session's first of `rows` (ascending), and a copy of `values` with its mean there."""
        begins = np.flatnonzero(np.diff(self.session[rows], prepend=-1))
        means = values.copy()
        if len(rows):
            counts = np.diff(np.append(begins, len(rows)))
            means[rows[begins]] = np.add.reduceat(values[rows], begins) / counts
        return rows[begins], means

    def spans_ns(self, records: Records) -> tuple[Int64, Int64]:
        """Return, of each session that sent a turn, when it sent its first and when its last end was (ns)."""
        sent = records.sent
        rows = np.flatnonzero(sent)
        of = self.session[rows]
        begins = np.flatnonzero(np.diff(of, prepend=-1))
        if not len(rows):
            return rows, rows
        ends_ns: Int64 = np.maximum.reduceat(records.end_ns[rows], begins)
        return records.sent_ns[rows[begins]], np.maximum(ends_ns, records.sent_ns[rows[begins]])


def find_sessions(records: Records, session_turns: Sequence[int], waits: Waits | None = None) -> SessionRows:
    """Group records into sessions by each one's planned turns, `session_turns`, of which there are some.

    `waits` None: each turn waits for the one before it. Raises ValueError where the records hold a request
    that is of no session.
    """
    turns = np.array(session_turns, np.int64)
    ends = np.cumsum(turns)
    if len(records) and int(records.index[-1]) >= ends[-1]:
        raise ValueError(f"request {records.index[-1]} is beyond the {len(turns)} planned sessions")
    session = np.searchsorted(ends, records.index, side="right")
    first = np.flatnonzero(np.diff(session, prepend=-1))
    numbers, bounds = session[first], np.append(first, len(records))
    planned, ending = turns[numbers], bounds[1:] - 1
    if waits is None:
        failed = mark_failed(records.failures, ending)
        ok = records.ok[ending]
    else:
        ending, failed, ok = _judge_branches(records, (first, ending), planned, waits)
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
        ending=ending,
    )


def _judge_branches(
    records: Records, bounds: tuple[Int64, Int64], planned: Int64, waits: Waits
) -> tuple[Int64, Bool, Bool]:
    """Find how sessions with branches ended, of which `bounds` has the first and the last row of each.

    Returns the row of the turn that failed first, else of the last one, written over `bounds[1]`; whether a
    turn failed and all that is missing waited for such turns; and whether every record is a success.
    """
    first, ending = bounds
    count = len(waits.lanes)
    sent, followed = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    sent[records.index] = True
    followed[waits.before[np.repeat(sent, np.diff(waits.starts))]] = True
    went_on = records.cancelled & followed[records.index]  # as a trace's clients did
    failed = mark_failed(records.failures, np.arange(len(records))) & ~went_on
    others = ~records.ok & ~went_on
    cut = others & ~failed
    marked, accounted = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    marked[records.index[failed]] = True
    accounted[records.index[~cut]] = True
    missing = np.concatenate(([0], np.cumsum(~(accounted | waits.mark_dependents(marked)))))
    begins = records.index[first]
    early = (missing[begins + planned] == missing[begins]) & np.logical_or.reduceat(failed, first)
    ok = ~np.logical_or.reduceat(failed | cut, first)
    ends_ns = np.where(failed, records.end_ns, np.iinfo(np.int64).max)
    for at in np.flatnonzero(early).tolist():
        ending[at] = first[at] + int(np.argmin(ends_ns[first[at] : ending[at] + 1]))
    return ending, early, ok


def find_dry_ns(
    rows: SessionRows, records: Records, duration_ns: int, to_begin: int = 0, queues: int = 1
) -> int | None:
    """Find when the first slot of a closed loop had no session left to begin; None if unknown or never.

    A session takes up the slot that its first turn went over. A slot whose last session is over ran dry as
    that ended; if that failed, not before the last of its queue began, or before the time was up if fewer
    than `to_begin` did. Others were stopped after `duration_ns` of sending; 0: there was no such limit. Slot
    s takes from queue s mod `queues`. A single slot is never dry.
    """
    first, sent_ns = rows.first[:-1], records.sent_ns[records.sent]
    slots = records.slot[first]
    if not len(sent_ns) or (slots == slots[0]).all():
        return None
    begin_ns = int(sent_ns.min())
    ends_ns = np.maximum.reduceat(records.end_ns, first)
    # The last session of each slot is the one that began last: what is later in order replaces the earlier.
    order = np.argsort(records.intended_ns[first], kind="stable")
    latest = {int(slot): int(at) for slot, at in zip(slots[order], order, strict=True)}
    at = np.fromiter(latest.values(), np.int64, len(latest))
    over, began_ns = ~rows.unfinished[at], np.maximum(records.sent_ns[first], records.intended_ns[first])
    if duration_ns and len(rows) < to_begin:
        began_ns = np.full_like(began_ns, begin_ns + duration_ns)
    idle_ns = find_slot_ends(slots[at], ends_ns[at], rows.early[at], (slots, began_ns), queues)
    if duration_ns:
        idle_ns = np.where(over, idle_ns, np.maximum(idle_ns, begin_ns + duration_ns))
    elif not over.all():
        idle_ns = idle_ns[over]
    return int(idle_ns.min()) if len(idle_ns) else None


def list_early_places(
    session_turns: Sequence[int],
    records: Records,
    where: Callable[[int], str],
    waits: Waits | None = None,
) -> tuple[tuple[int, str], ...]:
    """List (plan index, place in the file) of the turns that ended their sessions early, 1000 at most.

    `where` writes the row and conversation of a plan index.
    """
    if not session_turns:
        return ()
    rows = find_sessions(records, session_turns, waits)
    ended = records.index[rows.ending[rows.early]][:_MOST_PLACES].tolist()
    return tuple((index, where(index)) for index in ended)
