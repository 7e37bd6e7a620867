"""The critical path of sessions with sub-agents, and the figures of their branches, of known times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from builders.made_cases import START_NS
from builders.made_runs import MS, keep
from builders.made_sessions import ADDED, OUTPUT, TTFT_MS, TURN_MS, judged, made, turn_of
from loadgen.base.structs import replace
from loadgen.features.export import request_rows
from loadgen.features.sessions.session_checks import session_forgotten
from loadgen.features.sessions.session_figures import (
    CriticalPath,
    divide_by_branch,
    mark_critical_requests,
    measure_critical_path,
    summarize_sessions,
)
from loadgen.plan.planned_requests import WaitFacts
from loadgen.records.record import Record
from loadgen.report import report, run_directory
from loadgen.report.run_directory import Result
from loadgen.study.pages.run_section import make_account
from loadgen.study.run_summary import summarise_run
from loadgen.transport.failure import Failure, FailureKind

NONE, NAMES = -1, ("main", "explore")
CUT = Failure(FailureKind.TRUNCATED, "cut")
# Main 0; sub-agent 1 with 1 and 2; sub-agent 2 with 3; main 4 joins both; 5 in the background after 4.
BEFORE = ((), (0,), (1,), (0,), (2, 3), (4,))
LANES, DELAYS_MS, TOOLS_MS = (0, 1, 1, 2, 0, 3), (0, 10, 20, 5, 30, 0), (0, 0, 15, 0, 40, 0)


def send_tree(
    before: Sequence[Sequence[int]],
    delays_ms: Sequence[int],
    queued_ms: Sequence[int],
    longer_ms: Sequence[int],
    first: int = 0,
) -> list[Record]:
    """Make the answered requests of one session that begins at the start, each after those it waits for."""
    rows: list[Record] = []
    for turn, earlier in enumerate(before):
        ready_ns = max((rows[index].end_ns for index in earlier), default=START_NS)
        row = turn_of(first + turn, turn, ready_ns + delays_ms[turn] * MS, turn, queued_ms[turn])
        rows.append(replace(row, end_ns=row.end_ns + longer_ms[turn] * MS))
    return rows


def make_run(rows: Sequence[Record], waits: WaitFacts) -> Result:
    """Make a run of one session of a tree."""
    return made([len(waits.before)], rows, 1, session_waits=waits)


def make_agents(rows: Sequence[Record] | None = None) -> Result:
    """Make a run of the session above, whose first sub-agent's second answer takes 40 ms more."""
    waits = WaitFacts(
        BEFORE, LANES, (0, 1, 1, 1, 0, 1), (0, 1, 1, 1, 0, 1), NAMES, tuple(ms * MS for ms in TOOLS_MS)
    )
    sent = send_tree(BEFORE, DELAYS_MS, (0, 0, 7, 0, 0, 3), (0, 0, 40, 0, 0, 0))
    return make_run(sent if rows is None else rows, waits)


def test_the_path_goes_back_over_what_ended_last() -> None:
    run = make_agents()
    assert mark_critical_requests(run) == [1, 1, 1, 0, 1, 1]
    path = run.derive(measure_critical_path)
    assert path is not None
    whole_ms = 5 * TURN_MS + 40 + (10 + 20 + 30) + (7 + 3)
    assert path == CriticalPath(
        sessions=1,
        session_s=whole_ms / 1e3,
        requests=6,
        path_requests=5,
        request_s=(5 * TURN_MS + 40) / 1e3,
        tool_s=(15 + 30) / 1e3,  # no more of it than the pause
        pause_s=(10 + 5) / 1e3,
        queued_s=10 / 1e3,
        role_s={"main": 2 * TURN_MS / 1e3, "explore": (3 * TURN_MS + 40) / 1e3},
        all_tool_s=(15 + 30) / 1e3,
        all_queued_s=10 / 1e3,
    )


def test_each_depth_and_role_has_its_own_figures() -> None:
    main, explore = make_agents().derive(divide_by_branch)
    assert [(row.name, row.depth, row.requests) for row in (main, explore)] == [
        ("main", 0, 2), ("explore (1)", 1, 4),
    ]  # fmt: skip
    assert (main.mean_ttft_ms, main.mean_queued_ms) == (TTFT_MS, 0)
    assert explore.mean_queued_ms == 10 / 4
    assert explore.p99_queued_ms == np.percentile([0, 7, 0, 3], 99)
    assert (main.cached_tokens, main.cached_of) == (4 * 50, 6 * 50)
    assert (explore.cached_tokens, explore.cached_of) == ((1 + 2 + 3 + 5) * 50, (2 + 3 + 4 + 6) * 50)


def test_a_session_that_failed_has_no_path() -> None:
    rows = send_tree(BEFORE, DELAYS_MS, (0,) * 6, (0,) * 6)
    failed = make_agents([*rows[:3], replace(rows[3], failure=CUT)])
    assert failed.derive(measure_critical_path) is None
    assert mark_critical_requests(failed) == [0, 0, 0, 0]
    assert [row.failed for row in failed.derive(divide_by_branch)] == [0, 1]


