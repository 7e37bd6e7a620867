"""Trial: what one whole run of a search showed, and what the search was asked; no I/O in here."""

from __future__ import annotations

import msgspec

from loadgen.figures.objectives import Objective, ObjectiveEvidence, Standing, together
from loadgen.report.sweep_record import LoadAxis
from loadgen.study.series.limit.edge import counted

_ROUNDING = 1e-9


class SearchSettings(msgspec.Struct, frozen=True):
    """What is searched for, between which loads, how closely and at what cost.

    Loads are requests per second or, over concurrency, whole numbers of requests in flight.
    """

    axis: LoadAxis
    objectives: tuple[Objective, ...]
    start: float
    lowest: float
    highest: float
    within: float = 0.05
    budget_s: float | None = None
    most_runs: int = 12
    least_run_s: float | None = None  # of one run; None: 60 s, or ten times the P99 of E2EL if that is longer
    alone_s: float | None = None  # that one request takes, alone on the server; None: not known


class Trial(msgspec.Struct, frozen=True):
    """One run of the search; `objectives` are in the order of the settings, empty if nothing was measured.

    `took_s` is all that the run cost of the budget, `duration_s` the measured time of it.
    """

    load: float
    duration_s: float
    took_s: float
    objectives: tuple[ObjectiveEvidence, ...] = ()
    invalid: bool = False
    saturated: bool = False  # ended early: the server fell further and further behind
    disturbed: bool = False  # by the client or its machine: it shows nothing of the server
    p99_e2el_s: float | None = None
    requests_per_s: float | None = None  # that ended

    @property
    def standing(self) -> Standing:
        """What the run shows of the objectives together."""
        if self.disturbed:
            return Standing.NOT_SHOWN
        return together(each.standing for each in self.objectives) if self.usable else Standing.FAILS

    @property
    def passed(self) -> bool:
        """Whether every objective is shown to be met, in a run that says something about the server."""
        return self.standing is Standing.MEETS

    @property
    def short(self) -> bool:
        """Whether only samples are missing: no objective is above its limit, and one has no bound."""
        few = any(each.bound_ms is None for each in self.objectives)
        return self.usable and few and not any(map(above, self.objectives))

    @property
    def usable(self) -> bool:
        """Whether its counts above the limits are those of the server at this load."""
        return bool(self.objectives) and not (self.invalid or self.saturated or self.disturbed)

    @property
    def beyond(self) -> bool:
        """Whether the load is, as far as this run alone shows, above what meets the objectives."""
        if self.disturbed:
            return False
        return not self.usable or any(map(above, self.objectives))


def above(evidence: ObjectiveEvidence) -> bool:
    """Whether more samples are above the limit than the percentile allows, as the edge is fitted to them."""
    return not evidence.samples or share_over(evidence) > allowed(evidence.objective) * (1 + _ROUNDING)


def share_over(evidence: ObjectiveEvidence) -> float:
    """The share of samples above the limit, of the parts of the run that count; 0 if empty."""
    parts = counted(parts_of(evidence))
    samples, over = (sum(part[column] for part in parts) for column in (0, 1))
    return over / max(samples, 1)


def parts_of(evidence: ObjectiveEvidence) -> tuple[tuple[int, int], ...]:
    """Samples, and those above the limit, of successive parts of a run."""
    return evidence.batches or ((evidence.samples, evidence.over),)


def allowed(objective: Objective) -> float:
    """The share of samples that may be above the limit."""
    return round(1 - objective.percentile / 100, 12)  # 0.1 at P90, as it is written
