"""What counts and percentiles rest on stands in a line under the block, once and where it matters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen.figures.metrics import Metrics, compute
from loadgen.figures.per_request import MetricOptions
from loadgen.figures.record import Record, Records
from loadgen.report.figure_basis import percentile_lines, token_lines

MS = 1_000_000
SELECTED = ("ttft", "tpot", "itl")


def measured(requests: int, tokens: int = 5, single: int = 0, ask: Any = (99.0,), **known: Any) -> Metrics:
    """Requests of so many messages of a token, the first `single` of them of one."""
    rows = []
    for i in range(requests):
        at_ns = np.arange(2, 3 if i < single else 2 + tokens, dtype=np.int64) * MS
        fields = {"output_tokens": len(at_ns), "usage": True, "finish_reason": "stop", **known}
        rows.append(
            Record(
                i, 0, MS, MS, int(at_ns[-1]), arrival_ns=at_ns, tokens=np.ones(len(at_ns), np.int64), **fields
            )
        )
    return compute(Records.of(rows), MetricOptions(metric_percentiles=ask))


@loop_over(
    ("metrics", "line"),
    [
        pytest.param(measured(459), None, id="enough"),
        pytest.param(measured(458), "P99 from 458 requests (5 beyond it)", id="nearly"),
        pytest.param(measured(100), "P99 from 100 requests (1 beyond it)", id="as usual"),
        pytest.param(
            measured(99), "P99 from 99 requests (next to the slowest)", id="fewer than a point needs"
        ),
        pytest.param(measured(1, tokens=400), "P99 from 1 of the requests", id="one alone"),
        pytest.param(measured(0), None, id="of nothing"),
        pytest.param(
            measured(100, ask=(50.0, 90.0, 99.0, 99.9)),
            "P99 from 100 requests (1 beyond it); P99.9 from 100 requests (next to the slowest); "
            "P99.9 of ITL from 400 gaps (next to the slowest)",
            id="several",
        ),
        pytest.param(
            measured(100, single=50, tokens=7),
            "P99 of TTFT from 100 requests (1 beyond it); P99 of TPOT from 50 requests (next to the slowest)",
            id="answers of one token have no TPOT",
        ),
        pytest.param(
            measured(20),
            "P99 from 20 requests (next to the slowest); P99 of ITL from 80 gaps (next to the slowest)",
            id="few gaps too",
        ),
        pytest.param(measured(16, tokens=16), "P99 from 16 requests (next to the slowest)", id="gaps enough"),
        pytest.param(
            measured(40, tokens=9, ask=(1.0,)), "P1 from 40 requests (next to the fastest)", id="low"
        ),
    ],
)
def test_a_percentile_of_few_samples_says_of_how_many(metrics: Metrics, line: str | None) -> None:
    assert list(percentile_lines(metrics, SELECTED)) == ([] if line is None else [f"percentiles: {line}"])


def test_percentiles_that_are_not_shown_are_not_spoken_of() -> None:
    assert list(percentile_lines(measured(100), ("itl",))) == []


UNKNOWN: Any = {"usage": False, "exact_tokens": False}


@loop_over(
    ("known", "line"),
    [
        ({}, "as reported by the server in usage"),
        (UNKNOWN, "no usage: messages were counted instead"),
        (
            {**UNKNOWN, "finish_reason": "length", "planned_output": 5},
            "no usage: messages of one token each were counted",
        ),
        ({"usage": False}, "no usage: messages of one token each were counted"),
        (
            {**UNKNOWN, "text_tokens": 5},
            "no usage: counted from the text, without special tokens, by the tokenizer in /models/a",
        ),
    ],
)
def test_how_tokens_were_counted_is_one_line(known: Any, line: str) -> None:
    assert next(token_lines(measured(4, **known), "/models/a")) == f"tokens: {line}"


def test_each_way_of_counting_has_its_share() -> None:
    metrics = compute(Records.of([*_rows(0, 2), *_rows(2, 1, **UNKNOWN)]), MetricOptions())
    assert list(token_lines(metrics, "")) == [
        "tokens: 2 of 3 responses: as reported by the server in usage; "
        "1 of 3 responses: no usage: messages were counted instead"
    ]


def _rows(first: int, count: int, **known: Any) -> list[Record]:
    at_ns = np.array([2 * MS, 3 * MS])
    fields = {"usage": True, "finish_reason": "stop", **known}
    return [
        Record(i, 0, MS, MS, 3 * MS, arrival_ns=at_ns, tokens=np.ones(2, np.int64), output_tokens=2, **fields)
        for i in range(first, first + count)
    ]
