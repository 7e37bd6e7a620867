"""Bound lines: percentiles with their upper bounds, and objectives judged by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over
from builders.made_cases import changed, closed, failed, run
from loadgen.report import bound_lines, report
from loadgen.report.run_directory import Result

_E2EL = "E2EL 150.00 ms"
_TTFT = "TTFT 50.00 ms (≤ 50.00 at 99 %)"
_TPOT = "TPOT 10.00 ms (≤ 10.00 at 99 %)"
_NO_TTFT, _NO_TPOT, _ITL = "TTFT 50.00 ms", "TPOT 10.00 ms", "ITL 10.00 ms"
_WHY = "ITL: no bound, since the gaps of one answer are alike"


def result(requests: int, workload: dict[str, Any] | None = None) -> Result:
    """A run of so many requests, all alike."""
    case = run(closed()[:requests], requests=requests, workload=workload or {})
    return Result(case.facts, case.records)


@loop_over(
    ("requests", "workload", "lines"),
    [
        (
            43,
            {"metric_percentiles": "90"},
            [f"P90 {_NO_TTFT}, {_NO_TPOT}, {_ITL}; 43 samples, a bound needs 44", _WHY],
        ),
        (44, {"metric_percentiles": "90"}, [f"P90 {_TTFT}, {_TPOT}, {_ITL}", _WHY]),
        (
            320,
            {"metric_percentiles": "99,90", "percentile_metrics": "ttft"},
            [f"P99 {_NO_TTFT}; 320 samples, a bound needs 459", f"P90 {_TTFT}"],
        ),
        (320, {"metric_percentiles": "100", "percentile_metrics": "ttft"}, [f"P100 {_NO_TTFT}"]),
        (44, {"metric_percentiles": "90", "percentile_metrics": "itl"}, [f"P90 {_ITL}", _WHY]),
    ],
)  # fmt: skip
def test_a_percentile_has_its_bound_from_enough_samples_on(
    requests: int, workload: dict[str, Any], lines: list[str]
) -> None:
    assert list(bound_lines.percentiles(result(requests, workload), None)) == lines


@pytest.mark.parametrize(
    ("workload", "lines"),
    [
        ({"metric_percentiles": "90,50"}, [f"P90 {_TTFT}, {_TPOT}"]),
        ({"metric_percentiles": "90", "percentile_metrics": "itl"}, []),
    ],
)
def test_the_short_report_has_the_highest_percentile(workload: dict[str, Any], lines: list[str]) -> None:
    assert list(bound_lines.highest(result(320, workload), None)) == lines


@pytest.mark.parametrize(
    ("slo", "line"),
    [
        ("ttft p90 < 50ms", "ttft p90 < 50 ms: meets, 50.00 ms (≤ 50.00 at 99 %), 0 of 320 above"),
        ("ttft p90 < 49ms", "ttft p90 < 49 ms: fails, 50.00 ms (≤ 50.00 at 99 %), 320 of 320 above"),
        ("ttft p99 < 50ms", "ttft p99 < 50 ms: not shown, 50.00 ms, 0 of 320 above"),
    ],
)
def test_an_objective_is_met_missed_or_not_shown(slo: str, line: str) -> None:
    made = result(320, {"slo": slo})
    assert next(bound_lines.objectives(made, None)) == line
    assert f"\n{line}\n" in report.render(made)
    assert f"\n{line}\n" in report.short(made, "runs/r")


def test_failures_count_as_above_every_limit() -> None:
    case = run(failed(5), workload={"slo": "e2el p90 < 1000s"})
    line = next(bound_lines.objectives(Result(case.facts, case.records), None))
    assert line == "e2el p90 < 1000000 ms: fails, ∞ ms (≤ ∞ at 99 %), 64 of 320 above"


def test_without_goodput_the_limits_of_slo_count_good_requests() -> None:
    made = result(320, {"slo": "ttft p90 < 49ms, e2el p99 < 1000s"})
    assert made.metrics.slo_attainment == 0.0
    assert list(bound_lines.objectives(made, None))[-1] == (
        "goodput: of requests within ttft 49 ms, e2el 1e+06 ms (the limits of --slo)"
    )
    given = result(320, {"slo": "ttft p90 < 49ms", "goodput": ("ttft:60",)})
    assert given.metrics.slo_attainment == 1.0
    assert len(list(bound_lines.objectives(given, None))) == 1


def test_a_result_has_the_objectives_without_infinity() -> None:
    case = run(failed(5), workload={"slo": "e2el p90 < 2s, ttft p50 < 1s"})
    first, second = Result(case.facts, case.records).json()["loadgen"]["objectives"]
    assert (first["value_ms"], first["bound_ms"], first["standing"], first["over"]) == (
        None,
        None,
        "fails",
        64,
    )
    assert (second["value_ms"], second["bound_ms"], second["standing"]) == (50.0, 50.0, "meets")
    assert second["objective"] == {"metric": "ttft", "percentile": 50.0, "limit_ms": 1000.0}


def test_no_figure_is_shown_that_the_block_leaves_out() -> None:
    rows = changed(closed())
    for row in rows:  # each answer comes whole, at its end
        row.arrival_ns = np.full_like(row.arrival_ns, row.end_ns)
    case = run(rows)
    whole = Result(case.facts, case.records)
    assert list(bound_lines.percentiles(whole, None)) == [f"P99 {_E2EL}; 320 samples, a bound needs 459"]
    shown = " ".join(report.render(whole).split())
    assert "see arrivals-not-tokens" in shown
    assert [name for name in ("TTFT (ms)", "ITL (ms)", "P99 of TTFT") if name in shown] == []