@given(st.data())
def test_the_path_is_what_twenty_plain_lines_find(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    before = [
        sorted(data.draw(st.sets(st.integers(0, index - 1), max_size=3))) if index else []
        for index in range(size)
    ]
    times = st.lists(st.integers(0, 90), min_size=size, max_size=size)
    delays, queued, longer = data.draw(times), data.draw(times), data.draw(times)
    delays[0] = 0
    rows = send_tree(before, delays, queued, longer)
    zeros = (0,) * size
    run = make_run(rows, WaitFacts(tuple(map(tuple, before)), zeros, zeros, zeros, ("main",)))
    at = max(range(size), key=lambda index: rows[index].end_ns)
    parts, marked = {"request": 0, "pause": 0, "queued": 0}, set()
    end_ns = rows[at].end_ns
    while at != NONE:
        marked.add(at)
        row = rows[at]
        previous = max(before[at], key=lambda index: rows[index].end_ns, default=NONE)
        ready_ns = rows[0].intended_ns if previous == NONE else rows[previous].end_ns
        parts["request"] += row.end_ns - row.sent_ns
        parts["pause"] += row.intended_ns - ready_ns
        parts["queued"] += row.sent_ns - row.intended_ns
        at = previous
    path = run.derive(measure_critical_path)
    assert path is not None
    assert [path.request_s, path.pause_s, path.queued_s] == [ns / 1e9 for ns in parts.values()]
    assert path.session_s == (end_ns - rows[0].intended_ns) / 1e9 == sum(parts.values()) / 1e9
    ends = [row.end_ns for row in rows]
    if len(set(ends)) == len(ends):  # else two paths are as critical
        assert {index for index, mark in enumerate(mark_critical_requests(run)) if mark} == marked


def test_report_page_and_export_have_the_same_path(tmp_path: Path) -> None:
    run = make_agents()
    text = report.render_report(run)
    assert "critical path: 5 of 6 requests and 0.51 s, means of 1 finished session: 86.3 %" in text
    keep(run, tmp_path, text)
    again = run_directory.load(tmp_path)
    assert again.derive(measure_critical_path) == run.derive(measure_critical_path)
    ours = json.loads((tmp_path / run_directory.RESULT).read_text("utf-8"))["loadgen"]
    assert (ours["critical_path"]["path_requests"], len(ours["by_branch"])) == (5, 2)
    rows = [row for some in request_rows.list_rows(again) for row in some]
    assert [(row["role"], row["depth"], row["critical"]) for row in rows][:4] == [
        ("main", 0, 1), ("explore", 1, 1), ("explore", 1, 1), ("explore", 1, 0),
    ]  # fmt: skip
    shown = make_account(summarise_run(Path("runs/made"), run), "run-1", draw=False)
    (branches,) = (section.table for section in shown.sections if section.title == "By branch")
    assert branches is not None
    assert [row[0] for row in branches.body] == ["main", "explore (1)"]


def test_time_with_two_requests_on_their_way_counts_once() -> None:
    sessions = make_agents().derive(summarize_sessions)
    assert sessions is not None
    whole_ms = 5 * TURN_MS + 40 + (10 + 20 + 30) + (7 + 3)
    # The second sub-agent begins 5 ms before the first one.
    assert sessions.figures.busy_share == (5 * TURN_MS + 40 + 5) / whole_ms


def test_the_table_of_branches_has_80_columns() -> None:
    shown = report.render_report(make_agents()).splitlines()
    begin = next(at for at, line in enumerate(shown) if line.startswith("Branch "))
    assert max(map(len, shown[begin : begin + 3])) <= 80
    assert shown[begin + 1].split()[:3] == ["main", "2", "0"]
    assert int(shown[begin + 1].split()[5]) == OUTPUT


def test_concurrency_names_the_limit_of_requests() -> None:
    rows = send_tree(BEFORE, DELAYS_MS, (0,) * 6, (0,) * 6)
    waits = make_agents().facts.session_waits
    limited = made(
        [len(BEFORE)], rows, 1, session_waits=waits, keys={"max_requests": 3, "dataset_path": "a.jsonl"}
    )
    shown = report.render_report(limited)
    assert "1.04 requests in flight of 3 at most\n  (--max-requests)\n" in shown
    assert "between two turns" not in shown


def test_a_branch_forgets_only_what_its_own_line_sent() -> None:
    rows = [replace(row, cached_tokens=0) for row in send_tree(BEFORE, DELAYS_MS, (0,) * 6, (0,) * 6)]
    run = judged([len(BEFORE)], rows, session_waits=make_agents().facts.session_waits)
    found = session_forgotten.find(run)
    # The main line's second request, and the first sub-agent's.
    assert found is not None
    assert found.startswith(
        f"of {ADDED + 2 * ADDED} prompt tokens that sessions had sent in their turn before"
    )
