"""What a sweep announces: a point that is long, or of which no one knows how long it is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from builders.loops import loop_over
from loadgen.plan.plan_inputs import Seed
from loadgen.plan.profile import Profile
from loadgen.report.sweep_record import SweepRecord
from loadgen.study.series.sweep.grid import GridPoint
from loadgen.study.series.sweep.sweep_run import planned
from loadgen.study.series.sweep.sweep_store import SweepStore
from loadgen.study.series.sweep.sweeping import Sweeping


@loop_over(
    ("keys", "line"),
    [
        ({"request_rate": 0.05, "num_prompts": 50}, "[1/1] rate=0.05: measuring 50 requests, about 17 min"),
        ({"max_concurrency": 4, "num_prompts": 50}, "[1/1] concurrency=4: measuring 50 requests"),
        ({"max_concurrency": 4, "duration": 60.0}, "[1/1] concurrency=4: measuring 60 s"),
        ({"max_concurrency": 4, "duration": 5.0}, None),
        ({"request_rate": 10.0, "num_prompts": 50}, None),
    ],
)
def test_a_long_point_is_announced(keys: dict[str, Any], line: str | None) -> None:
    load = {key: value for key, value in keys.items() if key in ("request_rate", "max_concurrency")}
    points = (GridPoint(0, load, {}, 0, Profile(**keys)),)
    record = SweepRecord(name="s", command=(), fixed="", seed=0, points=planned(points))
    lines: list[str] = []
    servers = cast("Any", SimpleNamespace(starts_s=[], options=SimpleNamespace(preset=None)))
    sweeping = Sweeping(SweepStore(Path()), record, points, servers, Seed(0), lines.append)
    sweeping._begin(points[0], attempts=0)
    assert lines == [line] * (line is not None)
