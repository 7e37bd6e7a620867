"""Trace sessions: the selected rows of a trace as sessions, whose requests wait for earlier answers."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.features.traces.call_order import reorder_waits
from loadgen.features.traces.trace_rows import TraceRows
from loadgen.features.traces.trace_schedule import TraceSelection
from loadgen.plan.planned_requests import Turns, Waits, make_waits
from loadgen.plan.profile import Profile

_NO_SESSIONS = "--trace-replay closed: the format of {file} has no sessions whose requests wait: leave it out"


class TraceSessions(msgspec.Struct, frozen=True):
    """The selected rows of a trace, session after session, and the sessions' turns."""

    picked: TraceSelection
    turns: Turns
    notes: tuple[str, ...] = ()

    @classmethod
    def make(
        cls, rows: TraceRows, picked: TraceSelection, profile: Profile, most: int | None
    ) -> TraceSessions:
        """Make the sessions of selected rows: --num-sessions of them, and `most` requests.

        They are repeated where the trace has fewer, unless --no-oversample is given. A row that waited for
        one which is left out waits for what that one waited for. Delays are divided by --speed-up, and then
        capped by --trace-idle-cap. Raises UsageError if the trace has no sessions.
        """
        if rows.waits is None or rows.delays_ns is None or rows.sessions is None:
            raise UsageError(_NO_SESSIONS.format(file=rows.file))
        waits, sessions = keep_rows(rows.waits, picked.places), rows.sessions[picked.places]
        order = np.argsort(sessions, kind="stable").astype(np.int64)
        counts = np.unique(sessions, return_counts=True)[1].astype(np.int64)
        begins = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        delays_ns = np.rint(rows.delays_ns[picked.places][order] / profile.speed_up).astype(np.int64)
        delays_ns[begins[:-1]] = 0
        if profile.trace_idle_cap is not None:
            delays_ns = np.minimum(delays_ns, round(profile.trace_idle_cap * SECOND_NS))
        turns = Turns(begins, delays_ns, number_lanes(reorder_waits(waits, order), begins))
        held = len(counts)
        sessions_sent = np.arange(_count_sessions(turns, profile, most))
        chosen = turns.list_chosen(sessions_sent % held)
        rounds = np.repeat(sessions_sent // held, counts[sessions_sent % held])
        turns = turns.choose(sessions_sent % held)
        if most is not None and most < int(turns.begins[-1]):
            turns = turns.cut(most)
        count = int(turns.begins[-1])
        places = order[chosen[:count]]
        selected = msgspec.structs.replace(
            picked,
            places=picked.places[places],
            input_lens=picked.input_lens[places],
            output_lens=picked.output_lens[places],
            rounds=rounds[:count] if rounds.any() else None,
        )
        return cls(selected, turns, tuple(_list_notes(rows, profile, held, len(turns))))


def _count_sessions(turns: Turns, profile: Profile, most: int | None) -> int:
    """Return the number of sessions: --num-sessions, else the trace's, or as many as have `most` requests.

    At most those of the trace with --no-oversample.
    """
    held = len(turns)
    sessions = profile.num_sessions or max(held, -(-(most or 0) // int(turns.begins[-1])) * held)
    return min(sessions, held) if profile.no_oversample else sessions


def _list_notes(rows: TraceRows, profile: Profile, held: int, sent: int) -> Iterator[str]:
    """Yield notes on sessions that are sent several times, or of which there are fewer than wanted."""
    if profile.num_sessions is not None and sent < profile.num_sessions:
        yield f"the trace has {held} of the {profile.num_sessions} sessions that were asked for"
    if sent > held and rows.messages is None:
        yield f"the {held} sessions of the trace are repeated, each time with prompts of their own"
    elif sent > held:
        yield f"the {held} sessions of the trace are repeated, with the prompts that it recorded"


def keep_rows(waits: Waits, places: Int64) -> Waits:
    """Return the waits of the rows at `places`, ascending, without the others.

    What a row that is left out waited for is waited for in its place.
    """
    count = len(waits.lanes)
    if len(places) == count:
        return waits
    index = np.full(count, -1)
    index[places] = np.arange(len(places))
    stand_ins: list[list[int]] = []
    before = []
    for row, own in enumerate(index.tolist()):
        found = sorted({place for earlier in waits.list_before(row) for place in stand_ins[earlier]})
        stand_ins.append([own] if own >= 0 else found)
        if own >= 0:
            before.append(found)
    tool_ns = None if waits.tool_ns is None else waits.tool_ns[places].tolist()
    lanes, depths, roles = (column[places].tolist() for column in (waits.lanes, waits.depths, waits.roles))
    return make_waits(before, lanes, depths, roles, waits.role_names, tool_ns)


def number_lanes(waits: Waits, begins: Int64) -> Waits:
    """Return waits with the lanes of each session numbered in the order of their first requests."""
    lanes = waits.lanes.copy()
    for begin, end in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True):
        numbers: dict[int, int] = {}
        own = lanes[begin:end].tolist()
        lanes[begin:end] = [numbers.setdefault(lane, len(numbers)) for lane in own]
    return msgspec.structs.replace(waits, lanes=lanes)
