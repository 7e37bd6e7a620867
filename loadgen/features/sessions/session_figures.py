"""Session figures: how many sessions of a run finished, what they and their turns took, and this in words.

Each session has a critical path: which requests it waited for, and where its time went.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Int64, sum_exactly
from loadgen.base.clock import SECOND_NS
from loadgen.base.tables import Table
from loadgen.base.text import cut_end, format_count, list_first
from loadgen.engines.refusals import TOOLS_UNREAD
from loadgen.figures.distribution import Distribution
from loadgen.figures.metrics import count_cached_tokens, measure_part
from loadgen.figures.per_request import PerRequest
from loadgen.figures.session_rows import SessionRows, find_sessions
from loadgen.records.record import Records
from loadgen.report.run_directory import Result
from loadgen.report.section import PartColumn, ReportOptions, make_part_table
from loadgen.transport.failure import FailureKind

_OWN_ROW = 4  # turns that have a row of their own; after them 5 to 8, 9 to 16, and so on
_P99 = (99.0,)
_NONE = -1  # in place of a row
_MOST_ENDS = 1000  # that a result lists
_WORDS = {
    FailureKind.CONTEXT_LIMIT: "context limit",
    FailureKind.USER_CANCELLED: "cancelled as planned",
    FailureKind.TIMEOUT: "timeout",
    FailureKind.UNNAMED: "a response without an id",
}
# A chat template or a server's settings refuse these parts of a conversation, each with its name.
_REFUSED_PARTS = {
    "tools refused": TOOLS_UNREAD,
    "system role refused": r"system (?:role|message)s? (?:is |are )?not supported|(?:not|n't) support "
    r"(?:the )?system (?:role|message|prompt)",
    "order of roles refused": r"roles must alternate|unexpected role",
}
_TURN_COLUMNS = (
    PartColumn("requests", "requests", short="reqs"),
    PartColumn("failed", "failed", short="fail"),
    PartColumn("mean_input_tokens", "input tokens", short="input"),
    PartColumn("cached_share", "cached"),
    PartColumn("mean_output_tokens", "output tokens", short="output"),
    PartColumn("mean_ttft_ms", "TTFT ms", 1),
    PartColumn("median_ttft_ms", "P50", 1),
    PartColumn("p99_ttft_ms", "P99", 1),
    PartColumn("mean_tpot_ms", "TPOT ms", 1, "TPOT"),
    PartColumn("mean_e2el_ms", "E2EL ms", 1),
)
_BRANCH_COLUMNS = (  # more would not be seen without scrolling
    *_TURN_COLUMNS[:6],
    _TURN_COLUMNS[7],
    _TURN_COLUMNS[9],
    PartColumn("mean_queued_ms", "queued ms", 1, "queued"),
)
_MOST_LISTED, _MOST_IN_SHORT = 20, 2  # of early ends that are named, for each reason
_MOST_DETAIL = 150  # characters


class PartFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of some requests of sessions; latencies (ms) over successes, NaN without any."""

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


class TurnFigures(PartFigures, frozen=True, kw_only=True):
    """The figures of one turn or range of turns."""

    first: int  # turn, counted from 1
    last: int

    @property
    def name(self) -> str:
        """The turn, or range of turns, as `3` or `5–8`."""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


class BranchFigures(PartFigures, frozen=True, kw_only=True):
    """The figures of the requests of one depth and role."""

    depth: int  # 0 the main line, 1 its sub-agents, 2 theirs
    role: str  # "main", "subagent", or as the recording names it
    mean_queued_ms: float  # sent - due, of those that were sent; NaN without any
    p99_queued_ms: float

    @property
    def name(self) -> str:
        """The role, and how deep it lies where that is not 0, as `explore (2)`."""
        return f"{self.role} ({self.depth})" if self.depth else self.role


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
            rows.append(TurnFigures(first=first, last=last, **_measure_requests(part, records, each)))
        first = last + 1
    return rows


