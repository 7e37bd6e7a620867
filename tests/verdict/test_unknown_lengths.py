"""Requests whose lengths only the server knows (whole bodies of a file) are compared with no plan."""

from __future__ import annotations

from typing import Any

import pytest

from builders.made_cases import INPUT, REQUESTS, changed, closed, observed, run
from loadgen.features.roofline import bound
from loadgen.records.record import UNKNOWN
from loadgen.report import report
from loadgen.report.run_directory import Result
from loadgen.verdict import reconcile, verdict
from loadgen.verdict.evidence import RunEvidence

BODIES: dict[str, Any] = {"planned_input": UNKNOWN, "planned_output": UNKNOWN}


def found(case: RunEvidence) -> set[str]:
    return {finding.rule.code for finding in verdict.judge(case).findings}


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_no_length_is_held_against_a_plan_that_has_none(ignore_eos: bool) -> None:
    other: dict[str, Any] = {"input_tokens": 4 * INPUT, "output_tokens": 5, "finish_reason": "stop"}
    lengths = {"answer-lengths", "early-ends", "prompt-lengths"}
    workload = {"ignore_eos": ignore_eos}
    planned = found(run(changed(closed(), **other), workload, window=None))
    unplanned = found(run(changed(closed(), **BODIES, **other), workload, window=None))
    assert len(planned & lengths) == 2
    assert not unplanned & lengths


def test_some_without_a_plan_leave_the_others_compared() -> None:
    rows = changed(changed(closed(), input_tokens=INPUT + 20), 2, **BODIES, input_tokens=9 * INPUT)
    assert "prompt-lengths" in found(run(rows, window=None))


def test_without_usage_their_prompt_tokens_are_unknown_and_not_planned() -> None:
    case = run(changed(closed(), 4, **BODIES, input_tokens=UNKNOWN), window=observed())
    metrics = case.metrics
    unknown = REQUESTS // 4
    assert (metrics.unknown_inputs, metrics.planned_inputs) == (unknown, 0)
    assert metrics.total_input_tokens == (REQUESTS - unknown) * INPUT
    assert bound.list_bound_figures(case.facts, metrics)[1].input_len == INPUT
    assert metrics.prefill_speed.n == REQUESTS - unknown
    assert [mismatch.figure for mismatch in reconcile.find_mismatches(observed(), metrics)] == []
    text = " ".join(report.render_report(Result(case.facts, case.records)).split())
    assert f"input tokens: unknown for {unknown} requests whose usage has none" in text
    assert "as planned for" not in text


@pytest.mark.parametrize(("input_tokens", "shown"), [(UNKNOWN, False), (INPUT, True)])
@pytest.mark.parametrize("layout", ["vllm-0.32", "sglang"])
def test_unknown_prompt_tokens_are_no_zero_in_the_block(input_tokens: int, shown: bool, layout: str) -> None:
    case = run(changed(closed(), 4, **BODIES, input_tokens=input_tokens), window=observed())
    text = report.render_report(Result(case.facts, case.records), layout=layout)
    assert ("Total input tokens:" in text, "Total token throughput" in text) == (shown, shown)
    rows = {line.split(":")[0] for line in text.splitlines() if line.endswith(" ")}  # of the block
    assert any(row.startswith(("Total input", "Input token", "Total token")) for row in rows) == shown
    assert "Output token throughput" in text
