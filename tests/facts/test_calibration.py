"""A self-test's arithmetic is right on known stamps, and what is kept of it survives anything."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from builders.loops import loop_over, read_tables
from loadgen.facts.run_facts import Calibration, Error
from loadgen.features.selftest import kept_selftests

TABLES = read_tables("calibration")

US = 1000
MS = 1000 * US
EXACT = Error(median_us=0, p99_us=0, max_us=0, p99_percent=0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "loadgen" / "selftest.json"


def calibrated(transport: str = "wire", environment: str = "here", **changes: object) -> Calibration:
    return Calibration.model_validate(
        {
            "measured": datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC),
            "environment": environment,
            "transport": transport,
            "streams": 256,
            "interval_ms": 20.0,
            "ttft": Error(median_us=50.5, p99_us=80, max_us=200, p99_percent=0.2),
            "gap": EXACT,
            "e2e": EXACT,
            "events_per_read": 1.25,
            "capacity_tokens_per_s": 100_000.0,
            "capacity_streams": 2048,
            "cpu_us_per_token": 7.5,
            **changes,
        }
    )


# Error.


@pytest.mark.parametrize(
    ("said", "true", "expected"),
    [
        ([10 * MS], [10 * MS], (0.0, 0.0, 0.0, 0.0)),
        ([11 * MS], [10 * MS], (1000.0, 1000.0, 1000.0, 10.0)),
        ([9 * MS], [10 * MS], (1000.0, 1000.0, 1000.0, 10.0)),  # too early is as wrong as too late
        ([10 * MS, 19 * MS, 40 * MS], [10 * MS, 20 * MS, 30 * MS], (1000.0, 9820.0, 10000.0, 49.1)),
    ],
)
def test_an_error_is_absolute_and_relative_to_the_true_median(
    said: list[int], true: list[int], expected: tuple[float, ...]
) -> None:
    error = Error.from_pairs(np.array(said), np.array(true))
    assert (error.median_us, error.p99_us, error.max_us, error.p99_percent) == pytest.approx(expected)
    assert error.percent(error.p99_us) == error.p99_percent


# The cache.


def test_what_is_kept_is_found_again_by_transport_and_environment(cache: Path) -> None:
    assert kept_selftests.read_remembered("wire", "here") is None
    wire, httpx = calibrated("wire"), calibrated("httpx", capacity_bounded=False)
    assert kept_selftests.remember([wire, httpx])
    assert kept_selftests.cache_path() == cache
    assert kept_selftests.read_remembered("wire", "here") == wire
    assert kept_selftests.read_remembered("httpx", "here") == httpx
    assert kept_selftests.read_remembered("wire", "elsewhere") is None


def test_a_run_of_several_workers_has_their_self_test_or_one_worker_s() -> None:
    one, two = calibrated(), calibrated(workers=2, capacity_tokens_per_s=150_000.0)
    kept_selftests.remember([one])
    assert kept_selftests.read_remembered("wire", "here", 2) == one
    kept_selftests.remember([two])
    found = [kept_selftests.read_remembered("wire", "here", workers) for workers in (1, 2, 3)]
    assert found == [one, two, one]


@pytest.mark.parametrize(
    ("measured", "workers", "rate", "headroom"),
    [
        *((1, 1, rate, fits) for rate, fits in ((50_000.0, 2.0), (400_000.0, 0.25), (0.0, float("inf")))),
        *((at, of, 50_000.0, fits) for at, of, fits in ((1, 3, 6.0), (2, 2, 2.0), (2, 4, 4.0))),
    ],
)
def test_headroom_is_how_often_the_rate_fits_what_the_workers_hold(
    measured: int, workers: int, rate: float, headroom: float
) -> None:
    assert calibrated(workers=measured).headroom(rate, workers) == headroom


def test_a_later_one_replaces_its_own_kind_only() -> None:
    kept_selftests.remember([calibrated("wire"), calibrated("httpx"), calibrated("wire", "elsewhere")])
    fresh = calibrated("wire", capacity_streams=1)
    kept_selftests.remember([fresh])
    assert kept_selftests.read_remembered("wire", "here") == fresh
    assert kept_selftests.read_remembered("httpx", "here") == calibrated("httpx")
    assert kept_selftests.read_remembered("wire", "elsewhere") == calibrated("wire", "elsewhere")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"format":1,"calibrations":[{"transport":"wire"}]}',
        b'{"format":2,"calibrations":[]}',
        None,
    ],
)
def test_a_damaged_cache_is_ignored_with_a_line(
    content: bytes | None, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.mkdir(parents=True)
    if content is None:
        cache.mkdir()
    else:
        cache.write_bytes(content)
    assert kept_selftests.read_remembered("wire", "here") is None
    (warning,) = caplog.messages
    assert warning.startswith(f"earlier self-tests are ignored: {cache}: ")
    assert "\n" not in warning
    if content is not None:
        assert kept_selftests.remember([calibrated()])
        assert kept_selftests.read_remembered("wire", "here") == calibrated()


def test_a_cache_that_cannot_be_written_is_told_and_no_fault(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.parent.write_text("a file where the directory would be")
    assert kept_selftests.remember([calibrated()]) is False
    assert caplog.text.count("the self-test's result is not stored: ") == 1


FACTS = {"cpu": "A", "cpus": "2", "platform": "Linux-6", "python": "CPython 3.11.7", "loadgen": "1"}


@loop_over(("change", "same"), TABLES["environments"])
def test_another_machine_or_software_is_another_environment(change: dict[str, str], same: bool) -> None:
    before, after = (kept_selftests.environment_digest(facts) for facts in (FACTS, {**FACTS, **change}))
    assert (before == after) is same


def test_headroom_counts_messages_not_the_tokens_in_them() -> None:
    assert calibrated(tokens_per_message=4).headroom(50_000.0) == 0.5
