"""History report: the figures of a history, where each changed, and that as text, picture and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from loadgen.base.errors import UsageError
from loadgen.base.parsing import suggest_name
from loadgen.base.text import format_count, wrap_text
from loadgen.figures.figure_names import find_named_figure
from loadgen.study.compare.comparison import find_column
from loadgen.study.compare.model import ComparedFigure
from loadgen.study.history.change_points import LEAST_RUNS, MOST_RUNS, ChangePoint, Changes, find_changes
from loadgen.study.history.history_file import HistoryEntry
from loadgen.study.pages.page_parts import Curve, CurveStyle, Panel, format_number
from loadgen.study.tables import Table, cut_middle, make_table

_USUAL = ("output_throughput", "speed_tok_s", "mean_ttft_ms", "mean_tpot_ms", "p99_itl_ms")
_NAME = 28  # characters of a measurement's name in a table
_TALL = 0.12  # of the spread of the values, above and below them in a picture
_MANY_LABELS = 6


class MetricHistory(msgspec.Struct, frozen=True):
    """One figure of the measurements that have it, and where it changed."""

    figure: ComparedFigure
    entries: tuple[HistoryEntry, ...]
    changes: Changes

    @property
    def values(self) -> list[float]:
        """The figure of each measurement."""
        return [entry.figures[self.figure.key] for entry in self.entries]

    def describe(self, point: ChangePoint) -> str:
        """Describe a change in words: how much, from which measurement on, and the interval of that."""
        first = self.entries[point.at]
        begun = f"{self._describe_step(point.ratio)} from {first.name} on ({_format_time(first)})"
        low, high = self.entries[point.low], self.entries[point.high]
        return f"{begun}, " + (
            "where else is refuted" if low is high else f"between {low.name} and {high.name}"
        )

    def _describe_step(self, ratio: float) -> str:
        """Describe a ratio as faster or slower, or higher or lower where neither is, with the change."""
        better = self.figure.higher_is_faster
        word = ("higher", "lower") if better is None else ("faster", "slower")
        rises = (ratio > 1) if better is None else (ratio > 1) == better
        return f"{word[0] if rises else word[1]} ({100 * (ratio - 1):+.1f} %)"

    def json(self) -> dict[str, Any]:
        """Encode the figure's levels and changes; positions are those in `entries` of the whole."""
        return {
            "label": self.figure.label,
            "higher_is_faster": self.figure.higher_is_faster,
            "measurements": len(self.entries),
            "resemble": self.changes.resemble,
            "levels": list(self.changes.levels),
            "changes": [
                {
                    "ratio": point.ratio,
                    "p": point.p,
                    "first": _identify(self.entries[point.at]),
                    "earliest": _identify(self.entries[point.low]),
                    "latest": _identify(self.entries[point.high]),
                }
                for point in self.changes.points
            ],
        }


def _format_time(entry: HistoryEntry) -> str:
    return f"{entry.time:%Y-%m-%d %H:%M}"


def _identify(entry: HistoryEntry) -> dict[str, str]:
    return {"commit": entry.commit, "label": entry.label, "time": entry.time.isoformat()}


def select_metrics(entries: Sequence[HistoryEntry], wanted: Sequence[str] = ()) -> list[ComparedFigure]:
    """Select the figures that `wanted` names, else those usually shown that are there.

    A name is a key, a title, or one that `loadgen gate` takes. Raises UsageError for one that no measurement
    has.
    """
    keys = list(dict.fromkeys(key for entry in entries for key in entry.figures))
    named = {find_column(key).label.lower(): key for key in keys} | {key: key for key in keys}
    if not wanted:
        usual = [key for key in _USUAL if key in keys] or keys[: len(_USUAL)]
        return [find_column(key) for key in usual]
    chosen = []
    for name in wanted:
        key = named.get(name.lower()) or _find_key(name)
        if key not in keys:
            raise UsageError(f"no metric {name!r}{suggest_name(name, named)}; there are {', '.join(keys)}")
        chosen.append(key)
    return [find_column(key) for key in dict.fromkeys(chosen)]


def _find_key(name: str) -> str:
    """Find the key of a figure by a name that people use; "" if it means none."""
    try:
        return find_named_figure(name)[1]
    except ValueError:
        return ""


def find_metric_changes(
    entries: Sequence[HistoryEntry], figures: Sequence[ComparedFigure], alpha: float
) -> list[MetricHistory]:
    """Find the changes of each figure, all together at level alpha: each at its part (Bonferroni).

    A value that is not above 0 is left out.
    """
    found = []
    for figure in figures:
        own = tuple(entry for entry in entries if entry.figures.get(figure.key, 0.0) > 0)
        series = [entry.figures[figure.key] for entry in own]
        found.append(MetricHistory(figure, own, find_changes(series, alpha / len(figures))))
    return found


