"""Quality section: how far each row is from the reference, as a table, and its speed against that."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.features.quality.quality_record import MeanInterval
from loadgen.features.quality.quality_verdict import DIFFERENT
from loadgen.study import limit_record
from loadgen.study.arm_qualities import ITSELF, format_spread
from loadgen.study.compare.comparison import find_column
from loadgen.study.compare.limits import ComparedLimits, describe_limits
from loadgen.study.compare.model import ComparedFigure, ComparedLoad
from loadgen.study.compare.tables import comparison_report, quality_table
from loadgen.study.compare.tables.quality_table import RowQuality, make_quality_table
from loadgen.study.compare_command import list_qualities
from loadgen.study.pages.page_parts import Curve, CurveStyle, Floats, PageSection, Panel
from loadgen.study.repeats import Mean
from loadgen.study.tables import make_table

_MOST_PANELS = 8
_CAPTION = "Both 95 % intervals are lines. A hollow point is different from the reference by its verdict."


class _Point(msgspec.Struct, frozen=True):
    """A row's place in the picture: its KL and its speed, each with the ends of its interval."""

    row: RowQuality
    distance: MeanInterval
    speed: MeanInterval
    text: str  # of the speed


def make_quality_section(
    comparisons: Sequence[ComparedLoad], searches: Sequence[ComparedLimits] = ()
) -> PageSection:
    """Make the section of rows' qualities, with a panel for each of the first eight loads; empty if none.

    Of searches for a limit the panel has the limit in place of a speed.
    """
    rows = list_qualities(comparisons, searches)
    if not rows:
        return PageSection("")
    panels = [*(_plot_limit(each) for each in searches), *(_plot_load(each) for each in comparisons)]
    drawn = [replace(panel, key=f"quality-{number}") for number, panel in enumerate(filter(None, panels), 1)]
    return PageSection(
        quality_table.TITLE, "quality", menu="Quality", table=make_quality_table(rows), style="words",
        panels=tuple(drawn[:_MOST_PANELS]),
    )  # fmt: skip


def _plot_load(comparison: ComparedLoad) -> Panel | None:
    """Plot the headline figure against KL, a point a row; None without two rows that have both."""
    column = find_column(comparison.headline)
    means = {line.name: line.summaries.get(comparison.headline) for line in comparison.lines}
    points = []
    for row in list_qualities([comparison], ()):
        mean, distance = means[row.name], _find_distance(row)
        if mean is not None and distance is not None:
            text = comparison_report.format_spread(column, mean)
            points.append(_Point(row, distance, _scale_mean(column, mean), text))
    better = {None: "", True: "Higher is faster.", False: "Lower is faster."}[column.higher_is_faster]
    load = comparison.load.name or comparison_report.describe_load(comparison.load)
    title = f"{column.label} against KL, {load}"
    return _plot_points(points, title, column.label, better)


def _plot_limit(compared: ComparedLimits) -> Panel | None:
    """Plot the highest load against KL, a point a row; None without two rows that have both."""
    limits = {row.name: row.limit for row in compared.rows}
    points = []
    for row in list_qualities((), [compared]):
        limit, distance = limits[row.name], _find_distance(row)
        if limit is not None and limit.value is not None and distance is not None:
            low, high = (limit.value if end is None else end for end in (limit.low, limit.high))
            speed = MeanInterval(mean=limit.value, low=low, high=high)
            points.append(_Point(row, distance, speed, limit_record.format_load(limit.value)))
    label = limit_record.name_unit(compared.axis, compared.of_sessions)
    return _plot_points(points, "Limit against KL", label, f"{describe_limits(compared)}. Higher is better.")


def _plot_points(points: Sequence[_Point], title: str, label: str, better: str) -> Panel | None:
    """Plot points with both intervals as lines; None below two."""
    if len(points) < 2:
        return None
    marks, lines = [], []
    for place, point in enumerate(points):
        hollow = point.row.verdict is not None and point.row.verdict.verdict == DIFFERENT
        x, y, name = point.distance, point.speed, point.row.name
        marks.append(
            Curve(name, np.array([x.mean]), np.array([y.mean]), CurveStyle.MARKS, (name,), (hollow,))
        )
        across: tuple[Floats, Floats] = np.array([x.low, x.high]), np.full(2, y.mean)
        up: tuple[Floats, Floats] = np.full(2, x.mean), np.array([y.low, y.high])
        lines += [Curve("", *ends, CurveStyle.LINE, of=place) for ends in (across, up)]
    numbers = [(point.row.name, format_spread(point.distance), point.text) for point in points]
    return Panel(
        "", title, "KL, nats a token", label, (*marks, *lines), caption=f"{better} {_CAPTION}".strip(),
        numbers=make_table(("", "KL", label), numbers),
    )  # fmt: skip


def _find_distance(row: RowQuality) -> MeanInterval | None:
    """Return a row's KL divergence; of the reference 0, up to its noise floor; None if unknown."""
    quality = row.quality
    if quality.why.get("kl") != ITSELF or quality.noise_floor is None:
        return quality.kl
    return MeanInterval(mean=0.0, low=0.0, high=quality.noise_floor.high)


def _scale_mean(column: ComparedFigure, mean: Mean) -> MeanInterval:
    """Return a mean in its column's unit, with ends at the mean itself where its interval bounds nothing."""
    ends = [mean.low, mean.high] if np.isfinite(mean.half) else [mean.mean] * 2
    value, low, high = map(column.scale, (mean.mean, max(ends[0], 0.0), ends[1]))
    return MeanInterval(mean=value, low=low, high=high)
