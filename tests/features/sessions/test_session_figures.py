"""Session figures: each turn, each session and the measured part, of sessions whose times are known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.loops import loop_over, read_tables
from builders.made_cases import START_NS
from builders.made_runs import MS, keep
from builders.made_sessions import ADDED, OUTPUT, judged, made, rows_of, turn_of
from builders.required import require
from loadgen.base.structs import replace
from loadgen.features.sessions import session_figures
from loadgen.features.sessions.session_checks import session_forgotten
from loadgen.features.sessions.session_figures import (
    divide_by_branch,
    mark_critical_requests,
    measure_critical_path,
)
from loadgen.figures.metrics import compute_metrics
from loadgen.figures.session_rows import list_early_places
from loadgen.plan.planned_requests import WaitFacts
from loadgen.records.record import Record
from loadgen.report import report, request_rows, run_directory
from loadgen.report.result_block import LAYOUTS
from loadgen.report.run import Run
from loadgen.report.run_directory import Result
from loadgen.report.run_writer import encode_run
from loadgen.study.pages.run_section import make_account
from loadgen.study.run_summary import summarise_run
from loadgen.transport.failure import Failure, FailureKind

CUT = Failure(FailureKind.TRUNCATED, "cut")
LONG = Failure(FailureKind.CONTEXT_LIMIT, "400: maximum context length is 4096 tokens")
# Slot 0: 3 turns until 440 ms, then 2 until 700; slot 1: 1 turn until 80, 2 until 340, 4 until 960.
TURNS = [3, 1, 2, 4, 2]
DRY_MS, END_MS = 700, 960
NONE, NAMES = -1, ("main", "explore")
# Main 0; sub-agent 1 with 1 and 2; sub-agent 2 with 3; main 4 joins both; 5 in the background after 4.
BEFORE = ((), (0,), (1,), (0,), (2, 3), (4,))
LANES, DELAYS_MS, TOOLS_MS = (0, 1, 1, 2, 0, 3), (0, 10, 20, 5, 30, 0), (0, 0, 15, 0, 40, 0)


def ended() -> Result:
    """Two sessions that end early, of which the place of one is known."""
    rows = rows_of(TURNS, failures={(0, 2): LONG, (3, 1): CUT})
    return made(TURNS, rows, turn_places=((1, 'a.jsonl, row 4, conversation "x"'),), bodies_digest="ab" * 16)


def test_later_turns_share_rows_by_powers_of_two() -> None:
    whole = made([40], rows_of([40], slots=1), slots=1)
    assert [(row.name, row.requests) for row in whole.derive(session_figures.divide_by_turn)] == [
        ("1", 1), ("2", 1), ("3", 1), ("4", 1), ("5–8", 4), ("9–16", 8), ("17–32", 16), ("33–64", 8),
    ]  # fmt: skip


def test_what_usage_does_not_report_is_not_known() -> None:
    rows = rows_of([2], slots=1)
    for row in rows:
        row.cached_tokens = row.input_tokens = -1
    result = made([2], rows, slots=1)
    assert {
        (row.cached_share, row.mean_input_tokens) for row in result.derive(session_figures.divide_by_turn)
    } == {(None, None)}


def test_figures_are_of_what_ended_before_the_first_slot_ran_dry() -> None:
    result = made(TURNS, rows_of(TURNS))
    sessions = require(result.derive(session_figures.summarize_sessions))
    assert sessions.measured is not None
    assert (sessions.measured.seconds, sessions.measured.whole_s) == (DRY_MS / 1e3, END_MS / 1e3)
    assert (result.metrics.completed, sessions.measured.left_out) == (10, 2)
    assert result.metrics.duration_s == DRY_MS / 1e3
    assert result.metrics.output_throughput_per_s == pytest.approx(10 * OUTPUT / (DRY_MS / 1e3))
    assert result.whole == compute_metrics(result.records, result.facts.ask())
    assert result.whole.completed == 12


def test_every_account_of_the_run_has_the_same_figures() -> None:
    turns = [2, 1, 2, 4, 2]  # the third turn of the fourth is in flight as the measured part ends
    result = made(turns, rows_of(turns, rest_ms=60))
    throughput = result.metrics.output_throughput_per_s
    assert throughput > compute_metrics(result.counted, result.facts.ask()).output_throughput_per_s
    stored = encode_run(result)
    assert stored["output_throughput"] == throughput
    assert stored["loadgen"]["metrics"]["output_throughput_per_s"] == throughput
    assert len(stored["latencies"]) == stored["completed"] == 9
    assert summarise_run(Path("runs/made"), result).figure("output_throughput") == throughput
    assert Run(result).metrics.output_throughput_per_s == throughput
    for layout in LAYOUTS:
        shown = report.render_report(result, layout=layout)
        assert f"Output token throughput (tok/s):         {throughput:.2f}" in shown
    assert sum(row["requests"] for row in stored["loadgen"]["by_turn"]) == 9


def test_an_early_end_is_named_with_its_turn_and_its_row() -> None:
    result = ended()
    sessions = require(result.derive(session_figures.summarize_sessions))
    assert list(map(str, sessions.ends)) == [
        'session 0, turn 2 (a.jsonl, row 4, conversation "x")', "session 3, turn 1",
    ]  # fmt: skip
    text = report.render_report(result)
    for line in (
        'sessions ended early: 1 × context limit: session 0, turn 2 (a.jsonl, row 4,\n  conversation "x"); '
        "the first: 400: maximum context length is 4096 tokens",
        "sessions ended early: 1 × truncated: session 3, turn 1; the first: cut",
        "not sent: 4 later turns of 2 sessions that ended early",
        "sent bodies: digest abababababababababababababababab",
    ):
        assert line in text
    assert not any(line.startswith("not sent: 4 of 12") for line in text.splitlines())


def test_places_are_asked_for_of_the_turns_that_ended_sessions() -> None:
    records = ended().records
    assert list_early_places(tuple(TURNS), records, "row {}".format) == ((1, "row 1"), (6, "row 6"))
    assert list_early_places((), records, "row {}".format) == ()


def test_turns_of_sessions_that_never_began_are_not_sent() -> None:
    few = made([*TURNS, 3], rows_of(TURNS), recovered="the client was killed")
    text = report.render_report(few)
    assert "sessions: 5 begun of 6, 5 finished" in text
    assert "not sent, or not in the journal yet: 3 of 15 requests" in text


def test_a_stored_run_has_the_same_sessions(tmp_path: Path) -> None:
    result = ended()
    keep(result, tmp_path, report.render_report(result))
    again = run_directory.load(tmp_path)
    for make in (session_figures.divide_by_turn, session_figures.summarize_sessions):
        assert again.derive(make) == result.derive(make)
    ours = json.loads((tmp_path / run_directory.RESULT).read_text("utf-8"))["loadgen"]
    assert [row["requests"] for row in ours["by_turn"]] == [
        row.requests for row in result.derive(session_figures.divide_by_turn)
    ]
    assert ours["sessions"]["ends"][0]["place"] == 'a.jsonl, row 4, conversation "x"'


@loop_over(("message", "what"), read_tables("refused_conversations")["parts"])
def test_what_a_conversation_is_refused_for_has_a_name(message: str, what: str) -> None:
    assert session_figures.name_refused_part(message) == what


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
    at = max(
        range(size), key=lambda index: (rows[index].end_ns, index)
    )  # of those that end at once, the last
    parts, marked = {"request": 0, "pause": 0, "queued": 0}, set()
    end_ns = rows[at].end_ns
    while at != NONE:
        marked.add(at)
        row = rows[at]
        previous = max(before[at], key=lambda index: (rows[index].end_ns, index), default=NONE)
        ready_ns = rows[0].intended_ns if previous == NONE else rows[previous].end_ns
        parts["request"] += row.end_ns - row.sent_ns
        parts["pause"] += row.intended_ns - ready_ns
        parts["queued"] += row.sent_ns - row.intended_ns
        at = previous
    path = require(run.derive(measure_critical_path))
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
    assert [row[0] for row in require(branches).body] == ["main", "explore (1)"]


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
    found = require(session_forgotten.find(run))
    # The main line's second request, and the first sub-agent's.
    assert found.startswith(
        f"of {ADDED + 2 * ADDED} prompt tokens that sessions had sent in their turn before"
    )
