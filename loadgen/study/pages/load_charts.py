"""Load charts: what was run under several loads, in a table and as curves from load to load."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.passages import Curve, CurveStyle, Panel, Passage, is_wide
from loadgen.base.tables import make_table
from loadgen.study.compare.comparison import INVALID
from loadgen.study.limit_record import format_load as shown_load
from loadgen.study.load_table import find_knee, settle_lengths
from loadgen.study.pages.comparison_section import MOST_CURVES
from loadgen.study.run_summary import Reported, group_by

_THROUGHPUT, _PER_GPU, _TTFT, _TPOT = (
    "output_throughput", "output_throughput_per_gpu", "mean_ttft_ms", "mean_tpot_ms"
)  # fmt: skip
_ALIKE, _TOKENS = 0.01, 2.0  # a server may count a token or two more
_WAYS = "tokens in", "out"
_FEWEST_SETTINGS, _SPEED_TABLE = 2, "speed_tok_s"
_LOAD, _SPEED = "load", "speed"  # the concurrency or the rate; output tokens a second of one answer
_KEYS = (
    _THROUGHPUT, _PER_GPU, _TTFT, "median_ttft_ms", "p99_ttft_ms", _TPOT, "mean_e2el_ms", "request_goodput",
)  # fmt: skip


class Point(msgspec.Struct, frozen=True):
    """One checkpoint under one load, the mean over its runs that are not INVALID, if there are any."""

    figures: Mapping[str, float]  # what every one of those runs has
    label: str  # of the load, or of the setting
    limit: float = math.inf  # requests at a time
    rate: float = math.inf  # requests a second
    invalid: bool = False  # every run is
    saturated: bool = False  # a run was ended early: it has a throughput, and no latency


class _Axes(NamedTuple):
    """One picture: figures of the points over another, a curve each; `curves` are (name, key)."""

    key: str
    title: str
    x: str
    x_label: str
    y_label: str
    curves: tuple[tuple[str, str], ...]


_SERVER, _GPU = "output tokens/s, all requests", "output tokens/s per GPU"
_PERCENTILES = (("P50", "median_ttft_ms"), ("P99", "p99_ttft_ms"))
# Among those with one key, the first for which all points have the figures is drawn.
_PICTURES = (
    _Axes("ttft", "TTFT against throughput", _THROUGHPUT, _SERVER, "TTFT, ms", _PERCENTILES),
    _Axes("ttft", "TTFT against throughput", _THROUGHPUT, _SERVER, "mean TTFT, ms", (("", _TTFT),)),
    _Axes("tpot", "TPOT against throughput", _THROUGHPUT, _SERVER, "mean TPOT, ms", (("", _TPOT),)),
    _Axes("e2el", "E2EL against throughput", _THROUGHPUT, _SERVER, "mean E2EL, ms", (("", "mean_e2el_ms"),)),
    _Axes("speed", "Tokens/s per user against tokens/s per GPU", _PER_GPU, _GPU, "tokens/s per user",
          (("", _SPEED),)),
    _Axes("speed", "Tokens/s per user against throughput", _THROUGHPUT, _SERVER, "tokens/s per user",
          (("", _SPEED),)),
    _Axes("throughput", "Throughput against {}", _LOAD, "", _SERVER, (("", _THROUGHPUT),)),
    _Axes("goodput", "Goodput against {}", _LOAD, "", "requests/s within the objectives",
          (("", "request_goodput"),)),
)  # fmt: skip


# The points' loads in words: in a title ("" has no axis), at an axis, and as their labels.
_CONCURRENCY = ("concurrency", "concurrency", "the concurrency")
_RATE = ("request rate", "requests/s asked", "requests per second")
_BOTH = ("", "", "the concurrency, or requests per second (/s)")

_SATURATED_SHOWN = "A saturated point is hollow: every token that arrived until the run was ended early."
_SATURATED_LEFT_OUT = "Saturated points are left out: their latencies never settled."


def plot_loads(
    reported: Sequence[Reported], named: Callable[[Reported], str] = lambda run: run.name
) -> Iterator[Panel]:
    """Yield panels of latency and speed against throughput, and of throughput and goodput against load.

    Runs are grouped by their lengths; a row, which `named` gives, is a curve if it has several loads, and
    eight rows are drawn at most. A picture is left out if a settled point lacks its figures.
    """
    stems: set[str] = set()
    for number, (shape, runs) in enumerate(group_by_shape(_select_timed(reported)).items(), 1):
        rows: dict[str, list[Reported]] = {}
        for name, group in group_by(runs, named).items():
            by_load = group_by(group, lambda run: run.load.pressure).values()
            if any(len({run.load.name for run in alike}) > 1 for alike in by_load):  # several profiles
                by_profile = group_by(group, lambda run: run.load.name).items()
                rows |= {f"{name}, {profile}": own for profile, own in by_profile}
            else:
                rows[name] = group
        points = {
            name: _make_points(group)
            for name, group in rows.items()
            if len({run.load.pressure for run in group}) > 1
        }
        if not points:
            continue
        drawn = dict(list(points.items())[:MOST_CURVES])
        *_, words = _find_load_axis([point for along in drawn.values() for point in along])
        captions = [f"{shape.words}; labels are {words}."]
        if len(points) > len(drawn):
            captions.append(f"{len(drawn)} of {len(points)} checkpoints are drawn.")
        stem = f"{shape.stem}-{number}" if shape.spread or shape.stem in stems else shape.stem
        stems.add(stem)
        seen: set[str] = set()  # the pictures stand next to one another: a sentence is read once
        for axes in _select_axes(drawn):
            yield _plot_points(axes, stem, drawn, captions, seen)


def plot_settings(
    reported: Sequence[Reported], named: Callable[[Reported], str] = lambda run: run.name
) -> Iterator[Panel]:
    """Yield panels of latency and speed against throughput, with a labelled point for each setting.

    A setting is a row at one shape, labelled by what distinguishes it. Nothing if there are fewer than two,
    or speeds of a ladder.
    """
    shapes = group_by_shape(_select_timed(reported))
    apart = [
        (name, shape, group)
        for shape, runs in shapes.items()
        for name, group in group_by(runs, named).items()
    ]
    if len(apart) < _FEWEST_SETTINGS or any(_SPEED_TABLE in run.figures for run in reported):
        return
    loads = ((name, shape, group[0].load) for name, shape, group in apart)
    words = [(load.name, shape.words, load.pressure_words, name) for name, shape, load in loads]
    points = [
        replace(point, label=label)
        for (_, _, group), label in zip(apart, select_distinct_words(words), strict=True)
        for point in _make_points(group)
    ]
    seen: set[str] = set()
    for axes in _select_axes({"": points}, loads=False):
        captions = ["A labelled point for each setting."]
        yield _plot_points(axes, "settings", {"": points}, captions, seen, CurveStyle.MARKS)


def _select_timed(reported: Iterable[Reported]) -> list[Reported]:
    """Select runs with a throughput and, unless saturated, TTFT and TPOT, all above 0."""
    keys = {False: (_THROUGHPUT, _TTFT, _TPOT), True: (_THROUGHPUT,)}
    held = ((run, run.held) for run in reported)
    return [run for run, figures in held if all(figures.get(key, 0.0) > 0 for key in keys[run.saturated])]


def _find_load_axis(points: Sequence[Point]) -> tuple[str, str, str]:
    if all(math.isinf(point.rate) for point in points):
        return _CONCURRENCY
    return _RATE if all(math.isfinite(point.rate) for point in points) else _BOTH


def _select_axes(points: Mapping[str, Sequence[Point]], loads: bool = True) -> Iterator[_Axes]:
    """Yield the pictures whose figures all settled points have, the first of each key, titles filled.

    Left out are pictures of more than eight curves, and those over the load without `loads` or a common axis.
    """
    every = [point for curve in points.values() for point in curve if not point.saturated]
    if not every:
        return
    (name, label, _), drawn = _find_load_axis(every), set()
    for axes in _PICTURES:
        keys = {axes.x, *(key for _, key in axes.curves)}
        fits = len(points) * len(axes.curves) <= MOST_CURVES and (axes.x != _LOAD or (loads and name))
        if fits and axes.key not in drawn and all(keys <= point.figures.keys() for point in every):
            drawn.add(axes.key)
            title, x_label = axes.title.format(name), axes.x_label or label
            yield axes._replace(title=title, x_label=x_label)


def _make_points(runs: Sequence[Reported]) -> list[Point]:
    """Make a point of the runs at each load: means of figures that all valid runs have, else all runs.

    They also have the load and tokens/s per user (1000 ÷ mean TPOT).
    """
    points = []
    by_pressure = group_by(runs, lambda run: run.load.pressure)
    for (limit, rate), group in sorted(by_pressure.items(), key=lambda pair: pair[0]):
        valid = [run for run in group if run.level != INVALID]
        held = [run.held for run in valid or group]
        values = {key: [figures.get(key) for figures in held] for key in _KEYS}
        figures = {
            key: float(np.mean([value for value in of if value is not None]))
            for key, of in values.items()
            if None not in of
        }
        if _TPOT in figures:
            figures[_SPEED] = 1e3 / figures[_TPOT]
        load = rate if math.isfinite(rate) else limit
        if math.isfinite(load):
            figures[_LOAD] = load
        label = f"{rate:g}/s" if math.isfinite(rate) else f"{limit:g}" if math.isfinite(limit) else "all"
        saturated = any(run.saturated for run in valid or group)
        points.append(Point(figures, label, limit, rate, not valid, saturated))
    return points


def _plot_points(
    axes: _Axes,
    stem: str,
    points: Mapping[str, Sequence[Point]],
    captions: Sequence[str],
    seen: set[str],
    form: CurveStyle = CurveStyle.JOINED,
) -> Panel:
    """Make the panel of one picture, a curve per row and figure, with knees or the best points where known.

    Saturated points are drawn in the one of throughput alone. The caption has those sentences that are not in
    `seen`, to which they are added.
    """
    settled = {row: [point for point in along if not point.saturated] for row, along in points.items()}
    every = [point for along in settled.values() for point in along]
    curves: list[Curve] = []
    rows: list[tuple[str, ...]] = []
    for row, along in settled.items():
        for suffix, key in axes.curves:
            # Labels stand next to the upper of two percentiles.
            curves.append(_make_curve((row, suffix), along, axes, key, form, key == axes.curves[-1][1]))
            rows += _list_rows(curves[-1], along)
    sentences, bands = _find_knees(curves) if axes.key == "throughput" else ([], [])
    sentences = [*captions, *_list_remarks(every, axes), *sentences]
    band = bands[0] if len(curves) == 1 and bands else None
    if axes.key == "speed" and len(every) > 1 and (len(points) > 1 or form is CurveStyle.MARKS):
        curves.append(_find_front(every, axes))
        sentences.append("The line without points goes through those that no other beats in both.")
    saturated = {row: [point for point in along if point.saturated] for row, along in points.items()}
    if any(saturated.values()):
        shown = axes.key == "throughput"
        sentences.append(_SATURATED_SHOWN if shown else _SATURATED_LEFT_OUT)
        for place, (row, along) in enumerate(saturated.items() if shown else ()):
            curve = _make_curve((row, "saturated"), along, axes, _THROUGHPUT, CurveStyle.MARKS)
            curves.append(replace(curve, of=place))
            rows += _list_rows(curve, along)
    loads = np.concatenate([curve.x for curve in curves])
    unseen = [sentence for sentence in sentences if sentence not in seen]
    seen.update(unseen)
    return Panel(
        f"sweep-{axes.key}-{stem}", axes.title, axes.x_label, axes.y_label, tuple(curves),
        x_log=axes.x == _LOAD and is_wide(loads), band=band, caption=" ".join(unseen),
        numbers=make_table(("", "load", axes.x_label, axes.y_label), rows),
    )  # fmt: skip


def _make_curve(
    names: Sequence[str],
    points: Sequence[Point],
    axes: _Axes,
    key: str,
    form: CurveStyle,
    labelled: bool = True,
) -> Curve:
    """Make a curve of the figure `key` over the picture's x; INVALID and saturated points are hollow."""
    x, y = (np.array([point.figures[which] for point in points]) for which in (axes.x, key))
    labels = tuple(f"{point.label} saturated" if point.saturated else point.label for point in points)
    hollow = tuple(point.invalid or point.saturated for point in points)
    return Curve(", ".join(filter(None, names)), x, y, form, labels if labelled else (), hollow)


