"""Attribution: rows, thresholds and sums are those of the report's figures."""

from __future__ import annotations

import numpy as np
import pytest

from builders import made_runs
from loadgen.features.attribution import attribution
from loadgen.features.attribution.attribution import Attribution
from loadgen.features.attribution.parts import BEFORE_SENT, PARTS, ROWS
from loadgen.plan import profile
from loadgen.report.run_directory import Result
from loadgen.verdict.evidence import RunEvidence


def attribute_run(run: Result) -> Attribution:
    """The attribution of a whole run."""
    return run.derive(attribution.attribute_run)


def test_each_part_is_declared_once() -> None:
    assert [part.key for part in PARTS] == list(ROWS)
    assert ROWS["unknown"] == len(PARTS) - 1
    assert all(part.label and part.about for part in PARTS)
    assert set(BEFORE_SENT) < set(ROWS)


@pytest.mark.parametrize("failed", [0, 3])
def test_rows_are_those_that_the_figures_count(failed: int) -> None:
    run = made_runs.run(requests=40, tokens=30, failed=failed, seed=3)
    found, itl, ttft = attribute_run(run), run.metrics.itl, run.metrics.ttft
    assert (found.threshold_ns / 1e6, found.typical_ns / 1e6) == (itl.p99_ms, itl.median_ms)
    assert len(found.ttft) == ttft.n == 40 - failed
    assert found.ttft.after_sent_ns.mean() / 1e6 == pytest.approx(ttft.mean_ms, rel=1e-12)
    assert len(found.gaps) == int(np.ceil(itl.n / 100))
    assert bool((found.gaps.whole_ns > found.threshold_ns).all())
    at = run.records.start[found.gaps.request] + found.gaps.message
    arrival_ns = run.records.arrival_ns
    assert np.array_equal(arrival_ns[at] - arrival_ns[at - 1], found.gaps.whole_ns)
    for rows in (found.ttft, found.gaps, found.tail_ttft):
        assert np.array_equal(rows.parts.sum(axis=0), rows.whole_ns)
        assert bool((rows.parts >= 0).all())
        assert sum(rows.sum_parts().values()) == int(rows.whole_ns.sum())


def test_a_run_without_token_times_has_no_rows() -> None:
    keys = {"name": "made", "input_len": 64, "output_len": 16, "num_prompts": 24, "stream": False}
    run = made_runs.run(profile=profile.build(keys))
    found = attribute_run(run)
    assert (len(found.ttft), len(found.gaps), found.nothing_to_explain) == (0, 0, True)
    assert np.isnan([found.threshold_ns, found.typical_ns]).all()
    assert len(found.tail_ttft) == 0


def test_what_a_doubt_derived_is_not_derived_again_for_the_report() -> None:
    run = made_runs.run(requests=12)
    judged = RunEvidence(run.facts, run.records, run.metrics, parts=run.parts)
    assert judged.derive(attribution.attribute_run) is attribute_run(run)
