"""Run charts: what is drawn of one run: distributions, rates over time, its requests, and sampled sensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Bool, Int64
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.passages import Curve, CurveStyle, Floats, Panel, Spans
from loadgen.base.tables import Table, make_table
from loadgen.base.text import GIB, format_count
from loadgen.features.attribution.attribution import ROWS, PartRows
from loadgen.features.attribution.attribution_section import find_attribution, list_part_times
from loadgen.figures.figure_table import LATENCIES, SELECTABLE
from loadgen.figures.metrics import list_gaps
from loadgen.figures.per_request import PerRequest
from loadgen.figures.steady_state import Steady
from loadgen.records.record import Records
from loadgen.report.run_directory import Result
from loadgen.server.sample_file import LEAST_SAMPLES, SampledSeries, list_gauge_series, thin_series
from loadgen.study.pages.colours import SHADES

MOST_POINTS = 400  # over time
MOST_RANKS = 240  # of a distribution
MOST_BINS = 150  # of time
MOST_REQUESTS = 300  # of a timeline
MOST_SAMPLES = 400  # samples of a series
DENSE_SAMPLES = 150  # samples of a series, from which on they are nearer to each other than a line is wide
MOST_SERIES = 8  # of a chart: as many as there are colours
_GAP = 5.0  # times the median between two samples: over a longer one there is no line
_COUNTED = {"tpot": "requests of several tokens", "itl": "gaps between chunks"}  # the others: requests
_RANKS = (50, 90, 99, 99.9)
_TOKENS_A_BIN = 10  # of fewer the plot would show the steps of the server, one by one
_SKEWED = 12.0  # the longest over the median: from there on a logarithmic axis shows both
_STEPS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
            120.0, 300.0, 600.0)  # fmt: skip


def plot_run(run: Result) -> list[Panel]:
    """Return all panels of a run: distributions, values over time, its requests, and sampled series."""
    return [*plot_distributions([("", [run])]), *plot_over_time(run), *plot_timeline(run), *plot_samples(run)]


def select_latencies_ms(run: Result, key: str) -> Floats:
    """Select a latency's ms of successful requests, unsorted; no gaps if the run does not time tokens."""
    records = run.counted
    each = PerRequest.from_records(records, run.ask)
    figure = SELECTABLE[key]
    if figure.of == "requests":
        values_ns, has = figure.samples(each)
        return values_ns[has] / MS_NS
    return list_gaps(records, each.ok)[0] / MS_NS if run.ask.times_tokens else np.zeros(0)