def _list_rows(curve: Curve, points: Sequence[Point]) -> Iterator[tuple[str, ...]]:
    for point, x, y in zip(points, curve.x.tolist(), curve.y.tolist(), strict=True):
        yield curve.name, point.label, f"{x:,.1f}", f"{y:,.2f}"


def _list_remarks(points: Sequence[Point], axes: _Axes) -> Iterator[str]:
    if any(point.invalid for point in points):
        yield f"The runs of a hollow point are {INVALID}."
    if axes.key == "speed":
        yield "Tokens/s per user is 1000 ÷ mean TPOT; vLLM's plot_pareto divides throughput by concurrency."
    if axes.key == "speed" and axes.x == _THROUGHPUT:
        yield "Of the whole server, since not every run knows how many GPUs it has."


def _find_knees(curves: Sequence[Curve]) -> tuple[list[str], list[tuple[float, float]]]:
    """Return a sentence and an interval (low, high) for each curve with a knee whose load is bounded.

    An end that is not known is the curve's own in the interval. Empty where a straight line fits as well.
    """
    sentences, bands = [], []
    for curve in curves:
        found = find_knee(curve.x.tolist(), curve.y.tolist(), rises=False)
        if found is None or (found.low is None and found.high is None):
            continue
        name = f"{curve.name} bends" if len(curves) > 1 else "The curve bends"
        ends = [("at least", found.low), ("at most", found.high)]
        between = ", ".join(f"{word} {shown_load(end)}" for word, end in ends if end is not None)
        sentences.append(f"{name} at {shown_load(found.load)} (95 %: {between}).")
        bands.append((found.low or float(curve.x.min()), found.high or float(curve.x.max())))
    return sentences, bands


