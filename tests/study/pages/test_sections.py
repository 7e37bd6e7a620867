"""Sections: what is seen first of a run, and bars, limits, qualities and the answer of a comparison."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from builders import made_runs, made_sessions
from builders.comparison_samples import told
from builders.loops import loop_over
from builders.made_answers import answered, keep_campaign, made_quality, speeds
from builders.made_limits import limit_record, limit_run
from builders.made_qualities import quality, reference, rows
from loadgen.base.passages import CurveStyle, Passage
from loadgen.base.structs import replace
from loadgen.report.load_identity import Load
from loadgen.report.run_directory import Result
from loadgen.study.answer import answer
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparedLoad, ComparisonOptions, Decision
from loadgen.study.importers.clients.loadgen_runs import StoredLimit
from loadgen.study.limit_record import LimitRecord
from loadgen.study.pages import comparison_section, outputs, run_section
from loadgen.study.pages.comparison_section import make_limit_sections, make_quality_section
from loadgen.study.pages.document import (
    compose_document,
    encode_panel,
    render_markdown,
    render_page,
)
from loadgen.study.pages.run_section import Card
from loadgen.study.run_summary import Reported


def texts(card: Card) -> list[str]:
    return [" ".join(filter(None, figure)) for figure in card.figures]


def of(run: Result) -> dict[str, Card]:
    return {card.label: card for card in run_section.make_cards(made_runs.reported(run), run.metrics)}


def with_profile(run: Result, **changes: Any) -> Result:
    profile = run.facts.profile.model_copy(update=changes)
    return replace(run, facts=replace(run.facts, profile=profile))


@pytest.mark.parametrize(("reasons_ms", "labels"), [(0, ["TTFT"]), (50, ["TTFT", "TTFVT"])])
def test_the_first_visible_token_has_a_card_where_answers_reason(reasons_ms: int, labels: list[str]) -> None:
    run = made_runs.run()
    run.records.visible_ns[:] += reasons_ms * 1_000_000
    assert [label for label in of(run) if label.startswith("TTF")] == labels


@pytest.mark.parametrize(("requests", "says"), [(100, "ms, from 100"), (458, "ms, from 458"), (459, "ms")])
def test_a_p99_of_few_requests_says_how_many(requests: int, says: str) -> None:
    assert of(made_runs.run(requests=requests, tokens=2))["TTFT"].figures[1][2] == says


@loop_over(("run", "rate"), [
    (made_runs.run(), ["0 %", "0 of 24"]), (made_runs.run(failed=1), ["4.17 %", "1 of 24"]),
    (made_runs.run(failed=24), ["100 %", "24 of 24"]),
    (made_runs.saturated(cut_off=8), ["0 %", "0 of 24", "8 cut off by the run's end"]),
])  # fmt: skip
def test_the_failure_rate_is_there_without_failures_too(run: Result, rate: list[str]) -> None:
    assert texts(of(run)["Failure rate"]) == rate
    if run.facts.saturated:  # every token that arrived
        assert of(run)["Output"].figures[0][1].value == 24 * 16 / run.metrics.duration_s


def test_rates_count_turns_in_flight_when_the_first_slot_ran_dry() -> None:
    run = made_sessions.made((4, 3, 5), made_sessions.rows_of((4, 3, 5), rest_ms=130))
    account = run_section.make_account(made_runs.reported(run), "run-1", draw=False)
    values = [card.figures[0][1].value for card in account.cards[:2]]
    assert values == [run.metrics.output_throughput_per_s, run.metrics.request_throughput_per_s]
    assert run.metrics.completed < run.whole.completed


def test_goodput_is_there_where_objectives_were_requested() -> None:
    run = with_profile(made_runs.run(requests=40), goodput=("ttft:80", "tps_user:9"))
    card = of(run)["Goodput"]
    assert card.figures[0][1].value == run.metrics.goodput_per_s
    assert texts(card)[1] == f"{100 * (run.metrics.slo_attainment or 0):.3g} % of requests"
    assert card.about.endswith("every objective: TTFT ≤ 80 ms, TPS_USER ≥ 9 tok/s.")
    assert "Goodput" not in of(made_runs.run())


def test_a_floors_card_has_its_speed_and_how_many_were_below() -> None:
    card = of(with_profile(made_runs.run(requests=40), slo="tps_user p10 > 1e6"))["TPS_USER P10, objective"]
    assert texts(card)[0].endswith("tok/s: fails")
    assert ": fails, " in card.about
    assert card.about.endswith("40 of 40 below")


def test_whole_answers_have_no_latency_of_tokens() -> None:
    assert list(of(with_profile(made_runs.run(), stream=False))) == [
        "Output", "Requests", "E2EL", "Failure rate",
    ]  # fmt: skip


@loop_over(("figures", "expected"), [
    ({}, {}),
    ({"speed_tok_s": 41.234}, {"Speed": ["41.23 tokens/s"]}),
    ({"mean_ttft_ms": 120.25}, {"TTFT": ["mean 120.2 ms"]}),
    ({"mean_ttft_ms": 120.25, "median_ttft_ms": 100.0, "p99_ttft_ms": 400.0, "output_throughput": 3.5},
     {"Output": ["3.50 tokens/s"], "TTFT": ["P50 100.0 ms", "P99 400.0 ms"]}),
    ({"failed": 3, "completed": 9}, {"Failure rate": ["25 %", "3 of 12"]}),
    ({"failed": 3, "median_itl_ms": None, "p99_itl_ms": float("nan")}, {"Failed": ["3 requests"]}),
])  # fmt: skip
def test_others_runs_have_the_cards_that_their_figures_make(
    figures: dict[str, Any], expected: dict[str, list[str]]
) -> None:
    reported = Reported("m", figures, Load(), "page.md#1")
    assert {card.label: texts(card) for card in run_section.make_cards(reported)} == expected


def test_the_notes_say_what_was_cancelled_and_sent_again() -> None:
    run = with_profile(made_runs.run(), cancel_rate="50%", cancel_after="2tok")
    run.records.resends[:2] = 1
    account = run_section.make_account(made_runs.reported(run), "run-1", draw=False)
    (notes,) = (section for section in account.sections if section.title == "Notes")
    assert "sent again: 2 requests, after the server closed their idle connection" in notes.lines
    assert any(line.startswith("cancelled as planned: 0 of ") for line in notes.lines)


def test_each_figure_of_any_row_is_a_panel_with_the_roofline() -> None:
    run = made_runs.reported(made_runs.run())
    found = made_runs.comparison(
        made_runs.line("base", (run,), roofline=0.5),
        made_runs.line("other", (run,), Decision.SLOWER, roofline=0.25),
    )
    drawn = {panel.key: panel for panel in comparison_section.plot_comparison(found)}
    assert list(drawn) == [
        "bars-output_throughput", "bars-mean_ttft_ms", "bars-mean_tpot_ms", "bars-roofline",
    ]  # fmt: skip
    summary = found.lines[1].summaries["output_throughput"]
    bar = drawn["bars-output_throughput"].bars[1]
    assert (bar.name, bar.value, bar.low, bar.high) == ("other", summary.mean, summary.low, summary.high)
    assert bar.text == f"{summary.mean:,.2f} · 1.250× ▼"
    assert drawn["bars-mean_tpot_ms"].bars[0].best == found.lines[0].summaries["mean_tpot_ms"].mean * 0.5
    assert [bar.value for bar in drawn["bars-roofline"].bars] == [50.0, 25.0]


@pytest.mark.parametrize("count", [1, 8, 9])
def test_ladders_are_speed_over_input_length_eight_to_a_panel(count: int) -> None:
    runs = [
        told(f"m{number}", load=Load(input_len=length), speed_tok_s=100.0 / length)
        for number in range(count)
        for length in (30720.0, 1.0)
    ]
    drawn = list(comparison_section.plot_ladders(runs))
    assert [len(panel.curves) for panel in drawn] == [8] * (count // 8) + [count % 8] * bool(count % 8)
    assert drawn[0].curves[0].x.tolist() == [1.0, 30720.0]
    assert list(comparison_section.plot_ladders(runs[::2])) == []  # one length is no ladder


def section(record: LimitRecord) -> Passage:
    (made,) = make_limit_sections([StoredLimit(Path("search"), record)])
    return made


def test_runs_that_say_nothing_of_the_server_are_labelled() -> None:
    runs = (limit_run(0, 4, 120, 130, disturbed=True), limit_run(1, 8, 240, 271, verdict="INVALID"))
    assert section(limit_record(runs=runs)).panels[0].curves[0].labels == ("disturbed", "INVALID")
    objective, goodput = section(limit_record()).panels
    assert (objective.y_top, objective.band, goodput.title) == (1250, (9.9, 10.9), "Goodput over load")
    assert objective.caption.endswith("Points at the upper edge are above it.")


SLOW, FAST = [100.0, 101.0, 99.0], [200.0, 202.0, 199.0]
RUNS = [
    *rows("bf16", SLOW, reference()), *rows("fp8", FAST, quality(0.003, 0.0004)),
    *rows("int2", FAST[:1], quality(0.31, 0.02)), *rows("none", FAST, None),
]  # fmt: skip


def found() -> list[ComparedLoad]:
    return compare_runs(RUNS, ComparisonOptions(baseline="bf16"))


def test_each_row_is_a_point_with_both_intervals() -> None:
    section = make_quality_section(found())
    assert section.table is not None
    assert [row[0] for row in section.table.body] == ["bf16", "fp8", "int2"]
    (panel,) = section.panels
    points = [curve for curve in panel.curves if curve.form is CurveStyle.MARKS]
    assert [(curve.name, float(curve.x[0]), curve.hollow) for curve in points] == [
        ("bf16", 0.0, (False,)), ("fp8", 0.003, (False,)), ("int2", 0.31, (True,)),
    ]  # fmt: skip
    lines = [curve for curve in panel.curves if curve.of == 1]
    assert lines[0].x.tolist() == [0.003 - 0.0004, 0.003 + 0.0004]
    assert lines[0].y.tolist() == [points[1].y[0]] * 2
    assert lines[1].x.tolist() == [0.003] * 2
    assert lines[1].y[0] < points[1].y[0] < lines[1].y[1]
    single = [curve for curve in panel.curves if curve.of == 2][1]
    assert single.y.tolist() == [200.0, 200.0]  # one run has no interval
    drawn = encode_panel(panel)
    assert [name for name in ("bf16", "fp8", "int2") if name not in drawn] == []
    page = render_markdown(compose_document(RUNS, found()))
    assert "## Quality, against the reference" in page


def test_a_picture_needs_two_distances() -> None:
    one = compare_runs([*rows("a", SLOW, None), *rows("b", FAST, quality(0.1, 0.01))], ComparisonOptions())
    assert make_quality_section(one).panels == ()
    assert not make_quality_section(compare_runs(rows("a", SLOW, None), ComparisonOptions()))


def test_the_csv_of_runs_has_the_figures_of_quality() -> None:
    lines = [*csv.DictReader(io.StringIO(outputs.render_csv(RUNS)))]
    assert [row["kl_high"] for row in lines[::3]][:2] == ["", "0.0034000000000000002"]
    assert "kl" not in outputs.render_csv(rows("a", SLOW, None)).splitlines()[0].split(",")


def test_a_report_begins_with_what_to_take(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    keep_campaign(tmp_path, {"fp8": made_quality(0.05)})
    runs = speeds(bf16=100, fp8=190)
    whole = compose_document(runs, compare_runs(runs, ComparisonOptions()))
    document = replace(whole, sections=(answer.make_passage(answered(tmp_path, runs)), *whole.sections))
    page = render_page(document)
    places = ("summary", "answer", "load-1")
    assert sorted(places, key=lambda name: page.index(f'<section id="{name}">')) == [*places]
    assert '<span class="n" data-key="answer.kl" data-value="0.05">0.050 ±0.010</span>' in page
    lines = render_markdown(document).splitlines()
    assert next(line for line in lines if line.startswith("## ")) == "## What to take"
    assert "| fp8 | 190.0 ±4.7 | 0.050 ±0.010 | 94.0 ±0.6 |" in lines
