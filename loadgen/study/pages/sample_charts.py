"""Sample charts: what the server's gauges and this machine's sensors read during a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.figures.record import Records
from loadgen.host.sensor_summary import LEAST_SAMPLES, SampledSeries, thin_series
from loadgen.report.run_directory import Result
from loadgen.report.sample_file import of_gauges
from loadgen.study.pages.panel import Curve, CurveStyle, Panel, over_seconds

MOST_DRAWN = 400  # samples of a series
JOINED = 150  # samples of a series, from which on they are nearer to each other than a line is wide
MOST_SERIES = 8  # of a chart: as many as there are colours
_GAP = 5.0  # times the median between two samples: over a longer one there is no line
_GIB = 2.0**30


class _Chart(msgspec.Struct, frozen=True):
    """One chart: its unit, what a value is divided by, and how each quantity in it is called."""

    key: str
    title: str
    unit: str
    quantities: dict[str, str]
    divisor: float = 1.0
    caption: str = "Sensors of this machine."


_REPORTED = "Gauges reported by the server in /metrics."
_CHARTS = (
    _Chart("server-requests", "Requests in the server", "requests",
           {"running": "running", "waiting": "waiting"}, caption=_REPORTED),
    _Chart("server-kv-cache", "KV cache in use", "%", {"kv_cache_usage": "KV cache"}, 0.01, _REPORTED),
    _Chart("memory", "Memory", "GiB",
           {"server_bytes": "server", "device_bytes": "all processes", "rss_bytes": "host, RSS",
            "pss_bytes": "host, PSS", "system_bytes": "whole machine"}, _GIB),
    _Chart("power", "Power", "W", {"board_w": "", "power_w": "", "rail_w": ""}),
    _Chart("temperature", "Temperature", "°C", {"temperature_c": ""}),
    _Chart("clocks", "Clocks", "MHz", {"sm_mhz": "SM", "memory_mhz": "memory"}),
)  # fmt: skip


def measured_window(records: Records) -> tuple[int, float] | None:
    """When the first request was sent, and the seconds until the last ended; None if none was."""
    sent = records.sent
    if not sent.any():
        return None
    begin_ns = int(records.sent_ns[sent].min())
    end_ns = int(np.maximum(records.end_ns, records.sent_ns)[sent].max())
    return (begin_ns, (end_ns - begin_ns) / 1e9) if end_ns > begin_ns else None


def panels(run: Result) -> Iterator[Panel]:
    """A chart of each kind that was sampled often enough, over the seconds since the run began."""
    measured = measured_window(run.records)
    if measured is None:
        return
    every = _inside(run, *measured)
    for chart in _CHARTS:
        series = [each for each in _of(chart, every) if len(each.values) >= LEAST_SAMPLES]
        if series:
            yield replace(_panel(chart, series, measured[0]), x_end=measured[1])


def remarks(run: Result) -> list[str]:
    """What was sampled too rarely for a chart, in a line, and what could not be read."""
    measured = measured_window(run.records)
    if measured is None:
        return []
    every, window_s = _inside(run, *measured), measured[1]
    rare: dict[int, list[str]] = {}
    for chart in _CHARTS:
        counts = [len(each.values) for each in _of(chart, every)]
        if counts and max(counts) < LEAST_SAMPLES:
            rare.setdefault(max(counts), []).append(chart.title)
    few = [
        f"{', '.join(titles)}: {count} sample{'s' * (count != 1)} in {window_s:.3g} s, no chart below "
        f"{LEAST_SAMPLES}"
        for count, titles in rare.items()
    ]
    return [*few, *filter(None, [run.samples.error])]


def _inside(run: Result, begin_ns: int, window_s: float) -> list[SampledSeries]:
    """The run's series, cut to the run; of a directory that has no such file the gauges of its result."""
    kept = run.samples.series or tuple(of_gauges(run.facts.window, begin_ns))
    inside = []
    for each in kept:
        held = (each.at_ns >= begin_ns) & (each.at_ns <= begin_ns + window_s * 1e9)
        inside.append(SampledSeries(each.quantity, each.where, each.at_ns[held], each.values[held]))
    return [each for each in inside if len(each.values)]


def _of(chart: _Chart, every: Sequence[SampledSeries]) -> list[SampledSeries]:
    """The chart's series, quantity after quantity."""
    return [each for quantity in chart.quantities for each in every if each.quantity == quantity]


def _panel(chart: _Chart, series: Sequence[SampledSeries], begin_ns: int) -> Panel:
    shown = series[:MOST_SERIES]
    names = [_name(chart, each) for each in shown]
    named = list(zip(names, shown, strict=True))
    curves = tuple(_curve(name, each, begin_ns, chart.divisor) for name, each in named)
    counts = sorted({len(each.values) for each in shown})
    samples = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    more = f" {len(shown)} of {len(series)} are drawn." if len(shown) < len(series) else ""
    values = {name: each.values / chart.divisor for name, each in named}
    only = f"{names[0]}: " if len(names) == 1 and shown[0].where else ""
    caption = f"{chart.caption} {only}{samples} samples{_each(curves)}.{more}"
    return over_seconds(chart.key, chart.title, chart.unit, curves, caption, values)


def _each(curves: Sequence[Curve]) -> str:
    return ", a point each" if all(curve.form is CurveStyle.POINTS for curve in curves) else ""


def _name(chart: _Chart, series: SampledSeries) -> str:
    """What a curve is called: the place alone where the chart shows one quantity."""
    name = ", ".join(filter(None, (series.where, chart.quantities[series.quantity])))
    return name or chart.title


def _curve(name: str, series: SampledSeries, begin_ns: int, divisor: float) -> Curve:
    """Points, or a line where they are so dense that it adds nothing, lifted where samples are missing."""
    few = thin_series(series, MOST_DRAWN)
    at_s, values = (few.at_ns - begin_ns) / 1e9, few.values / divisor
    if len(series.values) < JOINED:
        return Curve(name, at_s, values, CurveStyle.POINTS)
    apart = np.diff(at_s)
    gaps = np.flatnonzero(apart > _GAP * np.median(apart)) + 1
    return Curve(name, np.insert(at_s, gaps, np.nan), np.insert(values, gaps, np.nan))