def _find_front(points: Sequence[Point], axes: _Axes) -> Curve:
    """Return the curve "best of all": the points that no other beats in both figures, from left to right."""
    key = axes.curves[0][1]
    front: list[tuple[float, float]] = []
    for x, y in sorted(((point.figures[axes.x], point.figures[key]) for point in points), reverse=True):
        if not front or y > front[-1][1]:
            front.append((x, y))
    x, y = np.array(front[::-1]).T
    return Curve("best of all", x, y)


class LoadShape(msgspec.Struct, frozen=True):
    """Lengths in tokens, None: unknown, or as drawn; and what varies in them."""

    input_len: float | None
    output_len: float | None
    spread: str = ""

    @property
    def stem(self) -> str:
        """The lengths as part of a file's name, 1024-64; 0 if unknown."""
        return "-".join("0" if length is None else f"{length:.0f}" for length in self._lengths)

    @property
    def words(self) -> str:
        """The lengths as `1024 tokens in and 64 out`, those that are known, and their spread."""
        known = [(f"{length:.5g}", way) for length, way in zip(self._lengths, _WAYS, strict=True) if length]
        lengths = " and ".join(f"{length} {way}" for length, way in known)
        return ", ".join(filter(None, (lengths or "Unknown lengths", self.spread)))

    @property
    def _lengths(self) -> tuple[float | None, float | None]:
        return self.input_len, self.output_len


