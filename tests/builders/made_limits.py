"""Made limits: a search for the highest load as its record has it, without a server."""

from __future__ import annotations

from typing import Any

from loadgen.figures.objectives import Standing
from loadgen.study.limit_record import LimitEstimate, LimitRecord, LimitRun, ObjectiveFigures

TTFT, SPEED = "ttft p99 < 500 ms", "tps_user p10 > 30 tok/s"


def limit_run(number: int, load: float, value_ms: float, bound_ms: float | None, **changes: Any) -> LimitRun:
    """One run; it meets where the bound is within the limit, and where there is none nothing is shown."""
    met = Standing.MEETS if bound_ms is not None and bound_ms <= 500 else Standing.FAILS
    standing = Standing.NOT_SHOWN if bound_ms is None else met
    figures = ObjectiveFigures(
        objective=TTFT, samples=1200, over=3, value=value_ms, bound=bound_ms, limit=500, standing=standing
    )
    made = LimitRun(
        number=number,
        load=load,
        directory=f"runs/{number:03}",
        standing=standing,
        reason="" if standing is Standing.MEETS else f"{TTFT} is not met",
        verdict="VALID",
        objectives=(figures,),
        duration_s=60.0,
        output_throughput_per_s=90 * load,
        goodput_per_s=0.9 * load,
    )
    return made.model_copy(update=changes)


def limit_record(**changes: Any) -> LimitRecord:
    """A search over the rate that ended as asked: 10.4 requests a second (9.9 to 10.9)."""
    made = LimitRecord(
        name="bf16",
        command=("loadgen", "limit"),
        axis="rate",
        objectives=(TTFT,),
        within=0.05,
        budget_s=1800,
        runs=(limit_run(0, 4, 120, 130), limit_run(1, 16, 2200, 2900, saturated=True),
              limit_run(2, 8, 240, 271), limit_run(3, 11.3, 460, 520.3), limit_run(4, 9.51, 330, 360)),
        ended="within",
        limit=LimitEstimate(value=10.4, low=9.9, high=10.9),
        highest_passing=9.51,
        lowest_failing=11.3,
        bound_by=TTFT,
        bottleneck="queue",
        evidence="mean queue time 310 ms of 330 ms TTFT",
        goodput_per_s=8.56,
        headroom=41.2,
        knee=LimitEstimate(value=9.1, low=8.2, high=None),
        notes=("P99 needs 459 requests a run",),
    )  # fmt: skip
    return made.model_copy(update=changes)


def speed_run(number: int, load: float, speed_tok_s: float, bound_tok_s: float) -> LimitRun:
    """One run of a search for a floor of the output speed."""
    standing = Standing.MEETS if bound_tok_s >= 30 else Standing.FAILS
    figures = ObjectiveFigures(
        objective=SPEED, unit="tok/s", samples=1200, over=3, value=speed_tok_s, bound=bound_tok_s, limit=30,
        fast_bound=speed_tok_s + 1, standing=standing,
    )  # fmt: skip
    return limit_run(number, load, 0.0, None, objectives=(figures,), standing=standing, reason="")
