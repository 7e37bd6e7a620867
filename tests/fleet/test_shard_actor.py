"""A shard's process gets its order and its start from its driver, and its counts reach the rules."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import asdict

from builders.loops import loop_over
from loadgen.base.errors import MeasureError
from loadgen.fleet.cluster_session import ClusterFiring
from loadgen.fleet.shard_actor import ShardOrder
from loadgen.fleet.shard_process import DriverLine
from loadgen.plan.request_sources import Seed, WordCounts
from loadgen.run.command.progress import Totals
from loadgen.run.stop_rules import StopRules
from loadgen.settings.shard_settings import Share

ORDER = ShardOrder(
    Share(1, 4), "0" * 32, "http://127.0.0.1:1", {"Authorization": "Bearer k"}, "loadgen-",
    {"model": "m", "more_urls": ("http://127.0.0.1:2",), "metadata": ("a=b",), "workers": 2, "http2": True},
    "5%", {"input_len": 8, "output_len": 2, "request_rate": float("inf")}, Seed(1, chosen=True),
    word_counts={"chat": WordCounts(("a", "b"), 3.0, 1.5)},
)  # fmt: skip


def test_an_order_arrives_as_it_was_given(tmp_path: Path) -> None:
    packed = ORDER.pack()
    arrived = DriverLine(tmp_path, io.BytesIO(len(packed).to_bytes(8, "little") + packed)).order()
    given = {**ORDER.given, "more_urls": ["http://127.0.0.1:2"], "metadata": ["a=b"]}
    assert {**asdict(arrived), "given": given} == {**asdict(ORDER), "given": given}
    options = arrived.options("runs", "totals")
    assert (options.shard, options.workers, options.more_urls) == (Share(1, 4), 2, ("http://127.0.0.1:2",))


def test_an_order_that_ends_is_of_a_driver_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="the driver is gone"):
        DriverLine(tmp_path, io.BytesIO((5).to_bytes(8, "little") + b"abc")).order()


def test_a_start_that_never_comes_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="the driver's start is more than 3600 s from now"):
        DriverLine(tmp_path, io.BytesIO(b"\xff" * 8)).start()


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
