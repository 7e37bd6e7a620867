"""`--workers auto`: as many workers as the load needs and no more than there are CPUs for."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from builders.loops import loop_over
from loadgen import cli
from loadgen.engines import engines
from loadgen.facts.calibration import Calibration, Error
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


# A profile's keys, its warm-up, of how many parts; messages per second, and from what they are known.
EXPECTED = [
    ({"max_concurrency": 50}, warmed(), 1, 5000.0, "50 streams, a chunk each 10 ms"),
    ({"max_concurrency": 50}, warmed(), 4, 1250.0, "50 streams, a chunk each 10 ms"),
    ({"max_concurrency": 500}, warmed(), 1, 10_000.0, "100 streams, a chunk each 10 ms"),
    ({}, warmed(), 1, 10_000.0, "100 streams, a chunk each 10 ms"),  # all at once
    ({"request_rate": 30.0}, warmed(), 1, 150.0, "30 requests/s of 5 chunks"),
    ({"request_rate": 30.0}, warmed(tokens=4), 1, 150.0, "30 requests/s of 5 chunks"),
    ({"request_rate": 30.0, "max_concurrency": 1}, warmed(), 1, 100.0, "1 stream, a chunk each 10 ms"),
    ({"max_concurrency": 50, "stream": False}, warmed(), 1, 1000.0, "50 streams, a chunk each 50 ms"),
    (
        {"max_concurrency": 50},
        NOTHING_WARMED,
        1,
        2500.0,
        "50 streams, a chunk each 20 ms (a guess: there was no warm-up)",
    ),
    (
        {"request_rate": 30.0},
        NOTHING_WARMED,
        1,
        1200.0,
        "30 requests/s of 40 chunks (a guess: there was no warm-up)",
    ),
]


@loop_over(("keys", "before", "part_of", "per_s", "source"), EXPECTED)
def test_a_load_is_expected_from_its_rate_or_its_streams_and_the_warm_up(
    keys: dict[str, object], before: Records, part_of: int, per_s: float, source: str
) -> None:
    assert expect_load(planned(**keys), before, part_of) == (per_s, source)


NONE = "no load of the self-test was held by one worker"
# Messages per second, what one worker holds, most, targets; workers, and the end of the reason.
CHOICES = [
    (10_000.0, 20_000.0, 8, 1, 1, "one worker holds 20,000"),  # half of what it holds
    (10_001.0, 20_000.0, 8, 1, 2, "one worker holds 20,000"),
    (35_000.0, 20_000.0, 8, 1, 4, "one worker holds 20,000"),
    (90_000.0, 20_000.0, 8, 1, 8, "one worker holds 20,000; more than 8 would need more CPUs"),
    (10_000.0, 0.0, 8, 1, 8, f"{NONE}; more than 8 would need more CPUs"),
    (25_000.0, 20_000.0, 3, 2, 2, "one worker holds 20,000"),  # four would be more than there are CPUs for
    (10_000.0, 20_000.0, 8, 2, 2, "one worker holds 20,000"),  # one for each target
    (25_000.0, 20_000.0, 8, 2, 4, "one worker holds 20,000"),
]  # fmt: skip


@loop_over(("per_s", "held", "most", "targets", "workers", "reason"), CHOICES)
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
