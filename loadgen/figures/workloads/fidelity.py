"""Fidelity: how far a workload is from the one that it was made of: arrivals, lengths, reuse, sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64
from loadgen.base.passages import Passage
from loadgen.base.tables import make_table
from loadgen.figures.distribution import rank_values
from loadgen.figures.workloads.arrival_scales import SCALES_NS, ArrivalFigures, measure_arrivals
from loadgen.figures.workloads.load_columns import (
    LoadColumns,
    SessionShape,
    count_requests,
    find_delays_ns,
    measure_sessions,
)
from loadgen.figures.workloads.reuse_distances import ReuseFigures, measure_reuse
from loadgen.plan.planned_requests import LengthFacts

T = TypeVar("T")
_SAME_RATE = 0.02  # two rates that differ by less are one


class LengthCount(msgspec.Struct, frozen=True):
    """How many requests have a prompt and an answer of at least these tokens, and of less than twice them."""

    input_from: int
    output_from: int
    requests: int


class JointLengths(msgspec.Struct, frozen=True):
    """The lengths of a workload's prompts and answers; None where none is known."""

    input: LengthFacts | None
    output: LengthFacts | None
    rank_correlation: float | None  # Spearman's, of the requests with both; None where one never varies
    counts: tuple[LengthCount, ...]  # a joint histogram, by powers of two, without empty places