def group_by_shape(reported: Sequence[Reported]) -> dict[LoadShape, list[Reported]]:
    """Group the runs by their lengths in tokens, requested or counted, and by how those vary.

    Lengths within 1 % or 2 tokens count as one; distributed ones are unknown, and described by their spread.
    """
    # Lengths that were drawn have another mean in every run, and are described by the spread.
    loads = [
        replace(run.load, input_len=None, output_len=None) if run.load.is_drawn else run.load
        for run in reported
    ]
    shapes = {
        id(run): LoadShape(*load.lengths, load.shape)
        for run, load in zip(reported, settle_lengths(loads, _ALIKE, _TOKENS), strict=True)
    }
    return group_by(reported, lambda run: shapes[id(run)])


def select_distinct_words(words: Sequence[Sequence[str]]) -> list[str]:
    """Return for each row its words in the columns that differ between rows, joined by commas.

    If one column distinguishes all rows, only the first such column is used. Rows are of one length.
    """
    columns = [column for column in zip(*words, strict=True) if len(set(column)) > 1]
    whole = [column for column in columns if len(set(column)) == len(words)]
    return [", ".join(filter(None, row)) for row in zip(*(whole[:1] or columns), strict=True)]


def title_loads(section: Passage) -> str:
    """Return the heading of the section's panels in one picture: its title, after the name of an only row."""
    names = list(dict.fromkeys(str(row[0]) for row in section.table.body)) if section.table else []
    return f"{names[0]}, {section.title}" if len(names) == 1 else section.title
