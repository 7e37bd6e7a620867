"""`--workers auto`: as many workers as the load needs and no more than there are CPUs for."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders.loops import loop_over, read_tables
from loadgen import cli
from loadgen.engines import engines
from loadgen.facts.run_facts import Calibration, Error
from loadgen.features.selftest import kept_selftests
from loadgen.host.environment import describe_machine
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.records.record import Record, Records
from loadgen.report.run_directory import REPORT, RESULT
from loadgen.run import worker_count
from loadgen.run.worker_count import choose_automatically, choose_workers, expect_load
from loadgen.transport.capture_process import TRANSPORTS

MS = 1_000_000
EXACT = Error(median_us=0, p99_us=0, max_us=0, p99_percent=0)
NOTHING_WARMED = Records.from_records([])


def calibrated(tokens_per_s: float, bounded: bool = True) -> Calibration:
    return Calibration(
        measured=datetime(2025, 1, 2, tzinfo=UTC),
        environment="here",
        transport="ring",
        streams=256,
        interval_ms=20.0,
        ttft=EXACT,
        gap=EXACT,
        e2e=EXACT,
        events_per_read=1.0,
        capacity_tokens_per_s=tokens_per_s,
        capacity_streams=256,
        capacity_bounded=bounded,
        cpu_us_per_token=5.0,
    )


def planned(**keys: object) -> Plan:
    subject = ModelTarget(engines.find_by_owner("loadgen-null") or engines.UNKNOWN, "null")
    lengths = {"num_prompts": 100, "input_len": 4, "output_len": 40}
    return plan.make(profile.build({**lengths, **keys}), subject, Seed(0))


def warmed(messages: int = 5, gap_ms: int = 10, tokens: int = 1) -> Records:
    """Two answers, a chunk each `gap_ms`, the first as long after the request."""
    rows = []
    for index in range(2):
        arrivals = (1 + np.arange(messages, dtype=np.int64)) * gap_ms * MS
        rows.append(
            Record(
                index,
                0,
                0,
                0,
                int(arrivals[-1]),
                arrival_ns=arrivals,
                tokens=np.full(messages, tokens, np.int64),
                output_tokens=messages * tokens,
            )
        )
    return Records.from_records(rows)


TABLES = read_tables("worker_count")


# A profile's keys, its warm-up, of how many parts; messages per second, and from what they are known.
@loop_over(("keys", "before", "part_of", "per_s", "source"), TABLES["expected"])
def test_a_load_is_expected_from_its_rate_or_its_streams_and_the_warm_up(
    keys: dict[str, Any], before: dict[str, int] | None, part_of: int, per_s: float, source: str
) -> None:
    records = NOTHING_WARMED if before is None else warmed(**before)
    assert expect_load(planned(**keys), records, part_of) == (per_s, source)


# Messages per second, what one worker holds, most, targets; workers, and the end of the reason.
@loop_over(("per_s", "held", "most", "targets", "workers", "reason"), TABLES["chosen"])
def test_workers_are_as_many_as_hold_twice_the_load(
    per_s: float, held: float, most: int, targets: int, workers: int, reason: str
) -> None:
    chosen = choose_workers((per_s, "4 streams"), calibrated(held), most, targets)
    assert chosen == (workers, f"auto: {per_s:,.0f} chunks/s expected, 4 streams; {reason}")


def test_nothing_is_measured_where_there_are_no_cpus_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_count, "count_affordable", lambda: 1)

    def measured() -> Calibration:
        pytest.fail("it was measured")

    assert choose_automatically(planned(), warmed(), measured) == (1, "auto: a second needs 4 CPUs")


@loop_over(("cpus", "most"), [(1, 1), (2, 1), (3, 1), (4, 2), (17, 8)])
def test_each_worker_has_two_cpus(cpus: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)))
    assert worker_count.count_affordable() == most


@pytest.mark.whole
def test_a_run_has_the_workers_that_its_load_needs_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(worker_count, "count_affordable", lambda: 2)
    here = kept_selftests.environment_digest(describe_machine())
    kept = [
        calibrated(50.0).model_copy(update={"transport": transport, "environment": here})
        for transport in TRANSPORTS
    ]
    assert kept_selftests.remember(kept)
    words = ["--profile", "smoke", "--preset", "instant", "--workers", "auto", "--quiet"]
    assert cli.main(["bench", *words, "--run-dir", str(tmp_path / "runs")]) == 0
    (directory,) = (tmp_path / "runs").iterdir()
    client = json.loads((directory / RESULT).read_text("utf-8"))["loadgen"]["client"]
    assert client["workers"] == 2
    assert client["why_workers"].endswith("one worker holds 50; more than 2 would need more CPUs")
    report = (directory / REPORT).read_text("utf-8")
    assert f"workers: 2 ({client['why_workers']})" in " ".join(report.split())
    assert [
        kept_selftests.read_remembered(each.transport, here) for each in kept
    ] == kept  # none was measured
