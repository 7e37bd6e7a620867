"""Load panels: pictures of workloads: arrivals, dispersion, lengths, reuse and sessions, a curve for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.clock import SECOND_NS
from loadgen.base.passages import Curve, CurveStyle, Floats, Panel
from loadgen.base.tables import Table, make_table
from loadgen.figures.workloads import (
    SCALES_NS,
    LoadColumns,
    WorkloadFigures,
    count_arrivals,
    count_requests,
    find_delays_ns,
    format_value,
)

_STRETCHES = 120  # of the time, for arrivals
_MOST_POINTS = 500  # requests of each workload that are drawn by their two lengths
_RANKS = np.concatenate(([0.1, 0.5], np.arange(1, 100), [99.5, 99.9]))


class DescribedLoad(msgspec.Struct, frozen=True):
    """A workload and its figures, under a name that is short enough for a legend."""

    name: str
    load: LoadColumns
    figures: WorkloadFigures


def plot_workloads(described: Sequence[DescribedLoad]) -> tuple[Panel, ...]:
    """Return the panels of one or several workloads, without those that none has numbers for."""
    plots = (_plot_arrivals, _plot_lengths, _plot_reuse_and_sessions)
    panels = (panel for plot in plots for panel in plot(described))
    return tuple(panel for panel in panels if any(len(curve.x) for curve in panel.curves))


def _make_curve(name: str, points: tuple[Floats, Floats] | None, form: CurveStyle = CurveStyle.LINE) -> Curve:
    if points is None or not len(points[0]):
        return Curve("", np.zeros(0), np.zeros(0), form)
    return Curve(name, *points, form)


def _plot_arrivals(described: Sequence[DescribedLoad]) -> Iterator[Panel]:
    counted = (
        (each.name, None if each.load.times_ns is None else count_arrivals(each.load.times_ns, _STRETCHES))
        for each in described
    )
    rates = tuple(_make_curve(name, points, CurveStyle.STEPS) for name, points in counted)
    caption = f"Mean rate in each of {_STRETCHES} equal stretches."
    yield Panel("arrivals", "Arrivals over time", "s", "requests/s", rates, caption=caption)
    arrivals = ((each.name, each.figures.arrivals) for each in described)
    scales = [
        (name, [scale for scale in own.scales if scale.index > 0] if own is not None else [])
        for name, own in arrivals
    ]
    curves = []
    for name, own in scales:
        windows_s = np.array([SCALES_NS[scale.window] / SECOND_NS for scale in own])
        indices = np.array([scale.index for scale in own])
        curves.append(_make_curve(name, (windows_s, indices), CurveStyle.JOINED))
    drawn = np.concatenate([curve.x for curve in curves])
    if len(drawn):
        curves.append(Curve("Poisson", np.array([drawn.min(), drawn.max()]), np.ones(2)))
    rows = [
        (name, scale.window, f"{scale.windows:,}", format_value(scale.mean), format_value(scale.index))
        for name, own in scales
        for scale in own
    ]
    yield Panel(
        "dispersion", "Variation of arrivals over scales", "window, s", "variance / mean",
        tuple(curves), x_log=True, y_log=True,
        caption="Of the number of arrivals in windows of one width: 1 at all widths if they are independent.",
        numbers=make_table(("workload", "window", "windows", "mean", "index"), rows),
    )  # fmt: skip


def _plot_shares(key: str, title: str, unit: str, samples: Sequence[tuple[str, NDArray[Any]]]) -> Panel:
    """Make the panel of cumulative shares of each sample; an empty one has neither curve nor row."""
    curves = []
    for name, values in samples:
        ranks = np.percentile(values, _RANKS, method="inverted_cdf") if len(values) else np.zeros(0)
        curves.append(_make_curve(name, (ranks.astype(np.float64), _RANKS)))
    rows = [
        (name, *(f"{rank:,.6g}" for rank in np.percentile(values, (10, 50, 90, 99), method="inverted_cdf")))
        for name, values in samples
        if len(values)
    ]
    numbers = make_table(("workload", "P10", "P50", "P90", "P99"), rows)
    label = f"up to this many {unit}" if unit != "s" else "s"
    return Panel(key, title, label, "%", tuple(curves), x_log=True, y_top=100, numbers=numbers)


def _plot_lengths(described: Sequence[DescribedLoad]) -> Iterator[Panel]:
    prompts = [(each.name, each.load.input_lens) for each in described]
    answers = [(each.name, each.load.output_lens) for each in described]
    for name, columns in (("prompt", prompts), ("answer", answers)):
        samples = [(load, lens[lens > 0]) for load, lens in columns]
        yield _plot_shares(f"{name}s", f"{name.capitalize()} lengths", "tokens", samples)
    curves, rows = [], []
    for each in described:
        places = np.flatnonzero((each.load.input_lens > 0) & (each.load.output_lens > 0))
        places = places[:: max(1, -(-len(places) // _MOST_POINTS))]
        lens = (each.load.input_lens[places], each.load.output_lens[places])
        points = (lens[0].astype(np.float64), lens[1].astype(np.float64))
        curves.append(_make_curve(each.name, points, CurveStyle.POINTS))
        rows += [
            (each.name, f"{count.input_from:,}", f"{count.output_from:,}", f"{count.requests:,}")
            for count in each.figures.lengths.counts
        ]
    yield Panel(
        "lengths", "Prompt and answer lengths together", "prompt tokens", "answer tokens",
        tuple(curves), x_log=True, y_log=True,
        caption=f"A point per request, of {_MOST_POINTS} at most. Numbers: all requests, by powers of two.",
        numbers=make_table(("workload", "prompt from", "answer from", "requests"), rows),
    )  # fmt: skip


def _plot_reuse_and_sessions(described: Sequence[DescribedLoad]) -> Iterator[Panel]:
    shown = [(each.name, each.figures.reuse) for each in described]
    curves = [
        _make_curve(name, None if own is None else (own.sizes, 100 * own.shares)) for name, own in shown
    ]
    rows = [
        (name, f"{size:,.0f}", f"{100 * share:.2f}")
        for name, own in shown
        if own is not None
        for size, share in zip(own.sizes.tolist(), own.shares.tolist(), strict=True)
    ]
    numbers: Table = make_table(("workload", "cache, tokens", "reused, %"), rows)
    yield Panel(
        "reuse", "Prefix reuse over the size of a cache", "tokens in the cache", "% of prompt tokens",
        tuple(curves), x_log=True, numbers=numbers,
        caption="Of a cache that drops the blocks that were used least recently, empty at first.",
    )  # fmt: skip
    sessions = [(each.name, each.load.sessions) for each in described]
    sizes = [(name, np.zeros(0) if own is None else count_requests(own)) for name, own in sessions]
    yield _plot_shares("sessions", "Requests of a session", "requests", sizes)
    pauses = [(each.name, find_delays_ns(each.load)) for each in described]
    samples = [(name, own[own > 0] / SECOND_NS) for name, own in pauses]
    yield _plot_shares("pauses", "Pauses before requests", "s", samples)
