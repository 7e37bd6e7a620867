"""Comparison section: bars next to the roofline, and lengths of input, from any reported figures."""

from __future__ import annotations

from typing import Any

import pytest

from builders import made_runs
from loadgen.report.load_identity import Load
from loadgen.study.compare.model import Decision
from loadgen.study.pages import comparison_section
from loadgen.study.run_summary import Reported


def told(name: str, **figures: Any) -> Reported:
    load = figures.pop("load", Load(input_len=100.0, output_len=10.0))
    return Reported(name=name, figures=figures, load=load, source="a page", told_by="page")


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


def test_a_row_without_its_figure_has_no_bar() -> None:
    run = made_runs.reported(made_runs.run())
    found = made_runs.comparison(
        made_runs.line("base", (run,)), made_runs.line("failed", (), failures=("died",))
    )
    assert [bar.name for bar in next(iter(comparison_section.plot_comparison(found))).bars] == ["base"]
    assert [curve.name for curve in comparison_section.plot_row_distributions(found)[0].curves] == [
        "base",
        "",
    ]


def test_others_results_have_no_distributions() -> None:
    found = made_runs.comparison(made_runs.line("a", (told("a", output_throughput=3.0),)))
    assert comparison_section.plot_row_distributions(found) == []


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


def test_one_length_is_no_ladder() -> None:
    assert list(comparison_section.plot_ladders([told("m", load=Load(input_len=1.0), speed_tok_s=3.0)])) == []
