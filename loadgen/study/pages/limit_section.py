"""Limit section: a search for the highest load as words, a table of its runs, and pictures over the load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from loadgen.base.table import make_table
from loadgen.report import limit_record
from loadgen.report.limit_record import LimitRecord, LimitRun, ObjectiveFigures
from loadgen.study.importers.clients.loadgen_runs import StoredLimit
from loadgen.study.pages.page_parts import NAN, Curve, CurveStyle, Floats, PageSection, Panel, is_wide

_TOP = 2.5  # times the limit, the highest that is drawn: a saturated run would flatten all others


def make_limit_sections(limits: Sequence[StoredLimit]) -> Iterator[PageSection]:
    """Make a section for each search, in their order."""
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
    """Each objective over the load with its bound and its limit, then goodput."""
    runs = sorted(record.runs, key=lambda run: (run.load, run.number))
    for place, objective in enumerate(record.objectives, 1):
        shown = [
            (run, figures)
            for run in runs
            for figures in run.objectives
            if figures.objective == objective and figures.value_ms is not None
        ]
        if shown:
            yield _plot_objective(record, f"{anchor}-objective-{place}", shown)
    if any(run.goodput_per_s for run in runs):
        yield _plot_goodput(
            record, f"{anchor}-goodput", [run for run in runs if run.goodput_per_s is not None]
        )


def _plot_objective(
    record: LimitRecord, key: str, shown: Sequence[tuple[LimitRun, ObjectiveFigures]]
) -> Panel:
    """A percentile of each run with its upper bound against the limit, the interval of the answer a band."""
    runs = [run for run, _ in shown]
    loads = np.array([run.load for run in runs])
    values, bounds = (
        np.array([NAN if value is None else value for value in column], np.float64)
        for column in ([each.value_ms for _, each in shown], [each.bound_ms for _, each in shown])
    )
    objective, limit_ms = shown[0][1].objective, shown[0][1].limit_ms
    figure = limit_record.name_percentile(objective)
    known = np.isfinite(bounds)
    ends = np.array([loads.min(), loads.max()])
    whole, *apart = _make_curves(figure, runs, values)
    curves = [
        whole,
        Curve("its upper bound at 99 %", loads[known], bounds[known], CurveStyle.POINTS),
        Curve(f"limit, {limit_ms:g} ms", ends, np.full(2, limit_ms)),
        *apart,
    ]
    band, above = _find_band(record, ends.tolist()), float(np.nanmax([values, bounds])) > _TOP * limit_ms
    rows = tuple(
        (limit_record.format_load(run.load), f"{value:,.4g}", f"{bound:,.4g}" if bound == bound else "–",
         limit_record.describe_standing(run))
        for run, value, bound in zip(runs, values.tolist(), bounds.tolist(), strict=True)
    )  # fmt: skip
    return Panel(
        key, f"{figure} over load", _name_unit(record), "ms", tuple(curves), x_log=is_wide(loads),
        y_top=_TOP * limit_ms, band=band, caption=_write_caption(runs, band, above),
        numbers=make_table(("load", figure, "at most, 99 %", ""), rows),
    )  # fmt: skip


def _write_caption(runs: Sequence[LimitRun], band: tuple[float, float] | None, above: bool = False) -> str:
    """What of a picture needs words: only what is in it."""
    sentences = ["A point per run."]
    if not all(run.passed for run in runs):
        sentences.append("A run at a hollow point is not shown to meet the objectives.")
    if band is not None:
        sentences.append("The band is where the limit is, at 95 %.")
    if above:
        sentences.append("Points at the upper edge are above it.")
    return " ".join(sentences)


def _plot_goodput(record: LimitRecord, key: str, runs: Sequence[LimitRun]) -> Panel:
    loads = np.array([run.load for run in runs])
    goodput = np.array([run.goodput_per_s for run in runs], np.float64)
    rows = tuple((limit_record.format_load(run.load), f"{run.goodput_per_s:,.4g}") for run in runs)
    band = _find_band(record, [float(loads.min()), float(loads.max())])
    return Panel(
        key, "Goodput over load", _name_unit(record), "requests/s",
        tuple(_make_curves("goodput", runs, goodput)),
        x_log=is_wide(loads), band=band, caption=_write_caption(runs, band),
        numbers=make_table(("load", "requests/s within the objectives"), rows),
    )  # fmt: skip


def _make_curves(name: str, runs: Sequence[LimitRun], values: Floats) -> Iterator[Curve]:
    """The runs from load to load; by themselves those that were ended early as saturated, if any were."""
    forms = {False: (name, CurveStyle.JOINED, None), True: (f"{name}, saturated", CurveStyle.MARKS, 0)}
    for saturated, (title, form, of) in forms.items():
        own = [at for at, run in enumerate(runs) if run.saturated is saturated]
        if own or not saturated:
            x = np.array([runs[at].load for at in own])
            labels = tuple(_label_run(runs[at]) for at in own)
            hollow = tuple(not runs[at].passed for at in own)
            yield Curve(title, x, values[own], form, labels, hollow, of)


def _name_unit(record: LimitRecord) -> str:
    return "requests/s asked" if record.axis == "rate" else "concurrency"


def _label_run(run: LimitRun) -> str:
    """What is to be known of a point in a word; "" of a plain one."""
    return (
        "saturated"
        if run.saturated
        else "disturbed"
        if run.disturbed
        else run.verdict * (run.verdict == "INVALID")
    )


def _find_band(record: LimitRecord, ends: Sequence[float]) -> tuple[float, float] | None:
    """The interval of the answer as far as there were runs."""
    if record.limit is None or record.limit.value is None:
        return None
    low, high = record.limit.low, record.limit.high
    return max(ends[0], low or 0.0), min(ends[1], ends[1] if high is None else high)