def divide_by_branch(run: Result) -> list[BranchFigures]:
    """Compute the figures of each depth and role, the main line first; [] where sessions have one line."""
    waits, records = run.waits, run.counted
    if waits is None:
        return []
    each = PerRequest.from_records(records, run.ask)
    depths, roles = waits.depths[records.index], waits.roles[records.index]
    queued_ns = records.sent_ns - records.intended_ns
    rows = []
    for depth, role in sorted(set(zip(depths.tolist(), roles.tolist(), strict=True))):
        part = (depths == depth) & (roles == role)
        queued = Distribution.from_ns(queued_ns[part & records.sent], _P99)
        rows.append(
            BranchFigures(
                depth=depth,
                role=waits.role_names[role],
                mean_queued_ms=queued.mean_ms,
                p99_queued_ms=queued.p99_ms,
                **_measure_requests(part, records, each),
            )
        )
    return rows


def list_roles(run: Result) -> Sequence[str]:
    """List the role of each request, as the recording names it, of a run whose sessions have branches."""
    waits = run.waits
    assert waits is not None
    return [waits.role_names[role] for role in waits.roles[run.records.index].tolist()]


def list_depths(run: Result) -> Sequence[int]:
    """List how deep each request lies, 0 on the main line, of a run whose sessions have branches."""
    waits = run.waits
    assert waits is not None
    depths: list[int] = waits.depths[run.records.index].tolist()
    return depths


def _measure_requests(part: Bool, records: Records, each: PerRequest) -> dict[str, Any]:
    """Compute the fields of PartFigures over the requests in `part`."""
    ok = part & each.ok
    hits, looked_up, _ = count_cached_tokens(records, part)
    return {
        "requests": int(part.sum()),
        "failed": int((part & each.failed).sum()),
        "mean_input_tokens": _compute_known_mean(each.input_tokens[ok]),
        "cached_tokens": hits,
        "cached_of": looked_up,
        "cached_share": hits / looked_up if looked_up else None,
        "mean_output_tokens": _compute_known_mean(each.output_tokens[ok]),
        **measure_part(PartFigures, each, part),
    }


def _compute_known_mean(counts: Int64) -> float | None:
    known = counts[counts >= 0]
    return float(np.mean(known)) if len(known) else None


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


def measure_critical_path(run: Result) -> CriticalPath | None:
    """Measure where the time of finished sessions went; None if none finished or all have one line."""
    waits, sessions, records = run.waits, run.sessions, run.records
    if waits is None or sessions is None or not (count := int(sessions.finished.sum())):
        return None
    path, whole, ready_ns, tools_ns = run.derive(_find_paths)
    seconds = count * SECOND_NS
    pauses_ns = np.maximum(records.intended_ns - ready_ns, 0)  # before each request, tools' work in it
    # Due → sent; it is due not before what it waited for had ended.
    queued_ns = records.sent_ns - np.maximum(records.intended_ns, ready_ns)
    tools_ns, lasting_ns = np.minimum(tools_ns, pauses_ns), records.end_ns - records.sent_ns
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
    """Return 1 for each request on a finished session's critical path, else 0; of a run that has waits."""
    marks: list[int] = run.derive(_find_paths)[0].astype(np.int64).tolist()
    return marks