def plot_distributions(groups: Sequence[tuple[str, Sequence[Result]]]) -> Iterator[Panel]:
    """Yield a panel per latency with samples, a curve per group: the share of requests or gaps within x ms.

    The runs of a group are pooled. A single curve has P50, P90 and P99 marked; a skewed axis is logarithmic.
    """
    for figure in (figure for figure in LATENCIES if figure.chart):
        key, title = figure.key, figure.chart
        pooled = [
            (name, np.concatenate([select_latencies_ms(run, key) for run in runs])) for name, runs in groups
        ]
        ordered = [(name, np.sort(values)) for name, values in pooled if len(values)]
        if not ordered:
            continue
        highest = max(float(values[-1]) for _, values in ordered)
        middle = min(float(values[len(values) // 2]) for _, values in ordered)
        several = any(len(runs) > 1 for _, runs in groups)
        counted = ", ".join(f"{len(values):,}" for _, values in ordered[:8])
        pooled_runs = "; the runs of a row are pooled" if several else ""
        quantiles = ((name, [*np.percentile(values, _RANKS), values[-1]]) for name, values in ordered)
        rows = [(name or title, *(f"{value:,.2f} ms" for value in row)) for name, row in quantiles]
        curves = [make_ecdf(name, values) for name, values in ordered]
        if len(ordered) == 1:  # percentiles are marked, but those that have too few samples (P99: 100)
            values = ordered[0][1]
            shown = [rank for rank in (50.0, 90.0, 99.0) if len(values) >= 1 / (1 - rank / 100)]
            x = np.percentile(values, shown)
            labels = tuple(f"P{rank:g} {at:,.4g}" for rank, at in zip(shown, x.tolist(), strict=True))
            curves.append(Curve("", x, np.array(shown), CurveStyle.POINTS, labels))
        yield Panel(
            f"{key}-distribution",
            title,
            "ms",
            "cumulative %",
            tuple(curves),
            x_log=middle > 0 and highest / middle > _SKEWED,
            y_top=100.0,
            caption=f"Cumulative share of {_COUNTED.get(key, 'requests')}; n = {counted}{pooled_runs}.",
            numbers=make_table(("", *(f"P{rank:g}" for rank in _RANKS), "max"), rows),
        )


def make_ecdf(name: str, ordered: Floats) -> Curve:
    """Make the curve of the cumulative % of ordered values, in steps, or 240 points with more in the tail."""
    n = len(ordered)
    if n <= MOST_RANKS:
        return Curve(name, np.append(ordered[:1], ordered), np.arange(n + 1) * 100.0 / n, CurveStyle.STEPS)
    tail = 1 - np.geomspace(0.01, 1 / n, MOST_RANKS // 4)
    ranks = np.unique(np.concatenate([np.linspace(0, 0.99, MOST_RANKS - len(tail)), tail]))
    places = np.unique(np.minimum((ranks * n).astype(np.int64), n - 1))
    return Curve(name, ordered[places], (places + 1) * 100.0 / n)


def plot_over_time(run: Result) -> Iterator[Panel]:
    """Yield panels of tokens per second, requests in flight, and TTFT by the moment of sending, in seconds.

    Panels without values are left out; the steady part, if found, is a band. Nothing without sent requests.
    """
    measured = find_window(run.records)
    if measured is None:
        return
    records, sent, (begin_ns, window_s) = run.records, run.records.sent, measured
    steady = run.steady
    band = (steady.begin_s, steady.end_s) if isinstance(steady, Steady) else None
    panels = [_plot_rate(records, begin_ns, window_s, band is not None)] if len(records.arrival_ns) else []
    panels.append(_plot_in_flight(records, sent, begin_ns, window_s))
    each = PerRequest.from_records(records, run.ask)
    begun = each.has_ttft
    if begun.any():
        sent_s = (records.sent_ns[begun] - begin_ns) / SECOND_NS
        panels.append(_plot_first_tokens(sent_s, each.ttft_ns[begun] / MS_NS))
    yield from (replace(panel, x_end=window_s, band=band) for panel in panels)


def choose_step_s(window_s: float, bins: int = MOST_BINS) -> float:
    """Return the shortest round step (s) that cuts a window into at most `bins`, else window ÷ bins."""
    return next((step for step in _STEPS_S if window_s / step <= bins), window_s / bins)


def _plot_rate(records: Records, begin_ns: int, window_s: float, shaded: bool) -> Panel:
    """Make the panel of output tokens per second, in 10 to 150 bins of ten tokens each if there are enough.

    `shaded` notes in the caption that the band is the steady state.
    """
    step = choose_step_s(window_s, int(np.clip(records.tokens.sum() / _TOKENS_A_BIN, 10, MOST_BINS)))
    bins = max(1, round(window_s / step))  # the last takes what is over: half a step more or less
    at = ((records.arrival_ns - begin_ns) / (step * SECOND_NS)).astype(np.int64).clip(0, bins - 1)
    tokens = np.bincount(at, weights=records.tokens, minlength=bins)
    lengths = np.full(bins, step)
    lengths[-1] = window_s - step * (bins - 1)
    rate, edges = tokens / lengths, np.append(np.arange(bins) * step, window_s)
    curve = Curve("tokens/s", edges, np.append(rate, rate[-1]), CurveStyle.STEPS)
    steady = "; the shaded part is the steady state" if shaded else ""
    caption = f"Tokens received per second, in bins of {step:g} s{steady}."
    return _plot_over_seconds(
        "tokens-over-time", "Output tokens over time", "tokens/s", (curve,), caption, {"tokens/s": rate}
    )


def _plot_in_flight(records: Records, sent: Bool, begin_ns: int, window_s: float) -> Panel:
    """Make the panel of requests in flight: at each start and end, or means over bins if there are many."""
    starts = np.sort(records.sent_ns[sent])
    ends = np.sort(np.maximum(records.end_ns, records.sent_ns)[sent])
    if 2 * len(starts) <= MOST_POINTS:
        at = np.unique(np.concatenate([starts, ends]))
        held = np.searchsorted(starts, at, "right") - np.searchsorted(ends, at, "right")
        x: Floats
        y: Floats
        x, y, caption = (at - begin_ns) / SECOND_NS, held.astype(np.float64), "Requests in flight"
    else:
        step = choose_step_s(window_s)
        edges = begin_ns + np.arange(int(np.ceil(window_s / step)) + 1) * step * SECOND_NS
        # ∫ requests under way from the edge's left on: Σ max(0, edge − start) − Σ max(0, edge − end)
        area = _integrate_ramps(starts, edges) - _integrate_ramps(ends, edges)
        y = np.diff(area) / (step * SECOND_NS)
        x, y = (edges - begin_ns) / SECOND_NS, np.append(y, y[-1])
        caption = f"Requests in flight, mean over bins of {step:g} s"
    curve, title = Curve("requests", x, y, CurveStyle.STEPS), "Requests in flight over time"
    return _plot_over_seconds(
        "concurrency-over-time", title, "requests", (curve,), f"{caption}.", {"requests": y}
    )


def _integrate_ramps(times_ns: Int64, edges: Floats) -> Floats:
    """Return for each edge Σ max(0, edge − time) over the sorted times, in ns."""
    before = np.searchsorted(times_ns, edges, "right")
    sums = np.concatenate([[0.0], np.cumsum(times_ns - times_ns[0], dtype=np.float64)])
    area: Floats = before * (edges - times_ns[0]) - sums[before]
    return area


def _plot_first_tokens(at_s: Floats, ttft_ms: Floats) -> Panel:
    """Make the panel of TTFT by send time: a point per request, or median and maximum per bin of over 400."""
    caption = "One point per request, at its send time."
    curves: tuple[Curve, ...] = (Curve("TTFT", at_s, ttft_ms, CurveStyle.POINTS),)
    if len(at_s) > MOST_POINTS:
        step = choose_step_s(max(float(at_s.max()), 1e-3))
        order = np.argsort(at_s, kind="stable")
        bins = (at_s[order] / step).astype(np.int64)
        first = np.flatnonzero(np.append(True, bins[1:] != bins[:-1]))  # of each filled bin
        parts = np.split(ttft_ms[order], first[1:])
        x = (bins[first] + 0.5) * step
        curves = (
            Curve("median", x, np.array([np.median(part) for part in parts])),
            Curve("max", x, np.array([part.max() for part in parts]), CurveStyle.POINTS),
        )
        caption = f"{len(at_s):,} requests: median and maximum of those sent in each {step:g} s."
    title, values = "Time to first token over time", {"ms": ttft_ms}
    panel = _plot_over_seconds("ttft-over-time", title, "ms", curves, caption, values)
    return replace(panel, x_label="s, when sent")


def _plot_over_seconds(
    key: str, title: str, unit: str, curves: tuple[Curve, ...], caption: str, values: Mapping[str, Floats]
) -> Panel:
    extremes = {name: (each.min(), each.mean(), each.max()) for name, each in values.items()}
    rows = tuple((name, *(f"{float(value):,.2f}" for value in each)) for name, each in extremes.items())
    numbers = make_table(("", "min", "mean", "max"), rows)
    return Panel(key, title, "s", unit, curves, caption=caption, numbers=numbers)


def plot_timeline(run: Result) -> Iterator[Panel]:
    """Yield the panel of requests as lines: due, until the first token, until the last, or failed.

    Of more than 300 one in N is drawn. Nothing if none was sent.
    """
    records = run.records
    sent = np.flatnonzero(records.sent)
    if not len(sent):
        return
    each = PerRequest.from_records(records, run.ask)
    order = sent[np.argsort(records.sent_ns[sent], kind="stable")]
    stride = -(-len(order) // MOST_REQUESTS)
    rows = order[::stride]
    at = np.arange(0, len(order), stride, dtype=np.float64) + 1
    zero_ns = int(records.sent_ns[sent].min())
    ended_ns = np.maximum(records.end_ns, records.sent_ns)
    due, left, end = (
        (column[rows] - zero_ns) / SECOND_NS for column in (records.intended_ns, records.sent_ns, ended_ns)
    )
    ok, begun = each.ok[rows], each.has_ttft[rows]
    first = np.where(begun, (each.first_ns[rows] - zero_ns) / SECOND_NS, end)
    stretches = (
        ("due, not yet sent", "wait", due, left, left - due > 0.001),
        ("until its first token", "prefill", left, first, ok & begun),
        ("until its last token", "decode", first, end, ok & begun),
        ("until its response", "decode", left, end, ok & ~begun),
        ("failed", "failed", left, end, ~ok),
    )
    spans = tuple(Spans(name, tone, a[on], b[on], at[on]) for name, tone, a, b, on in stretches if on.any())
    left_out = "" if stride == 1 else f" {len(rows)} of {len(order):,} are drawn, one in {stride}."
    means_s = (float(np.mean(kind.end - kind.begin)) for kind in spans)
    lengths = tuple(
        (kind.name, f"{len(kind.at):,}", f"{mean:,.4f}") for kind, mean in zip(spans, means_s, strict=True)
    )
    numbers, caption = make_table(("", "requests", "mean s"), lengths), f"Each line is a request.{left_out}"
    y_label = "request, in order of sending"
    yield Panel("timeline", "Requests", "s", y_label, spans=spans, caption=caption, numbers=numbers)


class _SampleChart(msgspec.Struct, frozen=True):
    """One chart: its unit, what a value is divided by, and how each quantity in it is called."""

    key: str
    title: str
    unit: str
    quantities: dict[str, str]
    divisor: float = 1.0
    caption: str = "Sensors of this machine."


_REPORTED = "Gauges reported by the server in /metrics."
_SAMPLE_CHARTS = (
    _SampleChart("server-requests", "Requests in the server", "requests",
           {"running": "running", "waiting": "waiting"}, caption=_REPORTED),
    _SampleChart("server-kv-cache", "KV cache in use", "%", {"kv_cache_usage": "KV cache"}, 0.01, _REPORTED),
    _SampleChart("memory", "Memory", "GiB",
           {"server_bytes": "server", "device_bytes": "all processes", "rss_bytes": "host, RSS",
            "pss_bytes": "host, PSS", "system_bytes": "whole machine"}, GIB),
    _SampleChart("power", "Power", "W", {"board_w": "", "power_w": "", "rail_w": "", "package_w": ""}),
    _SampleChart("temperature", "Temperature", "°C", {"temperature_c": ""}),
    _SampleChart("clocks", "Clocks", "MHz", {"sm_mhz": "SM", "memory_mhz": "memory"}),
)  # fmt: skip


def find_window(records: Records) -> tuple[int, float] | None:
    """Return the first send (ns) and the seconds until the last end; None if none was sent or took time."""
    sent = records.sent
    if not sent.any():
        return None
    begin_ns = int(records.sent_ns[sent].min())
    end_ns = int(np.maximum(records.end_ns, records.sent_ns)[sent].max())
    return (begin_ns, (end_ns - begin_ns) / 1e9) if end_ns > begin_ns else None


def plot_samples(run: Result) -> Iterator[Panel]:
    """Yield a panel of each chart with a series of enough samples, in seconds since the first request."""
    window = find_window(run.records)
    for chart, every in _group_samples(run):
        series = [each for each in every if len(each.values) >= LEAST_SAMPLES]
        if series and window is not None:
            yield replace(_plot_series(chart, series, window[0]), x_end=window[1])


def list_rarely_sampled(run: Result) -> list[str]:
    """List lines on charts with too few samples to be drawn, and the samples' error; [] if none was sent."""
    window = find_window(run.records)
    if window is None:
        return []
    rare: dict[int, list[str]] = {}
    for chart, every in _group_samples(run):
        most = max(len(each.values) for each in every)
        if most < LEAST_SAMPLES:
            rare.setdefault(most, []).append(chart.title)
    few = [
        f"{', '.join(titles)}: {format_count(count, 'sample')} in {window[1]:.3g} s, no chart below "
        f"{LEAST_SAMPLES}"
        for count, titles in rare.items()
    ]
    return [*few, *filter(None, [run.samples.error])]


def _group_samples(run: Result) -> Iterator[tuple[_SampleChart, list[SampledSeries]]]:
    """Yield charts with samples in the run, their series cut to it; with none stored, the result's gauges."""
    if (window := find_window(run.records)) is None:
        return
    begin_ns, window_s = window
    inside = []
    for each in run.samples.series or list_gauge_series(run.facts.window, begin_ns):
        held = (each.at_ns >= begin_ns) & (each.at_ns <= begin_ns + window_s * 1e9)
        if held.any():
            inside.append(SampledSeries(each.quantity, each.where, each.at_ns[held], each.values[held]))
    for chart in _SAMPLE_CHARTS:
        series = [each for quantity in chart.quantities for each in inside if each.quantity == quantity]
        if series:
            yield chart, series


def _plot_series(chart: _SampleChart, series: Sequence[SampledSeries], begin_ns: int) -> Panel:
    """Make the panel of a chart's first eight series, 400 samples at most: lines from 150 on, else points."""
    shown = series[:MOST_SERIES]
    # A curve has the name of its place alone where the chart shows one quantity.
    parts = ((each.where, chart.quantities[each.quantity]) for each in shown)
    names = [", ".join(filter(None, both)) or chart.title for both in parts]
    named = list(zip(names, shown, strict=True))
    curves = []
    for name, each in named:
        few = thin_series(each, MOST_SAMPLES)
        at_s, sampled, form = (few.at_ns - begin_ns) / 1e9, few.values / chart.divisor, CurveStyle.POINTS
        if len(each.values) >= DENSE_SAMPLES:  # a line, lifted where samples are missing
            apart, form = np.diff(at_s), CurveStyle.LINE
            gaps = np.flatnonzero(apart > _GAP * np.median(apart)) + 1
            at_s, sampled = np.insert(at_s, gaps, np.nan), np.insert(sampled, gaps, np.nan)
        curves.append(Curve(name, at_s, sampled, form))
    counts = sorted({len(each.values) for each in shown})
    samples = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    points = ", a point each" if all(curve.form is CurveStyle.POINTS for curve in curves) else ""
    more = f" {len(shown)} of {len(series)} are drawn." if len(shown) < len(series) else ""
    values = {name: each.values / chart.divisor for name, each in named}
    only = f"{names[0]}: " if len(names) == 1 and shown[0].where else ""
    caption = f"{chart.caption} {only}{samples} samples{points}.{more}"
    return _plot_over_seconds(chart.key, chart.title, chart.unit, tuple(curves), caption, values)


MOST_WAITS = 20  # of a panel
_MOSTLY_UNKNOWN = 0.95  # of a tail: from there on no bar is drawn


def plot_waits(run: Result) -> Iterator[Panel]:
    """Yield the panels of the slowest first tokens and of the longest gaps, if enough of them is known."""
    if (found := find_attribution(run)) is None or found.nothing_to_explain:
        return
    for key, title, wait, since, waits in (
        ("slowest-first-tokens", "Slowest first tokens", "request", "ms, since it was due", found.ttft),
        ("longest-gaps", "Longest gaps", "gap", "ms, since the chunk before", found.gaps),
    ):
        longest = np.argsort(-waits.whole_ns, kind="stable")[:MOST_WAITS]
        shown = waits.select(longest)
        if len(shown) and shown.share("unknown") < _MOSTLY_UNKNOWN:
            yield _plot_longest(run, Panel(key, title, since, f"{wait}, longest first"), shown)


def _plot_longest(run: Result, panel: Panel, waits: PartRows) -> Panel:
    """Return the panel with a bar for each wait, divided into its parts, and their table."""
    ends_ms, at = np.cumsum(waits.parts, axis=0) / MS_NS, np.arange(1.0, len(waits) + 1)
    spans = []
    for time in list_part_times(waits):
        row = ROWS[time.part.key]
        on = waits.parts[row] > 0
        begin_ms = ends_ms[row, on] - waits.parts[row, on] / MS_NS
        spans.append(Spans(time.part.label, SHADES[time.part.key], begin_ms, ends_ms[row, on], at[on]))
    caption = f"The {len(waits)} longest, a bar each: its parts in the order of the legend, not of time."
    return replace(panel, spans=tuple(spans), x_end=float(ends_ms[-1].max()), caption=caption,
                   numbers=_make_wait_table(run, waits))  # fmt: skip


def _make_wait_table(run: Result, waits: PartRows) -> Table:
    parts = [time.part for time in list_part_times(waits)]
    columns = [waits.whole_ns, *(waits.parts[ROWS[part.key]] for part in parts)]
    index = run.records.index[waits.request].tolist()
    names = [
        f"request {of}" + (f", chunk {message + 1}" if message else "")
        for of, message in zip(index, waits.message.tolist(), strict=True)
    ]
    cells = (f"{value_ns / MS_NS:,.2f}" for value_ns in np.stack(columns, axis=1).ravel().tolist())
    rows = [(name, *islice(cells, len(columns))) for name in names]
    return make_table(("ms", "total", *(part.label for part in parts)), rows)
