"""Cluster firing: what the rules to stop see of requests that shards have decoded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from builders.loops import loop_over
from loadgen.fleet.cluster_session import ClusterFiring
from loadgen.run.command.progress import Totals
from loadgen.run.stop_rules import StopRules


@loop_over(
    ("seen", "expected"),
    [
        ([Totals(decoded=3, failed=3), Totals(decoded=5, failed=3, cancelled=2)], (3, 3, 3)),
        ([Totals(decoded=3, failed=3), Totals(decoded=5, failed=3)], (5, 3, 0)),
        ([Totals(decoded=4, failed=1, cancelled=2), Totals(decoded=6, failed=3, cancelled=2)], (4, 3, 2)),
    ],
)
def test_cancelled_requests_end_no_row_of_failures(
    seen: list[Totals], expected: tuple[int, int, int], tmp_path: Path
) -> None:
    fleet: Any = SimpleNamespace(rule="")
    firing = ClusterFiring(fleet, StopRules(), tmp_path)
    for totals in seen:
        firing._note(totals)
    assert (firing.rules.ended, firing.rules.failed, firing.rules.in_a_row) == expected