def make_history_table(entries: Sequence[HistoryEntry], metrics: Sequence[MetricHistory]) -> Table:
    """Make the table of the measurements: a row each, with a mark at the figures that changed there."""
    verdicts, several = any(entry.verdict for entry in entries), any(entry.runs > 1 for entry in entries)
    columns = ["time", "what", *(["runs"] if several else []), *(["verdict"] if verdicts else [])]
    columns += [metric.figure.label for metric in metrics]
    changed = [
        {id(metric.entries[point.at]): point.ratio for point in metric.changes.points} for metric in metrics
    ]
    body = []
    for entry in entries:
        row = [_format_time(entry), cut_middle(entry.name, _NAME)]
        row += [str(entry.runs)] * several + [entry.verdict] * verdicts
        for metric, ratios in zip(metrics, changed, strict=True):
            key = metric.figure.key
            ratio = ratios.get(id(entry))
            mark = "" if ratio is None else "▲ " if ratio > 1 else "▼ "
            value = metric.figure.scale(entry.figures[key]) if key in entry.figures else None
            row.append(mark + format_number(key, value, metric.figure.digits))
        body.append(row)
    return make_table(columns, body)


def describe_changes(metrics: Sequence[MetricHistory], alpha: float) -> list[str]:
    """Describe the changes of each figure in a line each, and what limits them."""
    lines = []
    for metric in metrics:
        points, label = metric.changes.points, metric.figure.label
        if len(metric.entries) < LEAST_RUNS:
            count = format_count(len(metric.entries), "measurement")
            lines.append(f"{label}: {count}, too few to find a change: {LEAST_RUNS} or more are needed")
            continue
        lines += [f"{label}: {metric.describe(point)}" for point in points] or [f"{label}: no change"]
        if metric.changes.begin:
            lines.append(f"{label}: only the newest {MOST_RUNS} were examined")
        if metric.changes.resemble:
            lines.append(
                f"{label}: successive measurements resemble each other, so that changes are found later"
            )
    return [
        *lines,
        f"A change is found in {100 * alpha:g} % of histories without one; as often an interval misses it.",
    ]


def plot_history(metrics: Sequence[MetricHistory]) -> Iterator[Panel]:
    """Yield a picture of each figure that has measurements: its values and levels, changes labelled."""
    for metric in metrics:
        if not metric.entries:
            continue
        figure, points = metric.figure, metric.changes.points
        values = np.array([figure.scale(value) for value in metric.values])
        x = np.arange(1, len(values) + 1, dtype=np.float64)
        labels = [""] * len(values)
        for point in points[-_MANY_LABELS:]:
            labels[point.at] = metric.entries[point.at].name
        curves = [Curve("measured", x, values, CurveStyle.MARKS, tuple(labels))]
        edges = [metric.changes.begin, *(point.at for point in points), len(values)]
        levels = [figure.scale(level) for level in metric.changes.levels]
        for low, high, level in zip(edges, edges[1:], levels, strict=False):
            name, of = ("level", None) if low == edges[0] else ("", 1)
            ends = np.array([low + 0.5, high + 0.5])
            curves.append(Curve(name, ends, np.array([level, level]), of=of))
        spread = float(np.ptp(values)) or 0.1 * float(values[0])
        last = points[-1] if points else None
        yield Panel(
            f"history-{figure.key}", f"{figure.label} over time", "measurement", figure.label, tuple(curves),
            y_low=max(0.0, float(values.min()) - _TALL * spread),
            y_top=float(values.max()) + _TALL * spread,
            band=None if last is None else (last.low + 0.5, last.high + 1.5),
            caption="The band is the interval of the last change. The axis does not begin at 0.",
            numbers=make_table(
                ("measurement", "time", figure.label),
                [
                    (entry.name, _format_time(entry), format_number(figure.key, value, figure.digits))
                    for entry, value in zip(metric.entries, values.tolist(), strict=True)
                ],
            ),
        )  # fmt: skip


def encode_history(
    entries: Sequence[HistoryEntry], metrics: Sequence[MetricHistory], alpha: float
) -> dict[str, Any]:
    """Make the JSON object of a history: its subject, the changes by figure, and every measurement."""
    return {
        "machine": next((entry.machine for entry in entries if entry.machine), ""),
        "load": entries[0].load,
        "alpha": alpha,
        "metrics": {metric.figure.key: metric.json() for metric in metrics},
        "entries": [entry.model_dump(mode="json") for entry in entries],
    }


def wrap_lines(lines: Sequence[str]) -> str:
    """Wrap lines for a terminal, each on lines of its own."""
    return "".join(f"{part}\n" for line in lines for part in wrap_text(line))
