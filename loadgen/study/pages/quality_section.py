"""Quality section: how far each row is from the reference, as a table, and its speed against that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from loadgen.features.quality.quality_record import MeanInterval
from loadgen.features.quality.quality_verdict import DIFFERENT
from loadgen.study.arm_qualities import ITSELF, format_spread
from loadgen.study.compare.comparison import find_column
from loadgen.study.compare.model import ComparedLoad
from loadgen.study.compare.tables import comparison_report, quality_table
from loadgen.study.compare.tables.quality_table import RowQuality, list_row_qualities, make_quality_table
from loadgen.study.pages.page_parts import Curve, CurveStyle, PageSection, Panel
from loadgen.study.repeats import Mean
from loadgen.study.tables import make_table

_MOST_PANELS = 8
_CAPTION = "Both 95 % intervals are lines. A hollow point is different from the reference by its verdict."


def make_quality_section(comparisons: Sequence[ComparedLoad]) -> PageSection:
    """Make the section of rows' qualities, with a panel for each of the first eight loads; empty if none."""
    rows = list_row_qualities(comparisons)
    if not rows:
        return PageSection("")
    panels = (panel for number, each in enumerate(comparisons, 1) for panel in _plot_speed(each, number))
    return PageSection(
        quality_table.TITLE, "quality", menu="Quality", table=make_quality_table(rows), style="words",
        panels=tuple(panels)[:_MOST_PANELS],
    )  # fmt: skip


def _plot_speed(comparison: ComparedLoad, number: int) -> Iterator[Panel]:
    """Yield the panel of the headline figure against KL, a point a row, if two rows have both.

    The reference is at a KL of 0, with its noise floor as interval.
    """
    means = {line.name: line.summaries.get(comparison.headline) for line in comparison.lines}
    known = [
        (row, distance, mean)
        for row in list_row_qualities([comparison])
        if (mean := means[row.name]) is not None and (distance := _find_distance(row)) is not None
    ]
    if len(known) < 2:
        return
    column = find_column(comparison.headline)
    points, lines = [], []
    for place, (row, distance, mean) in enumerate(known):
        speed, ends = column.scale(mean.mean), tuple(map(column.scale, _list_ends(mean)))
        hollow = row.verdict is not None and row.verdict.verdict == DIFFERENT
        x, y = np.array([distance.mean]), np.array([speed])
        points.append(Curve(row.name, x, y, CurveStyle.MARKS, (row.name,), (hollow,)))
        across = np.array([distance.low, distance.high]), np.array([speed, speed])
        up = np.array([distance.mean, distance.mean]), np.array(ends)
        lines += [Curve("", *each, of=place) for each in (across, up)]
    numbers = [
        (row.name, format_spread(distance), comparison_report.format_spread(column, mean))
        for row, distance, mean in known
    ]
    better = {None: "", True: "Higher is faster. ", False: "Lower is faster. "}[column.higher_is_faster]
    yield Panel(
        f"quality-{number}", f"{column.label} against KL, {comparison_report.describe_load(comparison.load)}",
        "KL, nats a token", column.label, (*points, *lines), caption=better + _CAPTION,
        numbers=make_table(("", "KL", column.label), numbers),
    )  # fmt: skip


def _find_distance(row: RowQuality) -> MeanInterval | None:
    """Return a row's KL divergence; of the reference 0, up to its noise floor; None if unknown."""
    quality = row.quality
    if quality.why.get("kl") != ITSELF or quality.noise_floor is None:
        return quality.kl
    return MeanInterval(mean=0.0, low=0.0, high=quality.noise_floor.high)


def _list_ends(mean: Mean) -> tuple[float, float]:
    """Return the ends of a mean's interval; the mean twice where it has none, or one that bounds nothing."""
    ends = max(mean.low, 0.0), mean.high
    return ends if np.isfinite(ends).all() else (mean.mean, mean.mean)
