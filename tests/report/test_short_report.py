"""The short report: the block, ten lines at most under it, and never less than what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from builders.made_cases import Rows, changed, client, closed, failed, measured, observed, run
from builders.provoked_answers import timed
from loadgen.base.printing import Mark, Screen
from loadgen.engines.refusals import AdaptedField
from loadgen.facts.run_facts import Server
from loadgen.figures.metrics import compute_metrics
from loadgen.records.record import Records
from loadgen.report import report, run_lines
from loadgen.report.run_directory import Result
from loadgen.transport.failure import Failure, FailureKind
from loadgen.verdict.evidence import RunEvidence

RULE = "=" * 50
DETAIL = "the connection was closed in the middle of a response that had begun well; " * 3
KINDS = (
    FailureKind.TIMEOUT,
    FailureKind.STALL,
    FailureKind.TRUNCATED,
    FailureKind.EMPTY,
    FailureKind.ABORTED,
)
SIMULATED = Server(url="http://127.0.0.1:1/v1/completions", engine="e", model="m", simulated="instant")
UNUSED: Any = None  # how the report is to be


def short(case: RunEvidence, **options: Any) -> str:
    return report.render_short(Result(case.facts, case.records), "runs/r", **options)


def under(text: str) -> list[str]:
    """The lines under the block."""
    return text.split(f"{RULE}\n")[1].splitlines()


def of_many_kinds(rows: Rows, workload: dict[str, Any] | None = None) -> RunEvidence:
    for index, row in enumerate(rows[::9]):
        kind = KINDS[min(index // 2, len(KINDS) - 1)]
        rows[row.index] = replace(row, failure=Failure(kind, DETAIL))
    return run(rows, workload)


CASES = {
    "clean": run(),
    "nothing is known": run(window=None, calibration=None, ceiling=None, no_ceiling="pass --hardware KEY"),
    "no counters": run(window=observed(error="/metrics answers 404")),
    "an open loop": run(workload={"request_rate": 100.0, "max_concurrency": None}),
    "no usage": run(changed(closed(), 1, usage=False)),
    "simulated": run(server=SIMULATED),
}


@loop_over("name", CASES)
@loop_over("width", [80, 120])
def test_ten_lines_at_most_say_what_a_run_without_failures_is(name: str, width: int) -> None:
    text = short(CASES[name], screen=Screen(width))
    lines = under(text)
    assert len(lines) <= 10
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("verdict: ")
    assert lines[-1] == "more: loadgen report runs/r (doubts: --explain)"


def test_what_is_not_known_is_one_line_with_the_way_to_it() -> None:
    text = short(CASES["nothing is known"])
    assert "\nnot known: client error (`loadgen selftest`), roofline (--hardware)\n" in text
    assert "not known" not in short(CASES["clean"])


def test_failures_of_every_kind_are_counted_the_worst_three_in_words() -> None:
    case = of_many_kinds(closed())
    text = short(case)
    lines = under(text)
    shown = [line for line in lines if line.startswith("failed: ")]
    assert len(shown) == 4
    assert (
        sum(int(line.split()[1]) for line in shown) == compute_metrics(case.records, case.facts.ask()).failed
    )
    assert shown[-1].endswith("more, of 2 other kinds")
    assert lines[-1].startswith("more: ")


@loop_over(
    ("case", "line"),
    [
        (run(failed(5)), "failed: 64 × timeout, the first: no end"),
        (
            run(failed(5, FailureKind.CANCELLED), interrupted=True),
            "not finished: 64 × cancelled, the first: no end",
        ),
        (run(requests=330), "not sent: 10 of 330 requests"),
        (run(requests=330, unfinished=4), "lost: 4 of 330 requests were under way"),
        (run(changed(closed(), 100, resends=1)), "sent again: 4 requests"),
        (run(adapted=(AdaptedField(name="ignore_eos"),)), "left out: ignore_eos (refused by the server)"),
        (run(traced="/t"), "TRACED: the engine's profiler wrote to /t"),
        (run(cut_short="the server has ended", requests=330), "PARTIAL: the server has ended"),
    ],
)
def test_what_is_wrong_is_never_left_out(case: RunEvidence, line: str) -> None:
    assert f"\n{line}" in f"\n{short(case)}"


def test_notes_are_in_the_whole_report_and_counted_here() -> None:
    case = run(notes=("a note", "another"), unknown=("the roofline: it failed",))
    text = short(case)
    assert "a note" not in text
    assert "\nmore (3 notes): loadgen report runs/r " in text
    assert "note: a note" in report.render_report(Result(case.facts, case.records))


def test_a_place_is_quoted_for_the_shell() -> None:
    case = run()
    text = report.render_short(Result(case.facts, case.records), "my runs/r")
    assert "more: loadgen report 'my runs/r' (" in text


@loop_over("name", ["client", "steady-state", "reconciliation", "roofline", "unavailable"])
def test_a_line_that_cannot_be_made_costs_itself_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    section = next(each for each in report.SECTIONS if each.name == name)

    def broken(*_: object) -> Any:
        raise ZeroDivisionError("division by zero")

    others = tuple(replace(each, short=broken) if each is section else each for each in report.SECTIONS)
    monkeypatch.setattr(report, "SECTIONS", others)
    text = short(CASES["clean"])
    assert f"section {section.name} failed: ZeroDivisionError" in text
    assert "verdict: " in text


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "client: wire, kernel timestamps, read 0.05 ms later; P99 error 0.05 ms"),
        ({"calibration": None}, "client: wire, kernel timestamps, read 0.05 ms later"),
        (
            {"client": client(transport="ring", segments=9), "calibration": measured(transport="ring")},
            "client: ring, a kernel timestamp per TCP segment; P99 error 0.05 ms",
        ),
    ],
)
def test_the_client_is_one_line(changes: dict[str, Any], line: str) -> None:
    case = run(**changes)
    assert list(run_lines.summarize_client(Result(case.facts, case.records), UNUSED)) == [line]


@loop_over(
    ("window", "line"),
    [
        (None, []),
        (observed(error="none"), []),
        (observed(reset=True), []),
        (observed(), ["server's counters agree with the client's"]),
        (observed(generation_tokens=7), ["server's counters differ from the client's (generated tokens)"]),
    ],
)
def test_the_servers_counters_agree_or_differ_in_one_line(window: Any, line: list[str]) -> None:
    case = run(window=window)
    assert list(run_lines.summarize_reconciled(Result(case.facts, case.records), UNUSED)) == line


def test_what_answers_report_of_themselves_is_one_line() -> None:
    case = run(timed(), window=None)
    assert list(run_lines.summarize_reconciled(Result(case.facts, case.records), UNUSED)) == [
        "server's timings: prompt 48.00 of 50.00 ms mean TTFT, first to last token 100.00 ms (client +0.00)"
    ]
    whole = report.render_report(Result(case.facts, case.records))
    assert "server-reported figures: as its responses report them" in whole
    assert "TTFT, prompt by response" in whole


def test_colours_are_of_states_verdict_and_doubts_alone() -> None:
    case = run(failed(5), server=SIMULATED, cut_short="it died")
    coloured: list[str] = []

    def ink(text: str, mark: Mark) -> str:
        coloured.append(text)
        return text

    result = Result(case.facts, case.records)
    text = report.render_short(result, "runs/r", screen=Screen(120, ink))
    assert text == report.render_short(result, "runs/r", screen=Screen(120))
    verdict = result.verdict
    marked = " ".join(coloured)
    assert {"PARTIAL", "SIMULATED", verdict.level.value} <= set(coloured)
    assert all(finding.evidence in marked for finding in verdict.grave[:2])
    assert "failed:" not in marked


def test_no_request_at_all_is_reported_too() -> None:
    case = run()
    assert "verdict: " in report.render_short(Result(case.facts, Records.from_records([])), "runs/r")


def test_where_there_is_little_room_the_servers_counters_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_MOST_LINES", 7)
    starts = [line.partition(":")[0].partition(" agree")[0] for line in under(short(CASES["clean"]))]
    assert starts == [
        "verdict",
        "P99 TTFT 50.00 ms, TPOT 10.00 ms; 320 samples, a bound needs 459",
        *("tokens", "concurrency", "client", "server's counters", "more"),
    ]


@pytest.mark.parametrize(
    ("kind", "became"),
    [(FailureKind.TIMEOUT, "failed"), (FailureKind.USER_CANCELLED, "failed or was cancelled")],
)
def test_of_a_run_without_success_it_is_said_whether_requests_failed(kind: FailureKind, became: str) -> None:
    case = run(failed(1, kind))
    shown = report.explain_unmeasured(Result(case.facts, case.records))
    assert shown == f"every request {became}: nothing was measured"
