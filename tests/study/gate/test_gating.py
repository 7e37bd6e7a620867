"""Simulated gates, fewer than the page's: what is called slower is so, and what is slower is found."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from benchmarks import gating
from benchmarks.gating import Case, run_gates
from benchmarks.simulated.populations import Made, Population, gated
from builders.loops import loop_over
from loadgen.base.arrays import Bool
from loadgen.study.gate.gate_verdict import ALPHA, MARGIN, GatePlan

GATES = 2_000
PLAIN = Made("", 0.02)
POPULATIONS = [PLAIN, Made("", 0.02, drift=0.05), Made("", 0.02, "t3"), Made("", 0.02, "hiccups"), *gated()]


def assert_at_most(limit: float, hits: Bool) -> None:
    """The share is not shown to be above the limit: one binomial test in a thousand would."""
    assert stats.binomtest(int(hits.sum()), hits.size, limit, alternative="greater").pvalue > 1e-3


@pytest.mark.long
@loop_over("most", [3, 4, 6, 12, 25, 40])
@loop_over("rows", [1, 4])
def test_alpha_holds_at_every_number_of_looks(most: int, rows: int) -> None:
    plan = GatePlan(max_pairs=most, sequential=True)
    for truth in (0.0, MARGIN):
        seen = run_gates(Case(PLAIN, truth, rows, plan), GATES)
        assert_at_most(ALPHA, seen.slower)
        assert not (seen.slower & seen.not_slower).any()
        if truth:
            assert_at_most(ALPHA, seen.not_slower)


@pytest.mark.long
@loop_over("population", POPULATIONS)
def test_alpha_holds_for_runs_of_every_kind(population: Population) -> None:
    for truth in (0.0, MARGIN):
        assert_at_most(ALPHA, run_gates(Case(population, truth), GATES).slower)


@pytest.mark.long
@loop_over("spread", [0.005, 0.01, 0.02, 0.025])
def test_five_percent_slower_is_found_in_nine_gates_of_ten(spread: float) -> None:
    seen = run_gates(Case(Made("", spread), gating.SLOWER), GATES)
    assert seen.slower.mean() > gating.FOUND
    alike = run_gates(Case(Made("", spread), 0.0), GATES)
    assert alike.not_slower.mean() > gating.FOUND
    assert np.median(alike.pairs) < 16


@pytest.mark.long
def test_the_page_has_every_section() -> None:
    for section in gating.SECTIONS:
        lines = section(20)
        assert lines[0].startswith("## ")
        assert any(line.startswith("| ") for line in lines)
