"""Attribution charts: where a run's time goes, as a table, and its longest waits as bars of their parts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from msgspec.structs import replace

from loadgen.base.clock import MS_NS
from loadgen.features.attribution.attribution import Attribution, PartRows
from loadgen.features.attribution.attribution_section import ABOUT, NOTHING, TITLE, list_columns
from loadgen.features.attribution.basis import describe_basis, describe_means
from loadgen.features.attribution.part_times import (
    PartTime,
    find_attribution,
    format_share,
    list_part_times,
    mean_ms,
)
from loadgen.features.attribution.parts import PARTS, ROWS
from loadgen.report.run_directory import Result
from loadgen.study.pages.page_parts import PageSection, Panel, Spans, format_number
from loadgen.study.pages.pictures.drawing import SHADES
from loadgen.study.tables import Table, make_table
from loadgen.verdict.evidence import has_tail

MOST_WAITS = 20  # of a panel
_UNKNOWN, _MOSTLY_UNKNOWN = 0.5, 0.95  # of a tail: from there on a remark says so; no bar is drawn


def make_attribution_section(run: Result) -> PageSection:
    """Make the section of where the time goes; empty if a run is too short, or has no times of tokens."""
    title, found = TITLE.capitalize(), find_attribution(run) if has_tail(run.facts) else None
    if found is None:
        return PageSection(title)
    if found.nothing_to_explain:
        return PageSection(title, "attribution", title, remarks=(NOTHING,))
    more = any(tail.share("unknown") >= _UNKNOWN for _, tail in found.tails)
    hint = ("`loadgen explain` names what would show more of what is unknown",) if more else ()
    return PageSection(
        title,
        "attribution",
        title,
        table=_make_part_table(found),
        panels=tuple(plot_waits(run, found)),
        remarks=(*describe_basis(found), *describe_means(run.facts, found), *hint),
    )


def _make_part_table(found: Attribution) -> Table:
    """Make the table of parts: mean ms and share of each kind of waits."""
    columns = list_columns(found)
    times = [{time.part.key: time for time in list_part_times(column.rows)} for column in columns]
    rows = [
        (part.label, *(_format_time(each.get(part.key)) for each in times))
        for part in PARTS
        if any(part.key in each for each in times)
    ]
    rows.append(("total", *(format_number("", mean_ms(each.rows)) for each in columns)))
    titles = (f"{each.title} (n = {each.waits:,})" for each in columns)
    return make_table(("ms, mean", *titles), rows, notes=(f"{ABOUT}: mean ms, and share of the whole",))


def _format_time(time: PartTime | None) -> str:
    return "–" if time is None else format_number("", time.mean_ms, aside=format_share(time.share))


def plot_waits(run: Result, found: Attribution) -> Iterator[Panel]:
    """Yield the panels of the slowest first tokens and of the longest gaps, if enough of them is known."""
    for key, title, wait, since, waits in (
        ("slowest-first-tokens", "Slowest first tokens", "request", "ms, since it was due", found.ttft),
        ("longest-gaps", "Longest gaps", "gap", "ms, since the message before", found.gaps),
    ):
        longest = np.argsort(-waits.whole_ns, kind="stable")[:MOST_WAITS]
        shown = waits.select(longest)
        if len(shown) and shown.share("unknown") < _MOSTLY_UNKNOWN:
            yield _plot_longest(run, Panel(key, title, since, f"{wait}, longest first"), shown)


def _plot_longest(run: Result, panel: Panel, waits: PartRows) -> Panel:
    """Draw the waits into a panel, a bar each: its parts one after another, in the order of PARTS."""
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
    """Make the table of waits: which request and message, the whole, and each part in ms."""
    parts = [time.part for time in list_part_times(waits)]
    columns = [waits.whole_ns, *(waits.parts[ROWS[part.key]] for part in parts)]
    index = run.records.index[waits.request].tolist()
    names = [
        f"request {of}" + (f", message {message + 1}" if message else "")
        for of, message in zip(index, waits.message.tolist(), strict=True)
    ]
    cells = (f"{value_ns / MS_NS:,.2f}" for value_ns in np.stack(columns, axis=1).ravel().tolist())
    rows = [(name, *islice(cells, len(columns))) for name in names]
    return make_table(("ms", "total", *(part.label for part in parts)), rows)
