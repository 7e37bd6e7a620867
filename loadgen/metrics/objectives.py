"""Objectives: percentiles of a run's latencies that must stay below a limit, and what a run shows of them."""

from __future__ import annotations

import msgspec


class Objective(msgspec.Struct, frozen=True):
    """A percentile of one latency that must not exceed a limit."""

    metric: str  # a name of metrics.SELECTABLE: ttft, tpot, itl, e2el, …
    percentile: float  # 0 to 100, exclusive
    limit_ms: float

    def __str__(self) -> str:
        return f"{self.metric} p{self.percentile:g} < {self.limit_ms:g} ms"


class ObjectiveEvidence(msgspec.Struct, frozen=True):
    """What one run shows of one objective; a request that failed counts as above any limit.

    `batches` are (samples, samples above the limit) of successive parts of the run by time of sending, for
    the spread between them: samples of one run follow one another, and are not independent.
    """

    objective: Objective
    samples: int
    over: int  # of them, above the limit
    value_ms: float  # the percentile; NaN if empty
    bound_ms: float | None  # its upper bound at 99 % confidence; None: too few samples
    batches: tuple[tuple[int, int], ...] = ()

    @property
    def passes(self) -> bool:
        """Whether the percentile is shown to meet the objective: its upper bound does."""
        return self.bound_ms is not None and self.bound_ms <= self.objective.limit_ms
