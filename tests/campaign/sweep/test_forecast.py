"""The time left: from the loads themselves, and from points that are done."""

from __future__ import annotations

from typing import Any

from loadgen.campaign.sweep.forecast import Forecast, TimedPoint, forecast
from loadgen.campaign.sweep.grid import GridPoint
from loadgen.workload.profile import Profile


def point(number: int, serve: dict[str, str] | None = None, **keys: Any) -> GridPoint:
    return GridPoint(number, keys, serve or {}, 0, Profile(**keys))


def test_a_rate_and_a_duration_have_their_own_time() -> None:
    left = [point(0, request_rate=0.05, num_prompts=50), point(1, max_concurrency=4, duration=30.0)]
    assert forecast(left, (), ()) == Forecast(1030.0, 0)
    assert forecast(left, (), ()).words == "about 17 min"


def test_a_closed_loop_takes_as_long_a_request_as_the_nearest_point() -> None:
    done = [
        TimedPoint(point(0, max_concurrency=1, num_prompts=50), 100.0),
        TimedPoint(point(1, max_concurrency=8, num_prompts=80), 30.0),
    ]
    assert forecast([point(2, max_concurrency=16, num_prompts=320)], done, ()).seconds == 60.0
    # The same settings again, as a repeat has them, take the same time.
    assert forecast([point(3, max_concurrency=1, num_prompts=50)], done, ()).seconds == 100.0


def test_what_nothing_shows_is_unknown() -> None:
    left = [point(0, max_concurrency=1), point(1, request_rate=1.0, num_prompts=60)]
    assert forecast(left[:1], (), ()).words == ""
    assert forecast(left, (), ()).words == "at least 60 s"
    assert Forecast(0.4, 0).words == "less than 1 s"
    assert Forecast(0.4, 1).words == ""


def test_a_server_with_other_flags_takes_a_start() -> None:
    rate = {"request_rate": 1.0, "num_prompts": 10}
    flags = [{"max-num-seqs": value} for value in ("8", "16", "16", "32")]
    points = [point(number, serve, **rate) for number, serve in enumerate(flags)]
    done = [TimedPoint(points[0], 10.0)]
    assert forecast(points[1:], done, [40.0, 50.0, 90.0]).seconds == 3 * 10 + 2 * 50
