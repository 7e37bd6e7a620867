"""Limit record: a search that an earlier format stored reads as one of today."""

from __future__ import annotations

from typing import Any

from builders.loops import loop_over
from loadgen.figures.objectives import Standing
from loadgen.report.limit_record import LimitRun


@loop_over(
    ("stored", "standing", "disturbed"),
    [
        ({"passed": True, "client_limited": False}, Standing.MEETS, False),
        ({"passed": False, "client_limited": False, "value_ms": 610.0}, Standing.FAILS, False),
        ({"passed": False, "client_limited": False, "value_ms": 173.6}, Standing.NOT_SHOWN, False),
        ({"passed": False, "client_limited": True, "value_ms": 610.0}, Standing.NOT_SHOWN, True),
        ({"passed": False, "saturated": True, "value_ms": 173.6}, Standing.FAILS, False),
    ],
)
def test_a_run_of_format_1_shows_one_of_the_three_words(
    stored: dict[str, Any], standing: Standing, disturbed: bool
) -> None:
    figures = {
        "objective": "ttft p99 < 500 ms",
        "samples": 104,
        "over": 0,
        "bound_ms": None,
        "limit_ms": 500.0,
    }
    objective = figures | {"value_ms": stored.pop("value_ms", 100.0)}
    run = LimitRun.model_validate(
        {"number": 1, "load": 2.0, "directory": "runs/a", "reason": "", "objectives": [objective], **stored}
    )
    assert (run.standing, run.disturbed) == (standing, disturbed)
