"""Class figures: what became of each class of a workload that is a mix of several."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadgen.base.arrays import Bool, Int64
from loadgen.figures.distribution import Distribution
from loadgen.figures.per_request import PerRequest
from loadgen.settings.request_class import RequestClass

_P99 = (99.0,)


class ClassFigures(msgspec.Struct, frozen=True):
    """One class of a run; latencies in milliseconds, over its successes, NaN if there are none."""

    name: str
    asked_share: float  # of the requests, 0 to 1
    requests: int
    share: float  # of the run's requests, 0 to 1
    failed: int
    cancelled: int  # as planned
    completed: int  # the others
    input_tokens: int  # of successes
    output_tokens: int
    mean_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    p99_tpot_ms: float
    mean_e2el_ms: float
    p99_e2el_ms: float
    good: int | None  # requests that met --goodput; None: no objective was given


def figures(
    classes: Sequence[RequestClass], of: Int64, each: PerRequest, good: Bool | None
) -> list[ClassFigures]:
    """The figures of each class; `of`, int64[requests], is the number of each request's class.

    `good`, bool[requests], says which met the objectives; None: there were none.
    """
    return [_figures(kind, of == number, each, good) for number, kind in enumerate(classes)]


def _figures(kind: RequestClass, ours: Bool, each: PerRequest, good: Bool | None) -> ClassFigures:
    ttft = Distribution.of(each.ttft_ns[ours & each.has_ttft], _P99)
    tpot = Distribution.of(each.tpot_ns()[ours & each.has_tpot], _P99)
    e2el = Distribution.of(each.e2el_ns[ours & each.ok], _P99)
    return ClassFigures(
        name=kind.name,
        asked_share=kind.share / 100,
        requests=int(ours.sum()),
        share=float(ours.mean()) if len(ours) else 0.0,
        failed=int((ours & each.failed).sum()),
        cancelled=int((ours & each.cancelled).sum()),
        completed=int((ours & each.ok).sum()),
        input_tokens=int(each.input_tokens[ours & each.ok].clip(0).sum()),
        output_tokens=int(each.output_tokens[ours & each.ok].sum()),
        mean_ttft_ms=ttft.mean_ms,
        p99_ttft_ms=ttft.p99_ms,
        mean_tpot_ms=tpot.mean_ms,
        p99_tpot_ms=tpot.p99_ms,
        mean_e2el_ms=e2el.mean_ms,
        p99_e2el_ms=e2el.p99_ms,
        good=None if good is None else int((good & ours).sum()),
    )
