"""Session figures: each turn, each session and the measured part, of sessions whose times are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from builders.loops import loop_over
from builders.made_runs import keep
from builders.made_sessions import ADDED, DELAY_MS, OUTPUT, TTFT_MS, TURN_MS, made, rows_of
from builders.shard_runs import divided, named, part
from loadgen.base import parsing
from loadgen.base.structs import replace
from loadgen.features.export import request_rows
from loadgen.features.sessions import session_figures
from loadgen.features.shards import merge
from loadgen.figures.metrics import compute_metrics
from loadgen.figures.session_rows import list_early_places
from loadgen.report import report, run_directory
from loadgen.report.run_directory import Result
from loadgen.study.pages.run_section import make_account
from loadgen.study.run_summary import summarise_run
from loadgen.transport.failure import CANCELLED, Failure, FailureKind

CUT = Failure(FailureKind.TRUNCATED, "cut")
LONG = Failure(FailureKind.CONTEXT_LIMIT, "400: maximum context length is 4096 tokens")
# Slot 0: 3 turns until 440 ms, then 2 until 700; slot 1: 1 turn until 80, 2 until 340, 4 until 960.
TURNS = [3, 1, 2, 4, 2]
DRY_MS, END_MS = 700, 960


def ended() -> Result:
    """Two sessions that end early, of which the place of one is known."""
    rows = rows_of(TURNS, failures={(0, 2): LONG, (3, 1): CUT})
    return made(TURNS, rows, turn_places=((1, 'a.jsonl, row 4, conversation "x"'),), bodies_digest="ab" * 16)


def test_each_turn_has_its_own_figures() -> None:
    rows = made(TURNS, rows_of(TURNS)).derive(session_figures.divide_by_turn)
    assert [(row.name, row.requests, row.failed) for row in rows] == [
        ("1", 5, 0), ("2", 4, 0), ("3", 1, 0),
    ]  # fmt: skip
    assert [row.mean_input_tokens for row in rows] == [ADDED, 2 * ADDED, 3 * ADDED]
    assert [row.cached_share for row in rows] == pytest.approx([0, 1 / 2, 2 / 3])
    latencies = {(row.mean_ttft_ms, row.p99_ttft_ms, row.mean_tpot_ms, row.mean_e2el_ms) for row in rows}
    assert latencies == {(TTFT_MS, TTFT_MS, 10.0, TURN_MS)}


def test_later_turns_share_rows_by_powers_of_two() -> None:
    whole = made([40], rows_of([40], slots=1), slots=1)
    assert [(row.name, row.requests) for row in whole.derive(session_figures.divide_by_turn)] == [
        ("1", 1), ("2", 1), ("3", 1), ("4", 1), ("5–8", 4), ("9–16", 8), ("17–32", 16), ("33–64", 8),
    ]  # fmt: skip


def test_a_session_may_have_more_turns_than_one_made_here(tmp_path: Path) -> None:
    count = parsing.MOST_TURNS + 1
    whole = keep(made([count], rows_of([count], slots=1), slots=1), tmp_path)
    shown = report.render_report(run_directory.load(whole))
    assert f"; {count:,} turns on average, {count} to {count}" in shown
    table = shown[shown.index("\nTurn ") :].split("\nconcurrency")[0].splitlines()
    assert max(map(len, table)) <= 80
    assert [line.split()[:2] for line in table[-3:]] == [
        ["≤4096", "2048"],
        ["≤8192", "4096"],
        ["≤16384", "1809"],
    ]


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
    sessions = result.derive(session_figures.summarize_sessions)
    assert sessions is not None
    assert sessions.measured is not None
    assert (sessions.measured.seconds, sessions.measured.whole_s) == (DRY_MS / 1e3, END_MS / 1e3)
    assert (result.metrics.completed, sessions.measured.left_out) == (10, 2)
    assert result.metrics.duration_s == DRY_MS / 1e3
    assert result.metrics.output_throughput_per_s == pytest.approx(10 * OUTPUT / (DRY_MS / 1e3))
    assert result.whole == compute_metrics(result.records, result.facts.ask())
    assert result.whole.completed == 12


def test_every_account_of_the_run_has_the_same_figures() -> None:
    result = made(TURNS, rows_of(TURNS))
    throughput = result.metrics.output_throughput_per_s
    stored = result.json()
    assert stored["output_throughput"] == throughput
    assert stored["loadgen"]["metrics"]["output_throughput_per_s"] == throughput
    assert len(stored["latencies"]) == stored["completed"] == 10
    assert summarise_run(Path("runs/made"), result).figure("output_throughput") == throughput
    assert f"Output token throughput (tok/s):         {throughput:.2f}" in report.render_report(result)
    assert sum(row["requests"] for row in stored["loadgen"]["by_turn"]) == 10


@pytest.mark.parametrize(
    ("facts", "slots"),
    [
        ({"interrupted": True, "cut_short": "stopped"}, 2),
        ({"lost": ("worker 1 of 2",)}, 2),
        ({"keys": {"request_rate": 5.0}}, 2),
        ({}, 1),
    ],
    ids=["a run that was stopped", "one that lost a worker", "an open loop", "one slot"],
)
def test_other_runs_are_measured_as_a_whole(facts: dict[str, object], slots: int) -> None:
    result = made(TURNS, rows_of(TURNS, slots), slots, **facts)
    assert result.counted is result.records
    sessions = result.derive(session_figures.summarize_sessions)
    assert sessions is not None
    assert sessions.measured is None


def test_sessions_are_counted_by_how_they_ended() -> None:
    rows = rows_of(TURNS, failures={(0, 2): LONG, (3, 1): CUT, (4, 2): CANCELLED})
    sessions = made(TURNS, rows, cut_short="stopped").derive(session_figures.summarize_sessions)
    assert sessions is not None
    figures = sessions.figures
    assert (figures.planned, figures.begun, figures.finished) == (5, 5, 2)
    assert (figures.ended_early, figures.unfinished, figures.turns_not_sent) == (2, 1, 4)
    assert (figures.mean_turns, figures.least_turns, figures.most_turns) == (1.6, 1, 2)
    assert sessions.ended_early == {"context limit": 1, "truncated": 1}


def test_a_finished_session_waits_for_the_server_or_rests() -> None:
    sessions = made(TURNS, rows_of(TURNS, late_ms=5.0)).derive(session_figures.summarize_sessions)
    assert sessions is not None
    figures = sessions.figures
    lasting = [count * TURN_MS + (count - 1) * (DELAY_MS + 5) for count in TURNS]
    assert figures.duration.mean_ms == pytest.approx(np.mean(lasting))
    assert figures.duration.max_ms == max(lasting)
    assert figures.busy_share == pytest.approx(sum(TURNS) * TURN_MS / sum(lasting))
    assert (figures.lateness.n, figures.lateness.max_ms, figures.lateness.min_ms) == (12, 5.0, 0.0)


def test_an_early_end_is_named_with_its_turn_and_its_row() -> None:
    result = ended()
    sessions = result.derive(session_figures.summarize_sessions)
    assert sessions is not None
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


def test_a_row_has_its_session_and_turn() -> None:
    result = made([2, 1], rows_of([2, 1]))
    rows = [row for some in request_rows.list_rows(result) for row in some]
    assert [(row["session"], row["turn"]) for row in rows] == [(0, 1), (0, 2), (1, 1)]


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


def test_the_table_by_turn_has_80_columns() -> None:
    shown = report.render_report(made([40], rows_of([40], slots=1), slots=1)).splitlines()
    begin = next(at for at, line in enumerate(shown) if line.startswith("Turn "))
    assert max(map(len, shown[begin : begin + 9])) <= 80
    assert shown[begin + 2].split() == [
        "2",
        "1",
        "0",
        "100",
        "50.0%",
        "5",
        "40.0",
        "40.0",
        "40.0",
        "10.0",
        "80.0",
    ]


def test_a_page_has_the_sessions_and_the_table_by_turn() -> None:
    result = made(TURNS, rows_of(TURNS))
    shown = make_account(summarise_run(Path("runs/made"), result), "run-1", draw=False)
    (by_turn,) = (section.table for section in shown.sections if section.title == "By turn")
    assert by_turn is not None
    assert len(by_turn.body) == 3
    assert any(line.startswith("sessions: 5 begun") for line in shown.section("sessions").lines)


def test_sessions_in_flight_include_those_between_two_turns() -> None:
    text = report.render_report(made([3, 3], rows_of([3, 3])))
    assert "concurrency: 2.00 sessions on average of 2, 1.09 requests in flight" in text


def test_turns_after_an_early_end_are_not_lost_with_another_shard() -> None:
    turns = [3, 3, 3, 3]
    whole = made(turns, rows_of(turns, failures={(0, 2): CUT, (2, 1): CUT}))
    first, second = divided(whole, 2)  # sessions 0 and 2, and 1 and 3
    merged = merge.merge_results(named([first]))
    assert merged.facts.lost == ("shard 1/2 is missing: its 6 requests are lost",)
    again = merge.merge_results(named([first, second]))
    got = again.derive(session_figures.summarize_sessions)
    assert got == whole.derive(session_figures.summarize_sessions)
    assert again.facts.session_turns == whole.facts.session_turns


def test_the_digests_of_shards_are_one_sum() -> None:
    digests = [f"{2**128 - 2:032x}", "", f"{5:032x}"]
    parts = [part(made([1, 1, 1], rows_of([1, 1, 1], slots=3), 3), at, 3) for at in range(3)]
    of = [
        Result(replace(each.facts, bodies_digest=digest), each.records)
        for each, digest in zip(parts, digests, strict=True)
    ]
    assert merge.merge_results(named(of)).facts.bodies_digest == f"{3:032x}"


@loop_over(
    ("message", "what"),
    [
        ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser', "tools refused"),
        ("tools param requires --jinja flag", "tools refused"),
        ("this model does not support tools", "tools refused"),
        ("System role not supported", "system role refused"),
        ("Only user and assistant roles are allowed: the model does not support system messages",
         "system role refused"),
        ("Conversation roles must alternate user/assistant/user/assistant/...", "order of roles refused"),
        ("This model's maximum context length is 4096 tokens", ""),
        ("max_tokens is too large: 50000. This model supports at most 16384.", ""),
        ("CUDA out of memory", ""),
    ],
)  # fmt: skip
def test_what_a_conversation_is_refused_for_has_a_name(message: str, what: str) -> None:
    assert session_figures.name_refused_part(message) == what