def measure_lengths(input_lens: Int64, output_lens: Int64) -> JointLengths:
    """Measure the lengths of requests in tokens, int64[requests] each, UNKNOWN_LEN where unknown."""
    both = (input_lens > 0) & (output_lens > 0)
    own, other = input_lens[both], output_lens[both]
    powers = [np.frexp(lens.astype(np.float64))[1].astype(np.int64) - 1 for lens in (own, other)]
    counts = np.bincount(powers[0] * 64 + powers[1])
    places = np.flatnonzero(counts).tolist()
    return JointLengths(
        LengthFacts.measure(input_lens),
        LengthFacts.measure(output_lens),
        correlate_ranks(own, other),
        tuple(LengthCount(1 << place // 64, 1 << place % 64, int(counts[place])) for place in places),
    )


def correlate_ranks(own: Int64, other: Int64) -> float | None:
    """Compute Spearman's rank correlation, ties by their mean rank; None if one of both does not vary."""
    if len(own) < 2:
        return None
    ranks = [rank_values(column) for column in (own, other)]
    first, second = (column - column.mean() for column in ranks)
    scale = float(np.sqrt((first * first).sum() * (second * second).sum()))
    return float((first * second).sum()) / scale if scale else None


class WorkloadFigures(msgspec.Struct, frozen=True):
    """All that is measured of one workload; None: it has no times, no blocks, no sessions."""

    name: str
    requests: int
    arrivals: ArrivalFigures | None
    lengths: JointLengths
    reuse: ReuseFigures | None
    sessions: SessionShape | None
    notes: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """Encode the figures as JSON: times in seconds, lengths in tokens, null if unknown."""
        encoded: dict[str, Any] = msgspec.to_builtins(self, enc_hook=lambda column: column.tolist())
        return encoded


def measure_workload(load: LoadColumns) -> WorkloadFigures:
    """Measure a workload's arrivals, lengths, reuse and sessions; None for what it has no columns of."""
    return WorkloadFigures(
        load.name,
        len(load),
        None if load.times_ns is None else measure_arrivals(load.times_ns),
        measure_lengths(load.input_lens, load.output_lens),
        measure_reuse(load),
        measure_sessions(load),
        load.notes,
    )


class Measure(StrEnum):
    """How two workloads are compared in one figure."""

    RATIO = "ratio"  # the second over the first
    POINTS = "points"  # the second less the first, of shares in percent
    DIFFERENCE = "difference"
    DISTANCE = "KS"  # the greatest difference of two distributions, 0 to 1 (Kolmogorov and Smirnov)


class FidelityFigure(msgspec.Struct, frozen=True):
    """One figure of two workloads, and how far they are apart; None where a value is not known."""

    label: str
    first: float | None
    second: float | None
    measure: Measure
    apart: float | None


class Fidelity(msgspec.Struct, frozen=True):
    """How far the second of two workloads is from the first."""

    first: str
    second: str
    figures: tuple[FidelityFigure, ...]
    remarks: tuple[str, ...] = ()

    def find(self, label: str) -> FidelityFigure | None:
        """Return the figure with a label; None if both have none."""
        return next((figure for figure in self.figures if figure.label == label), None)

    def json(self) -> dict[str, Any]:
        """Encode the comparison as JSON."""
        encoded: dict[str, Any] = msgspec.to_builtins(self)
        return encoded

    def make_passage(self, first: str, second: str) -> Passage:
        """Make the passage of the comparison, the two workloads under these short names."""
        rows = (
            (figure.label, format_value(figure.first), format_value(figure.second), format_apart(figure))
            for figure in self.figures
        )
        table = make_table(("", ("first", first), ("second", second), "apart"), rows, notes=self.remarks)
        return Passage(f"How far {second} is from {first}", "fidelity", "Fidelity", table=table)


def format_value(value: float | None) -> str:
    """Format a figure in four digits, without decimals from 1,000 on; "" if it is None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def format_apart(figure: FidelityFigure) -> str:
    """Format how far two workloads are apart: × 1.020, +0.30 points, KS 0.0040; "" if it is None."""
    if figure.apart is None:
        return ""
    if figure.measure is Measure.RATIO:
        return f"× {figure.apart:.3f}"
    if figure.measure is Measure.DISTANCE:
        return f"KS {figure.apart:.4f}"
    return f"{figure.apart:+.2f}" + (" points" if figure.measure is Measure.POINTS else "")


def find_ks_distance(own: NDArray[Any], other: NDArray[Any]) -> float | None:
    """Return the greatest difference of two samples' distributions, 0 to 1; None if one is empty."""
    if not len(own) or not len(other):
        return None
    own, other = np.sort(own), np.sort(other)
    distance = 0.0
    for values in (own, other):
        places = [np.searchsorted(column, values, "right") / len(column) for column in (own, other)]
        distance = max(distance, float(np.abs(places[0] - places[1]).max()))
    return distance


def compare_measured(
    first: tuple[LoadColumns, WorkloadFigures], second: tuple[LoadColumns, WorkloadFigures]
) -> Fidelity:
    """Compare two workloads whose figures are measured already; figures that neither has are left out."""
    loads, both = (first[0], second[0]), (first[1], second[1])
    kept = tuple(
        figure
        for figure in _list_figures(loads, both)
        if (figure.first, figure.second, figure.apart) != (None, None, None)
    )
    return Fidelity(both[0].name, both[1].name, kept, tuple(_list_remarks(*both)))


def _make_figure(
    label: str, both: Sequence[T | None], find: Callable[[T], float | None], measure: Measure
) -> FidelityFigure:
    """Make the figure of what `find` returns of each workload; None of one that is None."""
    first, second = (None if own is None else find(own) for own in both)
    apart = None
    if first is not None and second is not None:
        is_ratio = measure is Measure.RATIO
        apart = second - first if not is_ratio else second / first if first else None
    return FidelityFigure(label, first, second, measure, apart)


def _make_ratio(label: str, both: Sequence[T | None], find: Callable[[T], float | None]) -> FidelityFigure:
    return _make_figure(label, both, find, Measure.RATIO)


def _make_distance(label: str, samples: Iterable[NDArray[Any]]) -> FidelityFigure:
    return FidelityFigure(label, None, None, Measure.DISTANCE, find_ks_distance(*samples))


def _list_figures(loads: Sequence[LoadColumns], both: Sequence[WorkloadFigures]) -> Iterator[FidelityFigure]:
    """Yield every figure of two workloads: of their arrivals, lengths, reuse and sessions."""
    yield _make_ratio("requests", both, lambda own: own.requests)
    arrivals = [own.arrivals for own in both]
    yield _make_ratio("requests/s", arrivals, lambda own: own.rate_per_s)
    yield _make_ratio("gaps, CV", arrivals, lambda own: own.gap_cv)
    gaps = [load.find_gaps_ns() for load in loads]
    yield _make_distance("gaps", gaps)
    if all(column.any() for column in gaps):
        yield _make_distance("gaps / their mean", [column / column.mean() for column in gaps])
    measured = {scale.window for own in arrivals if own is not None for scale in own.scales}
    for window in (window for window in SCALES_NS if window in measured):
        find = partial(ArrivalFigures.find_index, window=window)
        yield _make_ratio(f"dispersion over {window}", arrivals, find)
    for name, facts, columns in (
        ("prompt", [own.lengths.input for own in both], [load.input_lens for load in loads]),
        ("answer", [own.lengths.output for own in both], [load.output_lens for load in loads]),
    ):
        yield _make_ratio(f"{name} tokens, mean", facts, lambda own: own.mean)
        yield _make_distance(f"{name} tokens", [lens[lens > 0] for lens in columns])
    ranks = [own.lengths.rank_correlation for own in both]
    yield _make_figure("rank correlation of the two", ranks, float, Measure.DIFFERENCE)
    yield from _list_reuse([own.reuse for own in both])
    shapes = [own.sessions for own in both]
    yield _make_ratio("sessions", shapes, lambda own: own.sessions)
    yield _make_ratio("requests of a session, mean", shapes, lambda own: own.requests.mean)
    sessions = [load.sessions for load in loads if load.sessions is not None]
    if len(sessions) == len(loads):
        yield _make_distance("requests of a session", map(count_requests, sessions))
    yield _make_distance("pauses before requests", map(find_delays_ns, loads))
    yield _make_figure(
        "requests of sub-agents (%)",
        shapes,
        lambda own: 100 * (1 - own.by_depth[0] / sum(own.by_depth)) if own.by_depth else None,
        Measure.POINTS,
    )


def _list_reuse(both: Sequence[ReuseFigures | None]) -> Iterator[FidelityFigure]:
    """Yield the reuse of caches without a limit and of the size at which the shares differ most."""
    yield _make_figure("prefix reuse (%)", both, lambda own: 100 * own.share, Measure.POINTS)
    known = [own for own in both if own is not None]
    if len(known) == len(both):
        sizes = max((own.sizes for own in known), key=len).tolist()
        first, second = (np.array([100 * own.find_share(size) for size in sizes]) for own in known)
        size = sizes[int(np.abs(second - first).argmax())]
        label = f"in a cache of {size:,.0f} tokens"
        yield _make_figure(label, both, lambda own: 100 * own.find_share(size), Measure.POINTS)
    for name, quantiles in (
        ("tokens", [() if own is None else own.distances for own in both]),
        ("seconds", [() if own is None else own.gaps_s for own in both]),
    ):
        yield _make_ratio(f"{name} between two uses, P50", quantiles, lambda own: own[1] if own else None)


def _list_remarks(first: WorkloadFigures, second: WorkloadFigures) -> Iterator[str]:
    """Yield remarks where the rates are 2 % or more apart: on gaps, and on dispersion by thinning."""
    rates = [None if each.arrivals is None else each.arrivals.rate_per_s for each in (first, second)]
    if not rates[0] or not rates[1] or abs(rates[1] / rates[0] - 1) < _SAME_RATE:
        return
    ratio = rates[1] / rates[0]
    yield f"The rate is {ratio:.3g} times as high: compare the gaps over their mean."
    scales = first.arrivals.scales if first.arrivals is not None else ()
    if ratio < 1 and scales:
        thinned = (f"{1 + ratio * (scale.index - 1):.3g} over {scale.window}" for scale in scales)
        yield (
            f"Had each request been kept or left out by chance, dispersion would be {', '.join(thinned)}: "
            "1 + ratio × (index − 1)."
        )