def _find_paths(run: Result) -> tuple[Bool, Bool, Int64, Int64]:
    """Find the critical paths of a run's finished sessions, as columns of its records.

    Which are on a path; which are of a finished session; when the last of those that each waited for ended,
    of a root when its session's first was due; and tools' part of the delay before it (ns).
    """
    records, sessions, waits = run.records, run.sessions, run.waits
    assert sessions is not None
    assert waits is not None
    whole = np.repeat(sessions.finished, sessions.sent)
    row_of = np.full(len(waits.lanes), _NONE)
    row_of[records.index] = np.arange(len(records))
    # Each request gets the predecessor that ended last; a root has none.
    counts = np.diff(waits.starts)[records.index]
    ends = np.cumsum(counts)
    rows = np.repeat(np.arange(len(records)), counts)
    place = np.arange(len(rows)) + np.repeat(waits.starts[records.index] - (ends - counts), counts)
    before = row_of[waits.before[place]]
    order = np.lexsort((np.where(before == _NONE, 0, records.end_ns[before]), rows))
    latest, waited = np.full(len(records), _NONE), counts > 0
    latest[waited] = before[order[ends[waited] - 1]]
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
    return on_path, whole, ready_ns, tool_ns


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
    places, ends = dict(facts.turn_places), []
    for at in np.flatnonzero(rows.early).tolist():
        row = int(rows.ending[at])
        failure, index = records.failures[row], int(records.index[row])
        if failure is not None:
            number, turn = int(rows.numbers[at]), int(rows.turn[row])
            reason = _WORDS.get(failure.kind) or name_refused_part(failure.detail) or failure.kind.value
            ends.append(EarlyEnd(number, turn, index, reason, places.get(index, ""), failure.detail))
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


def name_refused_part(message: str) -> str:
    """Name what an error refuses of a conversation (system role, tools, …); "" if unknown."""
    parts = (name for name, words in _REFUSED_PARTS.items() if re.search(words, message, re.IGNORECASE))
    return next(parts, "")


