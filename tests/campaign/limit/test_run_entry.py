"""Run entries: what a measured run is to the search, by its verdict and its figures."""

from __future__ import annotations

import numpy as np
import pytest

from builders.made_runs import run
from loadgen.campaign.limit.run_entry import entry, trial
from loadgen.campaign.points.measuring import MeasuredPoint
from loadgen.metrics.objectives import parse
from loadgen.results.run_directory import Result

OBJECTIVES = parse("e2el p50 < 60s")


def made(result: Result) -> MeasuredPoint:
    return MeasuredPoint(result, duration_s=1.0)


def test_a_load_that_the_client_did_not_hold_is_not_counted() -> None:
    few = run(requests=200, concurrency=4)
    asked = few.facts.profile.model_copy(update={"max_concurrency": 5})
    short = Result(few.facts.model_copy(update={"profile": asked}), few.records)
    row = entry(1, 5, made(short), OBJECTIVES, "runs/1")
    assert row.reason == "the client was the limit (concurrency-not-held)"
    assert (row.client_limited, trial(row, OBJECTIVES).beyond) == (True, False)
    assert entry(1, 4, made(few), OBJECTIVES, "runs/1").passed


def test_p99_of_e2el_is_that_whichever_percentiles_the_report_has() -> None:
    measured = run(requests=200)
    profile = measured.facts.profile.model_copy(update={"metric_percentiles": "50"})
    few = Result(measured.facts.model_copy(update={"profile": profile}), measured.records)
    e2el_ms = (measured.records.arrival_ns[15::16] - measured.records.sent_ns) / 1e6
    row = entry(1, 4, made(few), OBJECTIVES, "runs/1")
    assert row.p99_e2el_ms == pytest.approx(float(np.percentile(e2el_ms, 99)))


def test_an_invalid_run_names_its_gravest_doubt() -> None:
    row = entry(1, 4, made(run(requests=200, failed=100)), OBJECTIVES, "runs/1")
    assert row.reason.startswith("the run is INVALID: ")
    assert not row.passed
