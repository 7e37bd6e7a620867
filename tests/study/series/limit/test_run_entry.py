"""Run entries: what a measured run is to the search, by its verdict and its figures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from builders.loops import loop_over
from builders.made_runs import run
from loadgen.base.structs import replace
from loadgen.figures.objectives import parse
from loadgen.report.limit_record import LimitRun
from loadgen.report.run_directory import Result
from loadgen.study.series.limit.run_entry import entry, trial
from loadgen.study.series.points.measuring import MeasuredPoint
from loadgen.verdict.run_facts import Client

OBJECTIVES = parse("e2el p50 < 60s")


def made(result: Result) -> MeasuredPoint:
    return MeasuredPoint(result, duration_s=1.0)


def test_a_load_that_the_client_did_not_hold_is_not_counted() -> None:
    few = run(requests=200, concurrency=4)
    asked = few.facts.profile.model_copy(update={"max_concurrency": 5})
    short = Result(replace(few.facts, profile=asked), few.records)
    row = entry(1, 5, made(short), OBJECTIVES, "runs/1")
    assert row.reason == "disturbed (concurrency-not-held)"
    assert (row.disturbed, trial(row, OBJECTIVES).beyond) == (True, False)
    assert entry(1, 4, made(few), OBJECTIVES, "runs/1").passed


@loop_over(
    ("requests", "slo", "standing", "reason"),
    [
        (600, "e2el p50 < 60s, ttft p99 < 10s", "meets", ""),
        (600, "e2el p50 < 60s, ttft p99 < 1ms", "fails", "ttft p99 is "),
        (100, "e2el p50 < 60s, ttft p99 < 10s", "not shown", "ttft p99: 100 samples, too few"),
        (100, "e2el p50 < 1ms, ttft p99 < 10s", "fails", "e2el p50 is "),
    ],
)
def test_a_run_meets_fails_or_does_not_show(requests: int, slo: str, standing: str, reason: str) -> None:
    row = entry(1, 4, made(run(requests=requests)), parse(slo), "runs/1")
    assert (row.standing, row.passed) == (standing, standing == "meets")
    assert row.reason.startswith(reason)
    assert trial(row, parse(slo)).standing == standing
    assert LimitRun.model_validate_json(row.model_dump_json()) == row
    assert json.loads(row.model_dump_json())["standing"] == standing


@loop_over(("gone", "standing", "disturbed"), [(True, "fails", False), (False, "not shown", True)])
def test_a_run_that_could_not_be_made_fails_only_where_the_server_is_gone(
    gone: bool, standing: str, disturbed: bool
) -> None:
    row = entry(1, 4, MeasuredPoint(reason="too many open files", server_gone=gone), OBJECTIVES, "")
    assert (row.standing, row.disturbed, row.reason) == (standing, disturbed, "too many open files")


STOPPED = Client(transport="wire", cpu_s=1.0, wall_s=2.0, stopped_s=9.0)


def test_a_run_that_its_machine_disturbed_shows_nothing() -> None:
    row = entry(1, 4, made(run(requests=200, client=STOPPED)), OBJECTIVES, "runs/1")
    assert (row.standing, row.disturbed) == ("not shown", True)
    assert row.reason == "disturbed (client-stopped)"
    assert row.doubts == ("server-limit", "client-stopped")
    assert trial(row, OBJECTIVES).beyond is False


def test_p99_of_e2el_is_that_whichever_percentiles_the_report_has() -> None:
    measured = run(requests=200)
    profile = measured.facts.profile.model_copy(update={"metric_percentiles": "50"})
    few = Result(replace(measured.facts, profile=profile), measured.records)
    e2el_ms = (measured.records.arrival_ns[15::16] - measured.records.sent_ns) / 1e6
    row = entry(1, 4, made(few), OBJECTIVES, "runs/1")
    assert row.p99_e2el_ms == pytest.approx(float(np.percentile(e2el_ms, 99)))


def test_an_invalid_run_names_its_gravest_doubt() -> None:
    row = entry(1, 4, made(run(requests=200, failed=100)), OBJECTIVES, "runs/1")
    assert row.reason.startswith("the run is INVALID: ")
    assert not row.passed