def describe_counted_part(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on how much of the run its figures cover, if not all."""
    sessions = result.derive(summarize_sessions)
    if sessions is None or sessions.measured is None:
        return
    part = sessions.measured
    failed = f", {part.left_out_failed} of them failed" if part.left_out_failed else ""
    yield (
        f"measured until the first slot ran dry: {part.seconds:.1f} of {part.whole_s:.1f} s; then it had no "
        f"session left to begin. {format_count(part.left_out, 'turn')} ended later{failed}: only the "
        "throughput counts them, by their work until then"
    )


def describe_sessions(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on the sessions' counts and early ends; unless `options.short`, on times and bodies too."""
    sessions = result.derive(summarize_sessions)
    if sessions is None:
        return
    yield _describe_counts(result, sessions.figures)
    if not options.short:
        duration, late = sessions.figures.duration, sessions.figures.lateness
        if duration.n:
            waiting, share = "", sessions.figures.busy_share
            if share is not None:
                between = f"{100 * (1 - share):.0f} % between turns"
                waiting = f"; {100 * share:.0f} % of it waiting for the server, {between}"
            mean_s, median_s, p99_s = (
                value / 1e3 for value in (duration.mean_ms, duration.median_ms, duration.p99_ms)
            )
            spread = f"{mean_s:.2f} s mean, {median_s:.2f} P50, {p99_s:.2f} P99"
            yield f"session duration: {spread} ({duration.n} finished){waiting}"
        if late.n:
            spread = f"{late.median_ms:.2f} P50, {late.p99_ms:.2f} P99, {late.max_ms:.2f} ms max"
            yield f"turns sent after their time: {spread} (previous response's end + delay → sent)"
    for reason, count in sessions.ended_early.items():
        ends = [end for end in sessions.ends if end.reason == reason]
        most = _MOST_IN_SHORT if options.short else _MOST_LISTED
        where = list_first([*map(str, ends), *[""] * (count - len(ends))], most)
        detail = cut_end(next((end.detail for end in ends if end.detail), ""), _MOST_DETAIL)
        first = f"; the first: {detail}" if detail else ""
        yield f"sessions ended early: {count} × {reason}: {where}{first}"
    if sessions.bodies_digest and not options.short:
        yield f"sent bodies: digest {sessions.bodies_digest} (of all, in any order, without the model's name)"


def make_turn_table(result: Result) -> Table:
    """Make the table of the figures by turn; without rows if there are no sessions."""
    rows = ((row.name, row) for row in result.derive(divide_by_turn))
    return make_part_table("Turn", "by_turn", _TURN_COLUMNS, rows)


def make_branch_table(result: Result) -> Table:
    """Make the table of the figures by depth and role, the main line first; empty without branches."""
    rows = ((row.name, row) for row in result.derive(divide_by_branch))
    return make_part_table("Branch", "by_branch", _BRANCH_COLUMNS, rows)


def describe_critical_path(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on where the time of finished sessions went; nothing without branches."""
    path = result.derive(measure_critical_path)
    if path is None:
        return
    parts = {"in requests": path.request_s, "in tools": path.tool_s, "in pauses": path.pause_s,
             "queued": path.queued_s}  # fmt: skip
    shares = ", ".join(
        f"{_format_share(seconds, path)} {name}" for name, seconds in parts.items() if seconds is not None
    )
    finished = format_count(path.sessions, "finished session")
    yield (
        f"critical path: {_format_mean(path.path_requests)} of {_format_mean(path.requests)} requests and "
        f"{path.session_s:.2f} s, means of {finished}: {shares}"
    )
    roles = ", ".join(f"{name} {_format_share(seconds, path)}" for name, seconds in path.role_s.items())
    yield f"critical path by role: {roles} of the session's time in its requests"
    if path.all_tool_s is not None and path.tool_s is not None:
        on_path = f"{path.tool_s:.2f} s of it on the critical path"
        yield f"time in tools: {path.all_tool_s:.2f} s a session, {on_path}"
    yield (
        f"time queued: {path.all_queued_s:.3f} s a session, {path.queued_s:.3f} s of it on the critical path "
        "(due → sent)"
    )


def describe_unsent_turns(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on turns not sent because an earlier one failed; nothing if none was."""
    sessions = result.derive(summarize_sessions)
    if sessions is not None and sessions.figures.turns_not_sent:
        ended = format_count(sessions.figures.ended_early, "session")
        turns = format_count(sessions.figures.turns_not_sent, "later turn")
        yield f"not sent: {turns} of {ended} that ended early"


def describe_in_flight(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on the mean numbers of sessions and requests in flight; nothing without sessions."""
    if (sessions := result.derive(summarize_sessions)) is not None:
        facts, held = result.facts, sessions.figures.mean_in_flight
        of = "" if facts.held_concurrency is None else f" of {facts.held_concurrency}"
        most = facts.profile.max_requests
        limit = "" if most is None else f" of {most} at most (--max-requests)"
        rest = "" if facts.session_waits else " (the others between two turns)"
        requests = f"{result.whole.mean_concurrency:.2f} requests in flight{limit}"
        yield f"concurrency: {held:.2f} sessions on average{of}, {requests}{rest}"


def _describe_counts(result: Result, figures: SessionFigures) -> str:
    of = f" of {figures.planned}" if figures.planned != figures.begun else ""
    facts, rate_per_s, pace = result.facts, result.facts.profile.user_rate, ""
    if facts.profile.users and rate_per_s:
        pace = f" by {format_count(facts.profile.users, 'user')}, {rate_per_s:g} turns/s each"
    elif math.isfinite(facts.planned_rate_per_s):
        pace = f" at {facts.planned_rate_per_s:g}/s"
    parts = [f"{figures.begun} begun{of}{pace}", f"{figures.finished} finished"]
    if figures.ended_early:
        parts.append(f"{figures.ended_early} ended early")
    if figures.unfinished:
        parts.append(f"{figures.unfinished} unfinished, since the run ended")
    line = f"sessions: {', '.join(parts)}"
    if figures.mean_turns is None:
        return line
    mean = _format_mean(figures.mean_turns)
    return f"{line}; {mean} turns on average, {figures.least_turns} to {figures.most_turns}"


def _format_share(seconds: float, path: CriticalPath) -> str:
    return f"{100 * seconds / path.session_s:.1f} %" if path.session_s else "-"


def _format_mean(mean: float) -> str:
    return f"{mean:,.0f}" if mean >= 1000 else f"{mean:.4g}"
