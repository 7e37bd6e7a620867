"""The time left: from the loads themselves, and from points that are done."""

from __future__ import annotations

from typing import Any

from loadgen.plan.profile import Profile
from loadgen.run.options import Options
from loadgen.study.series.sweep.forecast import Forecast, TimedPoint, forecast
from loadgen.study.series.sweep.grid import GridPoint

NONE = Options()


def point(number: int, serve: dict[str, str] | None = None, **keys: Any) -> GridPoint:
    return GridPoint(number, keys, serve or {}, 0, Profile(**keys))


def test_a_rate_and_a_duration_have_their_own_time() -> None:
    left = [point(0, request_rate=0.05, num_prompts=50), point(1, max_concurrency=4, duration=30.0)]
    assert forecast(left, (), (), NONE) == Forecast(1030.0, 0)
    assert forecast(left, (), (), NONE).words == "about 17 min"


def test_a_closed_loop_takes_as_long_a_request_as_the_nearest_point() -> None:
    done = [
        TimedPoint(point(0, max_concurrency=1, num_prompts=50), 100.0),
        TimedPoint(point(1, max_concurrency=8, num_prompts=80), 30.0),
    ]
    assert forecast([point(2, max_concurrency=16, num_prompts=320)], done, (), NONE).seconds == 60.0
    # The same settings again, as a repeat has them, take the same time.
    assert forecast([point(3, max_concurrency=1, num_prompts=50)], done, (), NONE).seconds == 100.0


def test_what_nothing_shows_is_unknown() -> None:
    left = [point(0, max_concurrency=1), point(1, request_rate=1.0, num_prompts=60)]
    assert forecast(left[:1], (), (), NONE).words == ""
    assert forecast(left, (), (), NONE).words == "at least 60 s"
    assert Forecast(0.4, 0).words == "less than 1 s"
    assert Forecast(0.4, 1).words == ""


def test_a_server_with_other_flags_takes_a_start() -> None:
    rate = {"request_rate": 1.0, "num_prompts": 10}
    flags = [{"max-num-seqs": value} for value in ("8", "16", "16", "32")]
    points = [point(number, serve, **rate) for number, serve in enumerate(flags)]
    done = [TimedPoint(points[0], 10.0)]
    assert forecast(points[1:], done, [40.0, 50.0, 90.0], NONE).seconds == 3 * 10 + 2 * 50


def test_a_preset_has_the_time_in_its_steps() -> None:
    """16 prompts of 64 / 16, one at a time, take four times as long as four at a time, and less than that."""
    keys: dict[str, Any] = {"input_len": 64, "output_len": 16, "num_prompts": 16}
    alone, together = (point(at, max_concurrency=at, **keys) for at in (1, 4))
    preset = Options(preset="h20/qwen3-8b-fp8")
    one, four = (forecast([each], (), (), preset) for each in (alone, together))
    assert (one.unknown, four.unknown) == (0, 0)
    assert 1.5 < one.seconds < 3
    assert 2 < one.seconds / four.seconds <= 4
    measured = [TimedPoint(together, 10.0)]
    assert forecast([alone], measured, (), preset).seconds == 40.0
