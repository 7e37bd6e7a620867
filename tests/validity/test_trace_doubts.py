"""Doubts of a run whose requests are due at the times of a trace."""

from __future__ import annotations

import math
from typing import Any

import pytest

from builders import made_data
from builders.made_cases import MS, START_NS, TPOT_MS, TTFT_MS, Rows, answered, open_loop, rate, run
from loadgen.validity import verdict
from loadgen.validity.evidence import RunEvidence

TRACE = {"trace": "trace.jsonl", "max_concurrency": None}


def traced(rows: Rows, data: Any) -> RunEvidence:
    return run(rows, TRACE, data=data, ceiling=None)


def found(case: RunEvidence) -> dict[str, str]:
    return {finding.rule.code: finding.evidence for finding in verdict.judge(case).findings}


def one_late() -> Rows:
    """One request in fifty leaves 20 ms late."""
    pairs = zip(open_loop(), open_loop(late_ms=20.0), strict=True)
    return [row if row.index % 50 else late for row, late in pairs]


def faster(rows_ms: float, then_ms: float, ttft_ms: float = TTFT_MS) -> Rows:
    """Requests that come at one gap, and from halfway through the time at a shorter one."""
    half_ms = 320 * rows_ms / 2
    at_ms = [i * rows_ms for i in range(160)] + [
        half_ms + i * then_ms for i in range(round(half_ms / then_ms))
    ]
    sent_ns = [START_NS + int(at * MS) for at in at_ms]
    rows = [answered(i, i, at, ttft_ms, TPOT_MS) for i, at in enumerate(sent_ns)]
    for row in rows:
        row.intended_ns = row.sent_ns
    return rows


@pytest.mark.parametrize(
    ("rows", "evidence"),
    [
        pytest.param(open_loop(), "", id="on time"),
        pytest.param(
            open_loop(late_ms=4.0),
            "sent 4.00 ms late on average, 4.00 ms at most, 4.00 ms by P99, scheduled 10 ms apart in the "
            "mean of the trace: the client was late",
            id="all of them late",
        ),
        pytest.param(
            one_late(),
            "sent 0.44 ms late on average, 20.00 ms at most, 20.00 ms by P99, scheduled 10 ms apart in the "
            "mean of the trace: the client was late",
            id="one in fifty very late",
        ),
    ],
)  # fmt: skip
def test_sends_of_a_trace_are_late_by_mean_or_p99(rows: Rows, evidence: str) -> None:
    assert found(traced(rows, made_data.trace(100.0))).get("sends-late", "") == evidence


def test_one_late_send_in_fifty_is_no_doubt_at_a_rate() -> None:
    assert "sends-late" not in found(run(one_late(), rate(100)))


def test_a_trace_that_took_longer_than_planned_is_doubted() -> None:
    evidence = found(traced(open_loop(stretch=1.2), made_data.trace(100.0)))
    assert evidence["rate-not-reached"] == "83.3 requests/s sent, 100 planned"


@pytest.mark.parametrize(
    ("case", "overloaded"),
    [
        pytest.param(traced(faster(40, 4), made_data.trace()), False, id="as much as the trace's own rate"),
        pytest.param(run(faster(40, 4), rate(100)), True, id="the same at a rate"),
    ],
)
def test_a_trace_overloads_only_beyond_its_own_rise(case: RunEvidence, overloaded: bool) -> None:
    assert ("overload" in found(case)) is overloaded


@pytest.mark.parametrize(
    ("data", "rate_per_s"),
    [
        pytest.param(made_data.trace(7.5), 7.5, id="a trace"),
        pytest.param(made_data.trace(0.0), math.inf, id="all at one time"),
        pytest.param(made_data.data(), math.inf, id="a file without times"),
    ],
)
def test_the_planned_rate_is_the_mean_of_a_trace(data: Any, rate_per_s: float) -> None:
    facts = traced(open_loop(), data).facts
    assert facts.planned_rate_per_s == rate_per_s
    assert facts.block().request_rate_per_s == rate_per_s
