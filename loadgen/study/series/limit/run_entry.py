"""Run entry: a measured run as a row of limit.json, and a row as a trial of the search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from loadgen.base.clock import MS_NS
from loadgen.base.rule import Severity
from loadgen.base.text import format_count
from loadgen.figures.objectives import Objective, ObjectiveEvidence, Standing, judged, together
from loadgen.figures.per_request import PerRequest
from loadgen.figures.percentiles import percentiles
from loadgen.report.limit_record import LimitRun, ObjectiveFigures
from loadgen.report.run_directory import Result
from loadgen.study.series.limit.trial import Trial
from loadgen.study.series.points.measuring import MeasuredPoint
from loadgen.verdict.verdict import Level

# Doubts that say that the client or its machine, not the server, made the figures, or that the load was not
# sent: such a run shows nothing of the server, and is made again.
_DISTURBING = frozenset(
    {
        "reads-late", "client-busy", "beyond-capacity", "sends-late", "turns-late", "rate-not-reached",
        "concurrency-not-held", "client-stopped", "impossible-timestamps", "clock-stepped", "other-processes",
        "load-lost", "rest-of-the-load", "acks-late",
    }
)  # fmt: skip
# What makes a run INVALID because the server did not stand its load; of anything else it shows nothing.
_OF_THE_LOAD = frozenset({"many-failures", "counters-reset", "cut-short"})


def entry(
    number: int, load: float, point: MeasuredPoint, objectives: Sequence[Objective], directory: str
) -> LimitRun:
    """The row of a run that was measured, or of why it was not."""
    run = point.run
    if run is None:
        return LimitRun(
            number=number,
            load=load,
            directory="",
            standing=Standing.FAILS if point.server_gone else Standing.NOT_SHOWN,
            reason=point.reason,
            disturbed=not point.server_gone,
            took_s=point.duration_s,
        )
    evidence = judged(run.records, objectives, run.ask)
    saturated = run.facts.saturated
    disturbing = [] if saturated else _disturbing(run)
    figures = run.metrics
    standing, reason = _shown(run, point, evidence, disturbing)
    return LimitRun(
        number=number,
        load=load,
        directory=directory,
        standing=standing,
        reason=reason,
        verdict=run.verdict.level.value,
        doubts=tuple(found.rule.code for found in run.verdict.grave),
        saturated=saturated,
        disturbed=bool(disturbing),
        cut=bool(point.reason),
        objectives=tuple(map(_figures, evidence)),
        duration_s=figures.duration_s,
        took_s=point.duration_s,
        p99_e2el_ms=_p99_e2el_ms(run),
        request_throughput_per_s=_finite(figures.request_throughput_per_s),
        output_throughput_per_s=_finite(figures.output_throughput_per_s),
        goodput_per_s=_finite(figures.goodput_per_s),
    )


def trial(run: LimitRun, objectives: Sequence[Objective]) -> Trial:
    """What a row shows, for the search."""
    return Trial(
        load=run.load,
        duration_s=run.duration_s,
        took_s=run.took_s,
        objectives=tuple(
            _evidence(objective, figures)
            for objective, figures in zip(objectives, run.objectives, strict=bool(run.objectives))
        ),
        invalid=not run.disturbed and (run.cut or run.verdict == Level.INVALID),
        saturated=run.saturated,
        disturbed=run.disturbed,
        p99_e2el_s=None if run.p99_e2el_ms is None else run.p99_e2el_ms / 1e3,
        requests_per_s=run.request_throughput_per_s,
    )


def _p99_e2el_ms(run: Result) -> float | None:
    """The P99 of E2EL, whichever percentiles the report has; None without a success."""
    each = PerRequest.of(run.records, run.ask)
    e2el_ns = each.e2el_ns[each.ok]
    return percentiles(e2el_ns, (99,))[0] / MS_NS if len(e2el_ns) else None


def _disturbing(run: Result) -> list[str]:
    """The doubts for which a run shows nothing of the server."""
    found = run.verdict.grave
    invalid = {each.rule.code for each in found if each.rule.severity is Severity.INVALID}
    beyond = set() if invalid & _OF_THE_LOAD else invalid
    return [each.rule.code for each in found if each.rule.code in _DISTURBING | beyond]


def _shown(
    run: Result, point: MeasuredPoint, evidence: Sequence[ObjectiveEvidence], disturbing: Sequence[str]
) -> tuple[Standing, str]:
    """What a run shows of the objectives together, and why it is not that they are met."""
    if disturbing:
        return Standing.NOT_SHOWN, f"disturbed ({', '.join(disturbing)})"
    if run.facts.saturated:
        return Standing.FAILS, "saturated: the server fell further and further behind"
    if point.reason:
        return Standing.FAILS, point.reason
    if run.verdict.level is Level.INVALID:
        return Standing.FAILS, f"the run is INVALID: {run.verdict.findings[0].rule.code}"
    return together(each.standing for each in evidence), ", ".join(_missed(evidence))


def _missed(evidence: Sequence[ObjectiveEvidence]) -> Iterator[str]:
    """Each objective that is not shown to be met, with what there is of it."""
    for each in evidence:
        if each.passes:
            continue
        what = f"{each.objective.metric} p{each.objective.percentile:g}"
        if each.bound_ms is None and each.standing is not Standing.FAILS:
            yield f"{what}: {format_count(each.samples, 'sample')}, too few"
        elif each.standing is Standing.FAILS:
            yield f"{what} is {each.value_ms:.4g} ms"
        elif each.value_ms <= each.objective.limit_ms:
            yield f"{what} is {each.value_ms:.4g} ms, its bound {each.bound_ms:.4g} ms"
        else:
            yield f"{what} is {each.value_ms:.4g} ms, and may be within"


def _figures(evidence: ObjectiveEvidence) -> ObjectiveFigures:
    return ObjectiveFigures(
        objective=str(evidence.objective),
        samples=evidence.samples,
        over=evidence.over,
        value_ms=_finite(evidence.value_ms),
        bound_ms=_finite(evidence.bound_ms),
        limit_ms=evidence.objective.limit_ms,
        standing=evidence.standing,
        lower_ms=_finite(evidence.lower_ms),
        batches=evidence.batches,
        dispersion=evidence.dispersion,
    )


def _evidence(objective: Objective, figures: ObjectiveFigures) -> ObjectiveEvidence:
    return ObjectiveEvidence(
        objective=objective,
        samples=figures.samples,
        over=figures.over,
        value_ms=math.nan if figures.value_ms is None else figures.value_ms,
        bound_ms=figures.bound_ms,
        lower_ms=figures.lower_ms,
        batches=figures.batches,
        dispersion=figures.dispersion,
    )


def _finite(value: float | None) -> float | None:
    """A number that JSON has; None for infinity and NaN."""
    return value if value is not None and math.isfinite(value) else None
