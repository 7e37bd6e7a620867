"""Doubts of a load that changes, or of which a part is cancelled: what the plan explains is no doubt."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from builders.made_cases import MS, START_NS, Rows, answered, failed, open_loop, rate, run, sampled
from loadgen.server.server_counters import RoleWindow
from loadgen.transport.failure import FailureKind
from loadgen.verdict import verdict
from loadgen.verdict.evidence import RunEvidence
from loadgen.verdict.verdict import DOUBTS

BY_DOUBT = {doubt.code: doubt for doubt in DOUBTS}
BURSTS: dict[str, Any] = {"bursts": "20 every 2s", "max_concurrency": None}


def names(case: RunEvidence) -> set[str]:
    return {found.rule.code for found in verdict.judge(case).findings}


def in_bursts(requests: int, longer_ms: float = 0.0) -> Rows:
    """Bursts of 20 every 2 s; each request of a burst takes so much longer than one of the burst before."""
    rows = [answered(i, i, START_NS + i // 20 * 2000 * MS, 5.0, 1.0) for i in range(requests)]
    return [replace(row, end_ns=row.end_ns + int(row.index // 20 * longer_ms * MS)) for row in rows]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        pytest.param(in_bursts(110), False, id="half a burst at the end"),
        pytest.param(in_bursts(320), False, id="whole bursts"),
        pytest.param(in_bursts(320, 1500.0), True, id="bursts that are not over when the next one comes"),
        pytest.param(in_bursts(30, 9000.0), False, id="a single period"),
    ],
)
def test_bursts_are_judged_over_a_period_and_not_at_one_instant(rows: Rows, found: bool) -> None:
    case = run(rows, BURSTS, requests=len(rows), window=None)
    assert (BY_DOUBT["overload"].find(case) is not None) == found


@pytest.mark.parametrize(
    ("aborted", "running", "foreign"),
    [
        (0, 40, set()),  # 8 in flight, and the 32 that were cancelled may all go on
        (0, 41, {"foreign-requests"}),
        (30, 10, set()),
        (30, 11, {"foreign-requests"}),
    ],
)
def test_cancelled_requests_that_go_on_are_no_other_clients(
    aborted: int, running: float, foreign: set[str]
) -> None:
    window = sampled(*[(running, 0.0)] * 6)
    counted = {"length": 320 - aborted} | ({"abort": aborted} if aborted else {})
    case = run(failed(10, FailureKind.USER_CANCELLED), window=window.model_copy(update={"requests": counted}))
    assert names(case) - {"no-abort"} == foreign


@loop_over(("targets", "roles"), [(("http://a", "http://b"), 0), ((), 2)])
def test_samples_of_several_servers_are_of_no_one_instant(targets: tuple[str, ...], roles: int) -> None:
    window = sampled(*[(9, 0.0)] * 6)
    of = RoleWindow(role="worker", name="a", url="http://a", window=window)
    several = run(window=window, targets=targets, role_windows=(of,) * roles)
    found = BY_DOUBT["foreign-requests"].find
    assert found(run(window=window)) is not None
    assert found(several) is None


@pytest.mark.parametrize(
    ("workload", "late"),
    [(rate(100), False), ({"schedule": "rate 100 for 4s", "max_concurrency": None}, True)],
)
def test_a_late_tail_is_judged_where_the_rate_changes(workload: dict[str, Any], late: bool) -> None:
    rows = [replace(row, sent_ns=row.sent_ns + 12 * MS * (row.index % 50 == 0)) for row in open_loop()]
    assert ("sends-late" in names(run(rows, workload, window=None))) is late
    assert "a schedule" in BY_DOUBT["sends-late"].condition
