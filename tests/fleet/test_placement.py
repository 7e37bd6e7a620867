"""Where shards are placed: one on each node, then a second on each; refused where there is no room."""

from __future__ import annotations

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.fleet.ray_cluster import plan_rounds


@loop_over(
    ("cpus", "shards", "each", "sizes"),
    [
        pytest.param([4, 4, 4], 3, 2, [3], id="one on each node"),
        pytest.param([4, 4, 4], 2, 2, [2], id="fewer than there are nodes"),
        pytest.param([4, 4, 4], 5, 2, [3, 2], id="then a second on each"),
        pytest.param([8, 2, 0], 5, 2, [2, 1, 1, 1], id="nodes of different sizes, one without any"),
        pytest.param([16], 8, 2, [1] * 8, id="one node"),
        pytest.param([3, 3], 2, 2, [2], id="a CPU that is left over"),
        pytest.param([64] * 8, 64, 4, [8] * 8, id="evenly"),
    ],
)
def test_shards_are_spread_before_they_are_packed(
    cpus: list[float], shards: int, each: int, sizes: list[int]
) -> None:
    found = plan_rounds({str(number): count for number, count in enumerate(cpus)}, shards, each)
    assert found == sizes
    assert sum(found) == shards


@loop_over(
    ("cpus", "message"),
    [
        (
            [4, 3],
            "--shards 5 need 10 CPUs, 2 each (to capture, and to decode): the cluster's 2 nodes have 7, room "
            "for 3: --shards 3",
        ),
        (
            [1],
            "--shards 5 need 10 CPUs, 2 each (to capture, and to decode): the cluster's 1 nodes have 1, room "
            "for 0: add nodes",
        ),
    ],
)
def test_what_has_no_room_is_refused_with_what_there_is(cpus: list[float], message: str) -> None:
    with pytest.raises(UsageError) as error:
        plan_rounds({str(number): count for number, count in enumerate(cpus)}, 5, 2)
    assert str(error.value) == message
