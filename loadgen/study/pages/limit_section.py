"""Limit section: a search for the highest load as words, a table of its runs, and pictures over the load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from loadgen.study import limit_record
from loadgen.study.importers.clients.loadgen_runs import StoredLimit
from loadgen.study.limit_record import LimitRecord, LimitRun, ObjectiveFigures
from loadgen.study.pages.page_parts import NAN, Curve, CurveStyle, Floats, PageSection, Panel, is_wide
from loadgen.study.tables import make_table

_TOP = 2.5  # times the limit, the highest that is drawn: a saturated run would flatten all others


def make_limit_sections(limits: Sequence[StoredLimit]) -> Iterator[PageSection]:
    """Yield a section for each search, in order: its answer, statements, table of runs and panels."""
    for number, limit in enumerate(limits, 1):
        record, key = limit.record, f"limit-{number}"
        title, lines = (
            f"{limit.shown_name}, {limit_record.describe_limit(record)}",
            tuple(limit_record.list_statements(record)),
        )
        yield PageSection(
            title, key, menu=title, lines=lines[1:], table=limit_record.make_run_table(record), style="words",
            panels=tuple(_plot_search(record, key)),
        )  # fmt: skip


def _plot_search(record: LimitRecord, anchor: str) -> Iterator[Panel]:
    """Yield a panel for each objective with values, over the load, then one of goodput if any is above 0."""
    runs = sorted(record.runs, key=lambda run: (run.load, run.number))
    for place, objective in enumerate(record.objectives, 1):
        shown = [
            (run, figures)
            for run in runs
            for figures in run.objectives
            if figures.objective == objective and figures.value is not None
        ]
        if shown:
            yield _plot_objective(record, f"{anchor}-objective-{place}", shown)
    runs = [run for run in runs if run.goodput_per_s is not None]
    goodput = np.array([run.goodput_per_s for run in runs], np.float64)
    if goodput.any():
        rows = [(limit_record.format_load(run.load), f"{run.goodput_per_s:,.4g}") for run in runs]
        numbers = make_table(("load", "requests/s within the objectives"), rows)
        panel = _plot_runs(record, f"{anchor}-goodput", ("goodput", "requests/s"), runs, goodput)
        yield replace(panel, title="Goodput over load", numbers=numbers)


def _plot_objective(
    record: LimitRecord, key: str, shown: Sequence[tuple[LimitRun, ObjectiveFigures]]
) -> Panel:
    """Make the panel of each run's percentile with its bound over the load, and the objective's limit.

    It is cut off at 2.5 times a latency's limit, which the caption notes if a value is above; not a speed's.
    """
    runs, first = [run for run, _ in shown], shown[0][1]
    values, bounds = (
        np.array([NAN if value is None else value for value in column], np.float64)
        for column in ([each.value for _, each in shown], [each.bound for _, each in shown])
    )
    limit, unit, figure = first.limit, first.unit, limit_record.name_percentile(first.objective)
    panel = _plot_runs(record, key, (figure, unit), runs, values)
    loads, known = np.array([run.load for run in runs]), np.isfinite(bounds)
    top, side, most = (_TOP * limit, "upper", "at most") if unit == "ms" else (None, "lower", "at least")
    whole, *apart = panel.curves
    curves = (
        whole,
        Curve(f"its {side} bound at 99 %", loads[known], bounds[known], CurveStyle.POINTS),
        Curve(f"limit, {limit:g} {unit}", np.array([loads.min(), loads.max()]), np.full(2, limit)),
        *apart,
    )
    above = " Points at the upper edge are above it." if top and np.nanmax([values, bounds]) > top else ""
    rows = [
        (limit_record.format_load(run.load), f"{value:,.4g}", f"{bound:,.4g}" if bound == bound else "–",
         limit_record.describe_standing(run))
        for run, value, bound in zip(runs, values.tolist(), bounds.tolist(), strict=True)
    ]  # fmt: skip
    numbers = make_table(("load", figure, f"{most}, 99 %", ""), rows)
    return replace(panel, curves=curves, y_top=top, caption=panel.caption + above, numbers=numbers)


def _plot_runs(
    record: LimitRecord, key: str, figure: tuple[str, str], runs: Sequence[LimitRun], values: Floats
) -> Panel:
    """Make the panel of a figure (name and unit) of the runs over the load, the limit's interval as a band.

    Runs that were ended early as saturated are a curve of their own, and points of runs that did not pass
    hollow.
    """
    name, unit = figure
    curves = []
    for saturated, title in ((False, name), (True, f"{name}, saturated")):
        own = [at for at, run in enumerate(runs) if run.saturated is saturated]
        x, labels = np.array([runs[at].load for at in own]), tuple(_label_run(runs[at]) for at in own)
        hollow = tuple(not runs[at].passed for at in own)
        if not saturated:
            curves.append(Curve(title, x, values[own], CurveStyle.JOINED, labels, hollow))
        elif own:
            curves.append(Curve(title, x, values[own], CurveStyle.MARKS, labels, hollow, of=0))
    sentences = ["A point per run."]
    if not all(run.passed for run in runs):
        sentences.append("A run at a hollow point is not shown to meet the objectives.")
    loads, band = np.array([run.load for run in runs]), None
    if record.limit is not None and record.limit.value is not None:
        least, most = float(loads.min()), float(loads.max())
        high = record.limit.high
        band = max(least, record.limit.low or 0.0), most if high is None else min(most, high)
        sentences.append("The band is where the limit is, at 95 %.")
    unit_asked = limit_record.name_unit(record.axis, record.of_sessions)
    x_label = f"{unit_asked} asked" if record.axis == "rate" else "concurrency"
    return Panel(
        key, f"{name} over load", x_label, unit, tuple(curves), x_log=is_wide(loads), band=band,
        caption=" ".join(sentences),
    )  # fmt: skip


def _label_run(run: LimitRun) -> str:
    """Return a run's label: saturated, disturbed or INVALID, the first that holds; "" otherwise."""
    if run.saturated or run.disturbed:
        return "saturated" if run.saturated else "disturbed"
    return run.verdict if run.verdict == "INVALID" else ""
