"""Loads: runs under several loads are one table, and what is compared is compared as before."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.comparison_samples import HIGH, cells, run, runs
from builders.loops import loop_over
from builders.made_cases import WHEN
from builders.made_sessions import made, rows_of
from loadgen.base.text import WIDTH, format_json
from loadgen.report.load_identity import Load
from loadgen.study.compare import comparison_report
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.comparison_report import make_turn_table
from loadgen.study.compare.model import ALONE, ComparisonOptions
from loadgen.study.pages.document import compose_document
from loadgen.study.run_summary import SESSION_MS, Reported, summarise_run


def at(concurrency: int | None, **changes: object) -> Load:
    return replace(HIGH, name="", max_concurrency=concurrency, **changes)


def points(reported: list[Reported]) -> tuple[list[tuple[str, str]], int]:
    """The rows of the table of loads, name and load, and how many loads are compared."""
    found = comparison_report.arrange_loads(compare_runs(reported, ComparisonOptions()))
    return [(row.name, row.load.pressure_words) for row in found.rows], len(found.compared)


SWEEP = [("a", "1 at a time"), ("a", "2 at a time"), ("a", "8 at a time")]
BOTH = [*SWEEP, *(("b", load) for _, load in SWEEP)]


@loop_over(
    ("reported", "rows", "compared"),
    [
        pytest.param([run("a", 1.0, at(n)) for n in (8, 1, 2)], SWEEP, 0, id="one model"),
        pytest.param([run(m, 1.0, at(n)) for n in (8, 1, 2) for m in "ab"], BOTH, 3, id="two models"),
        pytest.param([run(m, 1.0, at(n)) for n in (8, 1) for m in "ab"], [], 2, id="two loads, compared"),
        pytest.param(
            [run("a", 1.0, at(1)), run("a", 1.0, at(8)), run("b", 1.0, at(8))],
            [("a", "1 at a time"), ("a", "8 at a time")], 1, id="one of two loads is compared",
        ),
        pytest.param(
            [run("a", 1.0, HIGH), run("a", 2.0, replace(HIGH, name="low", input_len=64.0))],
            [("a", "8 at a time"), ("a", "8 at a time")], 0, id="two profiles of other lengths",
        ),
        pytest.param([run("a", 1.0)], [], 1, id="one run"),
        pytest.param([run("a", 1.0), run("b", 1.0)], [], 1, id="one load"),
    ],
)  # fmt: skip
def test_what_is_a_row_of_loads_and_what_is_compared(
    reported: list[Reported], rows: list[tuple[str, str]], compared: int
) -> None:
    assert points(reported) == (rows, compared)


def test_counted_lengths_of_a_sweep_are_one_to_a_hundredth() -> None:
    found = comparison_report.arrange_loads(
        compare_runs([run("a", 1.0, at(n, input_len=2048.0 + n)) for n in (1, 2, 8)], ComparisonOptions())
    )
    assert [row.load.lengths[0] for row in found.rows] == [2049.0, 2049.0, 2049.0]


def test_lengths_that_were_asked_for_are_rows_of_their_own() -> None:
    asked = [at(8, input_len=float(length), asked_input_len=length) for length in (1000, 1005, 1024)]
    compared = compare_runs([run("a", 1.0, load) for load in asked], ComparisonOptions())
    found = comparison_report.arrange_loads(compared)
    assert [row.load.lengths[0] for row in found.rows] == [1000, 1005, 1024]


def test_runs_of_different_durations_are_rows_of_their_own() -> None:
    timed = [run("a", 1.0, at(8, duration_s=duration)) for duration in (20.0, 8.2)]
    found = comparison_report.arrange_loads(
        compare_runs([*timed, run("a", 1.0, at(4, duration_s=5.0))], ComparisonOptions())
    )
    assert [row.load.duration_words for row in found.rows] == ["5 s", "20 s", "8.2 s"]


def test_a_saturated_row_has_the_tokens_that_arrived_and_no_latency() -> None:
    measured = [made_runs.run(concurrency=1), made_runs.saturated(concurrency=8, seed=2)]
    found = comparison_report.arrange_loads(
        compare_runs([made_runs.reported(each) for each in measured], ComparisonOptions())
    )
    first, second = found.rows
    assert (first.saturated, second.judged) == (False, "saturated")
    assert second.figures["output_throughput"].mean == 24 * 16 / measured[1].metrics.duration_s
    assert "mean_ttft_ms" not in second.figures
    assert second.figures["failed"].mean == 0


def test_repeats_are_a_mean_with_its_interval_and_the_gravest_verdict() -> None:
    reported = [
        *runs("a", [10.0, 12.0, 11.0], at(1), level="VALID"), run("a", 9.0, at(1), level="SUSPECT"),
        *runs("a", [20.0], at(2), level="VALID"), run("a", 1.0, at(2), level="INVALID"),
    ]  # fmt: skip
    first, second = comparison_report.arrange_loads(compare_runs(reported, ComparisonOptions())).rows
    figure = first.figures["output_throughput"]
    assert (figure.mean, first.runs, first.verdict) == (10.5, 4, "SUSPECT")
    assert figure.half == pytest.approx(3.182446 * math.sqrt(5 / 3) / 2)
    assert (second.figures["output_throughput"].mean, second.runs, second.verdict) == (20.0, 2, "INVALID")


def test_one_table_takes_the_place_of_nothing_to_compare() -> None:
    text = comparison_report.render_text(
        compare_runs([run("a", 100.0 * n, at(n)) for n in (1, 2, 8)], ComparisonOptions())
    )
    assert text.splitlines() == [
        "2048 in / 128 out, 100 requests",
        "  conc.  tok/s    TTFT   TPOT",
        "                    ms     ms",
        "  -----  -----  ------  -----",
        "a",
        "      1  100.0  1000.0  80.00",
        "      2  200.0   500.0  40.00",
        "      8  800.0   125.0  10.00",
    ]
    assert ALONE not in text
    assert ALONE in " ".join(
        comparison_report.render_text(compare_runs([run("a", 1.0)], ComparisonOptions())).split()
    )


def test_marks_of_a_row_name_its_load() -> None:
    suspect = {"level": "SUSPECT", "doubts": ("thin",)}
    reported = [run("a", 1.0, at(1)), run("a", 2.0, at(2), **suspect), run("a", 3.0, at(8), **suspect)]
    found = comparison_report.arrange_loads(compare_runs(reported, ComparisonOptions()))
    assert found.notes == ["2 at a time; 8 at a time: SUSPECT: thin"]
    named = [*reported, run("b", 2.0, at(4), **suspect)]
    assert comparison_report.arrange_loads(compare_runs(named, ComparisonOptions())).notes == [
        "a, 2 at a time; a, 8 at a time; b, 4 at a time: SUSPECT: thin"
    ]


def test_a_simulation_is_marked_in_every_form() -> None:
    reported = [run("a", 1.0 * n, at(n), simulated="instant") for n in (1, 2)]
    found = compare_runs(reported, ComparisonOptions())
    line = "SIMULATED: the embedded engine answered with a preset's timing; no model ran"
    text, markdown = comparison_report.render_text(found), comparison_report.render_markdown(found)
    assert "a (SIMULATED)" in text.splitlines()
    assert text.splitlines()[-1] == line
    assert "| a (SIMULATED) | 1 |" in markdown
    assert f"* {line}" in markdown
    rows = comparison_report.render_csv(found).splitlines()
    place = rows[0].split(",").index("simulated")
    assert {row.split(",")[place] for row in rows[1:]} == {"true"}
    stored = json.loads(format_json(comparison_report.encode_comparisons(found)))
    assert [row["simulated"] for row in stored["loads"]["rows"]] == [True, True]
    assert stored["comparisons"][0]["rows"][0]["simulated"] is True


def test_a_simulation_is_not_ranked_against_a_server() -> None:
    reported = [*runs("a", [1.0, 1.1, 1.0]), *runs("b", [9.0, 9.1, 9.0], simulated="instant")]
    text = comparison_report.render_text(compare_runs(reported, ComparisonOptions()))
    row = next(line for line in text.splitlines() if line.startswith("b (SIMULATED)"))
    assert row.split()[2:] == ["no", "verdict"]
    assert "b: not compared: a simulation, baseline a real server" in " ".join(text.split())


def test_a_campaign_of_two_profiles_stays_two_comparisons() -> None:
    low = replace(HIGH, name="low", max_concurrency=1)
    reported = [one for load in (HIGH, low) for m in "ab" for one in cells(m, [1.0, 1.1], load)]
    assert points(reported) == ([], 2)


def test_eighty_columns_hold_repeats_and_percentiles() -> None:
    figures = {
        "request_throughput": 1234.5, "median_ttft_ms": 1234.5, "p99_ttft_ms": 12345.6,
        "mean_e2el_ms": 12345.6,
    }  # fmt: skip
    reported = [
        one
        for n in (1, 2, 1024)
        for one in runs("a", [10101.0 * n, 10202.0 * n, 10300.0 * n], at(n), figures=figures, level="SUSPECT")
    ]
    text = comparison_report.render_text(compare_runs(reported, ComparisonOptions()))
    assert max(map(len, text.splitlines())) <= WIDTH


TURNS = [3, 3, 6]


def reported(name: str, cached: bool) -> Reported:
    rows = rows_of(TURNS)
    for row in rows:
        row.cached_tokens = row.cached_tokens if cached else 0
    result = made(TURNS, rows, label=name, started=WHEN + timedelta(minutes=cached))
    return summarise_run(Path(f"runs/{name}"), result)


def test_rows_of_sessions_are_compared_turn_by_turn() -> None:
    (compared,) = compare_runs([reported("warm", True), reported("cold", False)], ComparisonOptions())
    table = make_turn_table(compared)
    assert table is not None
    titles = [column.title for column in table.columns]
    assert titles == ["turn", "warm TTFT", "cached", "cold TTFT", "cached"]
    assert table.body[0] == ("1", "40.0", "0.0 %", "40.0", "0.0 %")
    assert table.body[1] == ("2", "40.0", "50.0 %", "40.0", "0.0 %")
    for shown in (comparison_report.render_text([compared]), comparison_report.render_markdown([compared])):
        assert "TTFT and cached share by turn" in shown


@loop_over(
    ("title", "style"),
    [("TTFT and cached share by turn", ""), ("Ranking", ' class="words"')],
)
def test_a_pages_table_of_numbers_is_to_the_right(title: str, style: str) -> None:
    html = pytest.importorskip("loadgen.study.pages.html", reason="needs jinja2", exc_type=ImportError)
    both = [reported("warm", True), reported("cold", False)]
    page = html.render_page(compose_document(both, compare_runs(both, ComparisonOptions())))
    assert f'<summary>{title}</summary><div class="scroll" tabindex="0"><table{style}>' in page


def test_a_sessions_duration_is_a_figure_of_the_comparison() -> None:
    one, other = reported("warm", True), reported("cold", False)
    assert one.figure(SESSION_MS) == pytest.approx((440 + 440 + 980) / 3)
    (compared,) = compare_runs([one, other], ComparisonOptions(headline=SESSION_MS))
    assert compared.headline == SESSION_MS
    assert "session ms" in comparison_report.render_text([compared])


def test_a_comparison_without_sessions_has_no_such_table() -> None:
    (compared,) = compare_runs([reported("warm", True)], ComparisonOptions())
    assert make_turn_table(compared) is None
