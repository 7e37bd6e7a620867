"""Session lines: what became of the sessions of a run, what its figures are of, and the table by turn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from loadgen.base.text import align_cells, cut_end, format_cell_ms, format_count, list_first
from loadgen.features.sessions.session_figures import (
    BranchFigures,
    CriticalPath,
    PartFigures,
    SessionFigures,
    StoredSessions,
    TurnFigures,
    divide_by_branch,
    divide_by_turn,
    measure_critical_path,
    summarize_sessions,
)
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions, Room, Section

_TITLES = ("Turn", "reqs", "fail", "input", "cached", "output", "TTFT ms", "P50", "P99", "TPOT", "E2EL ms")
_WIDTHS = (-7, 5, 4, 6, 6, 6, 7, 7, 7, 6, 8)
_BRANCH_TITLES = ("Branch", *_TITLES[1:7], "P99", "E2EL ms", "queued")
_BRANCH_WIDTHS = (-16, 5, 4, 6, 6, 6, 7, 7, 7, 7)
_MOST_ENDS, _MOST_IN_SHORT = 20, 2  # of early ends that are named, for each reason
_MOST_DETAIL = 150  # characters


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
    """Yield lines on the sessions' counts, times, early ends and bodies; nothing without sessions."""
    sessions = result.derive(summarize_sessions)
    if sessions is None:
        return
    yield _describe_counts(result, sessions.figures)
    yield from _list_times(sessions.figures)
    yield from _list_ends(sessions, _MOST_ENDS)
    if sessions.bodies_digest:
        yield f"sent bodies: digest {sessions.bodies_digest} (of all, in any order, without the model's name)"


def summarize_in_short(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on the sessions' counts, and why some ended early; nothing without sessions."""
    if (sessions := result.derive(summarize_sessions)) is not None:
        yield _describe_counts(result, sessions.figures)
        yield from _list_ends(sessions, _MOST_IN_SHORT)


def tabulate_turns(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield the figures by turn as a table of 80 columns; nothing without sessions."""
    return _tabulate(_TITLES, _WIDTHS, map(_make_cells, result.derive(divide_by_turn)))


def tabulate_branches(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield the figures of main line and sub-agents as a table of 80 columns; nothing without branches."""
    rows = result.derive(divide_by_branch)
    return _tabulate(_BRANCH_TITLES, _BRANCH_WIDTHS, map(_make_branch_cells, rows))


def _tabulate(titles: Sequence[str], widths: Sequence[int], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    lines = [align_cells(row, widths, " ") for row in rows]
    yield from [align_cells(titles, widths, " "), *lines] if lines else ()


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
    """Describe how many sessions began, finished and ended early, and how many turns they had."""
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


def _list_times(figures: SessionFigures) -> Iterator[str]:
    """Yield a line on the sessions' durations, and one on how late their turns were sent."""
    duration, late = figures.duration, figures.lateness
    if duration.n:
        share = figures.busy_share
        waiting = (
            ""
            if share is None
            else (
                f"; {100 * share:.0f} % of it waiting for the server, {100 * (1 - share):.0f} % between turns"
            )
        )
        mean_s, median_s, p99_s = (
            value / 1e3 for value in (duration.mean_ms, duration.median_ms, duration.p99_ms)
        )
        spread = f"{mean_s:.2f} s mean, {median_s:.2f} P50, {p99_s:.2f} P99"
        yield f"session duration: {spread} ({duration.n} finished){waiting}"
    if late.n:
        spread = f"{late.median_ms:.2f} P50, {late.p99_ms:.2f} P99, {late.max_ms:.2f} ms max"
        yield f"turns sent after their time: {spread} (previous answer's end + delay → sent)"


def _list_ends(sessions: StoredSessions, most: int) -> Iterator[str]:
    """Yield a line on each reason of early ends: its count, the first `most` places, and the first error."""
    for reason, count in sessions.ended_early.items():
        ends = [end for end in sessions.ends if end.reason == reason]
        where = list_first([*map(str, ends), *[""] * (count - len(ends))], most)
        detail = cut_end(next((end.detail for end in ends if end.detail), ""), _MOST_DETAIL)
        first = f"; the first: {detail}" if detail else ""
        yield f"sessions ended early: {count} × {reason}: {where}{first}"


def _format_share(seconds: float, path: CriticalPath) -> str:
    return f"{100 * seconds / path.session_s:.1f} %" if path.session_s else "-"


def _make_cells(row: TurnFigures) -> tuple[str, ...]:
    return (
        row.name if len(row.name) <= -_WIDTHS[0] else f"≤{row.last}",
        *_make_first_cells(row),
        format_cell_ms(row.median_ttft_ms),
        format_cell_ms(row.p99_ttft_ms),
        format_cell_ms(row.mean_tpot_ms),
        format_cell_ms(row.mean_e2el_ms),
    )


def _make_branch_cells(row: BranchFigures) -> tuple[str, ...]:
    times = (row.p99_ttft_ms, row.mean_e2el_ms, row.mean_queued_ms)
    name = cut_end(row.name, -_BRANCH_WIDTHS[0])
    return (name, *_make_first_cells(row), *(format_cell_ms(value) for value in times))


def _make_first_cells(row: PartFigures) -> tuple[str, ...]:
    """Return the cells that both tables have: counts, tokens and mean TTFT."""
    return (
        str(row.requests),
        str(row.failed),
        _format_tokens(row.mean_input_tokens),
        "-" if row.cached_share is None else f"{100 * row.cached_share:.1f}%",
        _format_tokens(row.mean_output_tokens),
        format_cell_ms(row.mean_ttft_ms),
    )


def _format_mean(mean: float) -> str:
    """Format a mean number of turns or requests: 8.429, or 10,100."""
    return f"{mean:,.0f}" if mean >= 1000 else f"{mean:.4g}"


def _format_tokens(mean: float | None) -> str:
    return "-" if mean is None else f"{mean:.0f}"


_HAS_SESSIONS, _HAS_BRANCHES = attrgetter("session_turns"), attrgetter("session_waits")
SECTIONS = {
    "after block": (Section("measured", describe_counted_part, _HAS_SESSIONS, room=Room.ALWAYS),),
    "after missing": (
        Section("turns-not-sent", describe_unsent_turns, _HAS_SESSIONS, room=Room.ALWAYS, page="Notes"),
    ),
    "before load-over-time": (
        Section(
            "sessions",
            describe_sessions,
            _HAS_SESSIONS,
            room=Room.ALWAYS,
            short=summarize_in_short,
            page="Sessions",
        ),
        Section("turns", tabulate_turns, _HAS_SESSIONS, wrapped=False, room=Room.TABLE),
        Section("critical-path", describe_critical_path, _HAS_BRANCHES, room=Room.ALWAYS, page="Sessions"),
        Section("branches", tabulate_branches, _HAS_BRANCHES, wrapped=False, room=Room.TABLE),
    ),
    "after load": (Section("sessions-in-flight", describe_in_flight, _HAS_SESSIONS, room=Room.ALWAYS),),
}
