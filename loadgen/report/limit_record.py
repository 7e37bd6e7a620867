"""Limit record: `limit.json`, the highest load that met the objectives, and the search for it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, model_validator

from loadgen import __version__
from loadgen.figures.objectives import Standing
from loadgen.report.sweep_record import LoadAxis

LIMIT = "limit.json"
# 1: the first. 2: what a run shows is one of three words, and its doubts are listed.
FORMAT = 2

# What of the server (or the client) the evidence of the lowest failing load points to.
Bottleneck = Literal["queue", "prefill", "decode", "kv-cache", "client", "unknown"]
# within: the interval is as narrow as asked; nothing-passes, everything-passes: the bounds of the search;
# client-limited: runs stayed disturbed by the client, or its machine, and the search went no higher.
SearchEnd = Literal[
    "within", "budget", "most-runs", "nothing-passes", "everything-passes", "client-limited", "interrupted",
    "server-died",
]  # fmt: skip


class LimitEstimate(BaseModel, extra="forbid", frozen=True):
    """An estimate and where the truth lies at a confidence; None: on that side nothing is known."""

    value: float | None
    low: float | None
    high: float | None
    confidence: float = 0.95


class ObjectiveFigures(BaseModel, extra="forbid", frozen=True):
    """What one run of the search showed of one objective; milliseconds, None where there is none."""

    objective: str
    samples: int
    over: int  # samples above the limit
    value_ms: float | None
    bound_ms: float | None  # upper bound at 99 % confidence
    limit_ms: float
    standing: Standing = Standing.NOT_SHOWN
    lower_ms: float | None = None  # lower bound at 99 % confidence
    batches: tuple[tuple[int, int], ...] = ()  # samples, and those above the limit, of successive parts
    dispersion: float = 1.0  # see ObjectiveEvidence


class LimitRun(BaseModel, extra="forbid", frozen=True):
    """One whole run of the search."""

    number: int
    load: float
    directory: str  # below the search's; "": nothing was measured
    standing: Standing  # of all objectives together: whether the load is shown to meet them, or to fail
    reason: str  # why it is not shown to meet them; "" if it is
    verdict: str = ""
    doubts: tuple[str, ...] = ()  # that make it SUSPECT or INVALID, the gravest first
    saturated: bool = False  # ended early: the server fell further and further behind
    disturbed: bool = False  # by the client or its machine: it says nothing about the server
    cut: bool = False  # it ended before its time, though not as saturated, or every request failed
    objectives: tuple[ObjectiveFigures, ...] = ()
    duration_s: float = 0.0  # that was measured
    took_s: float = 0.0  # of the budget, warm-up and writing included
    p99_e2el_ms: float | None = None
    request_throughput_per_s: float | None = None
    output_throughput_per_s: float | None = None
    goodput_per_s: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_format_1(cls, data: Any) -> Any:
        """Take a run of format 1, which had `passed` and `client_limited` for what a run shows."""
        if not isinstance(data, dict) or "passed" not in data:
            return data
        run = {**data, "disturbed": data.get("client_limited", False)}
        passed = run.pop("passed")
        run.pop("client_limited", None)
        values = ((each.get("value_ms"), each.get("limit_ms")) for each in run.get("objectives", ()))
        above = any(value is None or value > limit for value, limit in values)
        fails = not run["disturbed"] and (above or run.get("saturated", False))
        run["standing"] = Standing.MEETS if passed else Standing.FAILS if fails else Standing.NOT_SHOWN
        return run

    @property
    def passed(self) -> bool:
        """Whether every objective is shown to be met at its load."""
        return self.standing is Standing.MEETS


class LimitRecord(BaseModel, extra="forbid", frozen=True):
    """A search: what was asked, its runs in order, and the answer."""

    format: int = FORMAT
    loadgen: str = __version__
    name: str
    command: tuple[str, ...]  # secrets hidden
    axis: LoadAxis
    objectives: tuple[str, ...]
    within: float  # asked: 0.05 is 5 %
    budget_s: float | None
    most_runs: int = 12
    least_run_s: float | None = None  # asked; None: by the requests' own times
    fixed: str = ""  # a digest of all that is not varied: a search is resumed only with the same
    seed: int = 0
    start: float | None = None  # the first load; with the next three None until the server was probed
    lowest: float | None = None  # bounds of the search
    highest: float | None = None
    alone_s: float | None = None  # that a request takes, alone on the server
    attempts: int = 0  # how often the next run was begun, and cut off: another one has other prompts
    runs: tuple[LimitRun, ...] = ()
    ended: SearchEnd | None = None  # None: it goes on
    next_run_s: float | None = None  # that the next run takes at least, where the budget has less left
    limit: LimitEstimate | None = None  # of the highest load that meets the objectives
    highest_passing: float | None = None  # load that is shown to meet them
    lowest_failing: float | None = None  # load above it that is shown to fail
    bound_by: str = ""  # the objective that failed first
    bottleneck: Bottleneck | None = None
    evidence: str = ""  # of the bottleneck, in words with figures
    goodput_per_s: float | None = None  # at the highest passing load
    headroom: float | None = None  # of the client there, × its load
    headroom_at_least: bool = False  # its capacity is not known: at least as many
    knee: LimitEstimate | None = None
    notes: tuple[str, ...] = ()
    simulated: bool = False  # the embedded engine answered with a preset's timing
