"""Judging: what the requests of a run show of its objectives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.base.clock import MS_NS
from loadgen.figures import confidence
from loadgen.figures.figure_table import JUDGED
from loadgen.figures.metrics import gaps
from loadgen.figures.objectives import Objective, ObjectiveEvidence, judgeable
from loadgen.figures.per_request import MetricOptions, PerRequest
from loadgen.figures.record import Records
from loadgen.transport.failure import NO_EVIDENCE

_BATCHES = 20  # of a run, with at least
_BATCH = 10  # requests each
_SLOW = 0.9  # of a run's samples lie at or below what is slow for it, or fewer for a lower percentile
_PARTS = 6  # of a run whose counts of slow samples are compared: long ones, that hardly depend on each other
# Requests that were ended, or lost, by this client: they show nothing of the server.


class _Samples(msgspec.Struct, frozen=True):
    """The samples of one latency: nanoseconds, infinite of a request that failed, and whose each is."""

    values_ns: Float64
    request: Int64  # row of the records
    observations: int  # of them, that count as independent


_NO_SAMPLES = _Samples(np.zeros(0), np.zeros(0, np.int64), 0)


def judged(
    records: Records, objectives: Iterable[Objective], ask: MetricOptions
) -> tuple[ObjectiveEvidence, ...]:
    """What the requests show of each objective, in order.

    A request that failed counts as above any limit, of ITL and token time with as many samples as were
    planned; left out are those that the client ended or lost, and answers that have no such latency (one
    token has no TPOT). Where no token was timed, nothing has one. The gaps of one answer are alike, so bounds
    of ITL and token time rest on as many observations as there are requests.
    """
    each = PerRequest.of(records, ask)
    return tuple(
        _judged(
            objective,
            _samples(objective.metric, records, each)
            if judgeable(objective, ask.times_tokens)
            else _NO_SAMPLES,
            records,
        )
        for objective in objectives
    )


def _judged(objective: Objective, samples: _Samples, records: Records) -> ObjectiveEvidence:
    order, n, rank = np.argsort(samples.values_ns), len(samples.values_ns), objective.percentile
    over = samples.values_ns > objective.limit_ms * MS_NS

    def bound_ms(index: int | None) -> float | None:
        if index is None:
            return None
        # Of all samples, the last of the share that the observations up to this one are.
        place = math.ceil(round((index + 1) / samples.observations * n, 6)) - 1
        return float(samples.values_ns[order[place]]) / MS_NS

    return ObjectiveEvidence(
        objective=objective,
        samples=n,
        over=int(over.sum()),
        value_ms=_percentile(samples.values_ns[order], rank) / MS_NS,
        bound_ms=bound_ms(confidence.upper_index(samples.observations, rank)),
        lower_ms=bound_ms(confidence.lower_index(samples.observations, rank)),
        batches=_batches(samples.request, over, records),
        dispersion=_dispersion(samples, order, records, slow_share(objective)),
    )


def _dispersion(samples: _Samples, order: Int64, records: Records, share: float) -> float:
    """The variance of counts of slow samples, of a few long parts of the run, ÷ the binomial one."""
    if not len(order):
        return 1.0
    slow = samples.values_ns > samples.values_ns[order[math.ceil(share * len(order)) - 1]]
    return dispersion(_batches(samples.request, slow, records))


def slow_share(objective: Objective) -> float:
    """The share of a run's samples above which the others are slow for it.

    Above P90 there are too few to count; but waits of half of all requests last longer than those of a tenth,
    so a median's dispersion is taken at the median.
    """
    return min(_SLOW, objective.percentile / 100)


def dispersion(batches: Sequence[tuple[int, int]]) -> float:
    """How many times as much counts in parts of a run vary as binomial ones; at least 1.

    The first part is left out: the queue is empty when a run begins.
    """
    kept = np.array(batches[1:], float).reshape(-1, 2)
    if len(kept) < 2:
        return 1.0
    n, over = np.array([part.sum(0) for part in np.array_split(kept, min(_PARTS, len(kept)))]).T
    share = over.sum() / max(n.sum(), 1.0)
    if not 0 < share < 1:
        return 1.0
    squares = float(((over - n * share) ** 2 / (n * share * (1 - share))).sum())
    return max(squares / (len(n) - 1), 1.0)


def _percentile(ordered: Float64, percentile: float) -> float:
    """The percentile of ascending values, linear between closest ranks; the last of them may be infinite."""
    if not len(ordered):
        return math.nan
    rank = (len(ordered) - 1) * (percentile / 100)
    low, high = float(ordered[math.floor(rank)]), float(ordered[math.ceil(rank)])
    return low if low == high else low + (high - low) * (rank - math.floor(rank))


def _batches(request: Int64, over: Bool, records: Records) -> tuple[tuple[int, int], ...]:
    """Samples, and those above the limit, of parts of the requests that were sent one after another."""
    having = np.unique(request)
    having = having[np.argsort(records.sent_ns[having], kind="stable")]
    parts = max(min(_BATCHES, len(having) // _BATCH), 1)
    batch = np.zeros(len(records), np.int64)
    batch[having] = np.arange(len(having)) * parts // max(len(having), 1)
    samples = np.bincount(batch[request], minlength=parts)
    above = np.bincount(batch[request[over]], minlength=parts)
    return tuple(zip(samples.tolist(), above.tolist(), strict=True)) if len(request) else ()


def _samples(metric: str, records: Records, each: PerRequest) -> _Samples:
    failed = np.fromiter(
        (f is not None and f.kind not in NO_EVIDENCE for f in records.failures), np.bool_, len(records)
    )
    figure = JUDGED[metric]
    if figure.of == "requests":
        values_ns, has = figure.samples(each)
        rows = np.flatnonzero(has | failed)
        return _Samples(np.where(failed, np.inf, values_ns)[rows], rows, len(rows))
    values_ns, rows = _of_gaps(records, each.ok, per_token=figure.of == "tokens")
    lost = np.repeat(np.flatnonzero(failed), np.maximum(records.planned_output[failed] - 1, 1))
    request = np.concatenate([rows, lost])
    infinite = np.full(len(lost), np.inf)
    return _Samples(np.concatenate([values_ns, infinite]), request, len(np.unique(request)))


def _of_gaps(records: Records, ok: Bool, per_token: bool) -> tuple[Float64, Int64]:
    """The gaps between messages of successes, or these shared by their tokens, and whose each is."""
    values: list[Float64] = [np.zeros(0)]
    rows: list[Int64] = [np.zeros(0, np.int64)]
    for block in records.blocks():
        good = ok[block.first : block.last]
        gap_ns, tokens = gaps(block, good)
        row = np.repeat(
            np.arange(block.first, block.last), np.where(good, np.maximum(np.diff(block.start) - 1, 0), 0)
        )
        if per_token:
            gap_ns, row = np.repeat(gap_ns / np.maximum(tokens, 1), tokens), np.repeat(row, tokens)
        values.append(gap_ns.astype(np.float64))
        rows.append(row)
    return np.concatenate(values), np.concatenate(rows)
