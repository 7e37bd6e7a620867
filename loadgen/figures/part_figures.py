"""Part figures: what each class, stage or turn of a run's requests got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Bool, Int64, sum_exactly
from loadgen.base.clock import SECOND_NS
from loadgen.figures.distribution import Distribution
from loadgen.figures.figure_table import LATENCIES
from loadgen.figures.metrics import cached_tokens
from loadgen.figures.per_request import PerRequest
from loadgen.figures.record import Records
from loadgen.plan.arrival import StageWindow
from loadgen.settings.request_class import RequestClass

_OWN_ROW = 4  # turns that have a row of their own; after them 5 to 8, 9 to 16, and so on


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


class StageFigures(msgspec.Struct, frozen=True):
    """One stage; latencies in milliseconds, over the successes that were due in it, NaN if there are none."""

    name: str
    begin_s: float  # after the start
    end_s: float
    requests: int  # that were due in it; of a closed loop, sent in it
    failed: int  # of these
    rate_per_s: float  # requests sent in it / its time
    mean_in_flight: float  # ∫ requests in flight dt / its time, those of earlier stages included
    most_in_flight: int
    mean_ttft_ms: float
    p99_ttft_ms: float
    mean_ttft_intended_ms: float  # from when each request was due
    mean_e2el_ms: float
    p99_e2el_ms: float


class TurnFigures(msgspec.Struct, frozen=True):
    """The turns of one row; latencies in milliseconds over its successes, NaN if there are none."""

    first: int  # turn, counted from 1
    last: int
    requests: int
    failed: int
    mean_input_tokens: float | None  # by usage, else as planned; None: not known
    cached_tokens: int  # of successes that report them
    cached_of: int  # prompt tokens of these
    cached_share: float | None  # cached_tokens / cached_of, 0 to 1; None: no response reports any
    mean_output_tokens: float | None
    mean_ttft_ms: float
    median_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    mean_e2el_ms: float

    @property
    def name(self) -> str:
        """The turn, or the range of turns, as 3 or 5–8."""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


def part_latencies(row: type[msgspec.Struct], each: PerRequest, part: Bool) -> dict[str, Any]:
    """The statistics of latencies that are fields of a row, over some requests, bool[requests].

    Fields are called as the keys of a result: mean_ttft_ms, median_tpot_ms, p99_e2el_ms. NaN where no request
    has one.
    """
    found: dict[str, Any] = {}
    for figure in LATENCIES:
        words = [
            word for word in ("mean", "median", "p99") if figure.statistic(word) in row.__struct_fields__
        ]
        if words:
            values_ns, has = figure.samples(each)
            latency = Distribution.of(values_ns[part & has], (99.0,))
            found |= {figure.statistic(word): getattr(latency, f"{word}_ms") for word in words}
    return found


def class_figures(
    classes: Sequence[RequestClass], numbers: Int64, each: PerRequest, good: Bool | None
) -> list[ClassFigures]:
    """The figures of each class; `numbers`, int64[requests], is the number of each request's class.

    `good`, bool[requests], says which met the objectives; None: there were none.
    """
    return [_of_class(kind, numbers == number, each, good) for number, kind in enumerate(classes)]


def _of_class(kind: RequestClass, part: Bool, each: PerRequest, good: Bool | None) -> ClassFigures:
    return ClassFigures(
        name=kind.name,
        asked_share=kind.share / 100,
        requests=int(part.sum()),
        share=float(part.mean()) if len(part) else 0.0,
        failed=int((part & each.failed).sum()),
        cancelled=int((part & each.cancelled).sum()),
        completed=int((part & each.ok).sum()),
        input_tokens=int(each.input_tokens[part & each.ok].clip(0).sum()),
        output_tokens=int(each.output_tokens[part & each.ok].sum()),
        good=None if good is None else int((good & part).sum()),
        **part_latencies(ClassFigures, each, part),
    )


def sending_ended_ns(records: Records, next_due_ns: int | None) -> int:
    """When a run that ended early stopped sending, at the latest: the next request would have followed then.

    An open loop's next one follows when it is due, `next_due_ns`, or not after all were cut off; a closed
    loop's (None) as the first one ends.
    """
    sent_ns, end_ns = records.sent_ns[records.sent], records.end_ns[records.sent]
    last_ns = int(sent_ns.max(initial=0))
    later_ns = end_ns[end_ns > last_ns]
    if not len(later_ns):
        return last_ns + 1
    followed_ns = later_ns.min() if next_due_ns is None else min(next_due_ns, later_ns.max())
    return max(int(followed_ns), last_ns + 1)


def reached_windows(windows: Sequence[StageWindow], until_ns: int) -> list[StageWindow]:
    """The windows that begin before a time, the last of them cut there."""
    return [
        replace(window, end_ns=min(window.end_ns, until_ns))
        for window in windows
        if window.begin_ns < until_ns
    ]


def stage_figures(
    windows: Sequence[StageWindow], records: Records, each: PerRequest, due_ns: Int64, begin_ns: int
) -> list[StageFigures]:
    """The figures of each window; `due_ns`, int64[requests], says which a request belongs to."""
    sent = records.sent
    starts_ns = np.sort(records.sent_ns[sent]) - begin_ns
    ends_ns = np.sort(records.end_ns[sent]) - begin_ns
    return [_of_stage(window, each, due_ns - begin_ns, (starts_ns, ends_ns)) for window in windows]


def _of_stage(
    window: StageWindow, each: PerRequest, due_ns: Int64, flown_ns: tuple[Int64, Int64]
) -> StageFigures:
    begin_ns, end_ns = window.begin_ns, window.end_ns
    part = (due_ns >= begin_ns) & (due_ns < end_ns)
    starts_ns, ends_ns = flown_ns
    sent = int(np.searchsorted(starts_ns, end_ns) - np.searchsorted(starts_ns, begin_ns))
    span_ns = max(end_ns - begin_ns, 1)
    under_way_ns = sum_exactly(ends_ns.clip(begin_ns, end_ns)) - sum_exactly(starts_ns.clip(begin_ns, end_ns))
    return StageFigures(
        name=window.name,
        begin_s=begin_ns / SECOND_NS,
        end_s=end_ns / SECOND_NS,
        requests=int(part.sum()),
        failed=int((part & each.failed).sum()),
        rate_per_s=sent * SECOND_NS / span_ns,
        mean_in_flight=under_way_ns / span_ns,
        most_in_flight=_most(starts_ns, ends_ns, window),
        **part_latencies(StageFigures, each, part),
    )


def _most(starts_ns: Int64, ends_ns: Int64, window: StageWindow) -> int:
    """The most requests in flight at once in a window: at its begin, or as one of them starts."""
    first, last = np.searchsorted(starts_ns, [window.begin_ns, window.end_ns])
    moments = np.concatenate([[window.begin_ns], starts_ns[first:last]])
    in_flight = np.searchsorted(starts_ns, moments, "right") - np.searchsorted(ends_ns, moments, "right")
    return int(in_flight.max())


def turn_figures(turn: Int64, records: Records, each: PerRequest) -> list[TurnFigures]:
    """The figures of turns 1, 2, 3, 4, 5–8, 9–16, …, as far as there are any.

    `turn`, int64[requests], is the turn of each request, counted from 1.
    """
    rows, first = [], 1
    while first <= turn.max(initial=0):
        last = first if first <= _OWN_ROW else 2 * (first - 1)
        if (part := (turn >= first) & (turn <= last)).any():
            rows.append(_turns((first, last), part, records, each))
        first = last + 1
    return rows


def _turns(turns: tuple[int, int], part: Bool, records: Records, each: PerRequest) -> TurnFigures:
    ok = part & each.ok
    hits, looked_up, _ = cached_tokens(records, part)
    return TurnFigures(
        *turns,
        requests=int(part.sum()),
        failed=int((part & each.failed).sum()),
        mean_input_tokens=_mean(each.input_tokens[ok]),
        cached_tokens=hits,
        cached_of=looked_up,
        cached_share=hits / looked_up if looked_up else None,
        mean_output_tokens=_mean(each.output_tokens[ok]),
        **part_latencies(TurnFigures, each, part),
    )


def _mean(counts: Int64) -> float | None:
    known = counts[counts >= 0]
    return float(np.mean(known)) if len(known) else None
