"""Attribution section: where the time to first tokens, and that of gaps beyond P99, goes, by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import partial
from typing import NamedTuple

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.clock import MS_NS
from loadgen.base.tables import Number, Table, format_number, make_table
from loadgen.engines import engines
from loadgen.facts.run_facts import Facts
from loadgen.features.attribution.attribution import (
    BEFORE_SENT,
    EVIDENCE,
    OF_EACH_REQUEST,
    PARTS,
    ROWS,
    Attribution,
    EvidenceKind,
    PartRows,
    Wait,
    WaitPart,
    attribute_run,
)
from loadgen.records.record import UNKNOWN
from loadgen.report.run_directory import RequestColumn, Result
from loadgen.report.section import ReportOptions
from loadgen.verdict.client_checks import PAUSED_S

TYPICAL = ("decode_step", "unknown")  # parts that name no cause of a long wait
CAUSE = 0.2  # of a tail's time: from there on its causes are shown unasked
_FEW = 0.01  # of the time: of a smaller share the percent are not given


class PartTime(NamedTuple):
    """A part of some waits: its mean, and its share of their sum, 0 to 1."""

    part: WaitPart
    mean_ms: float
    share: float


class WaitColumn(NamedTuple):
    """Waits of one kind, under a title."""

    title: str
    rows: PartRows
    n: int = 0  # that the one row is the mean of; 0: each row is one

    @property
    def waits(self) -> int:
        """The number of waits."""
        return self.n or len(self.rows)


def find_attribution(run: Result) -> Attribution | None:
    """Return where a run's waits come from; None without waits, or where what arrived is not tokens."""
    if not run.ask.times_tokens:
        return None
    found = run.derive(attribute_run)
    return found if len(found.ttft) else None


def list_part_times(rows: PartRows) -> list[PartTime]:
    """List the parts that are not 0, in the order of PARTS."""
    sums = rows.sum_parts()
    whole, count = sum(sums.values()), len(rows)
    return [
        PartTime(part, sums[part.key] / count / MS_NS, sums[part.key] / whole)
        for part in PARTS
        if sums[part.key]
    ]


def rank_part_times(rows: PartRows) -> list[PartTime]:
    """List the parts that are not 0, the largest first."""
    return sorted(list_part_times(rows), key=lambda time: -time.share)


def mean_ms(rows: PartRows) -> float:
    """Compute the mean of some waits in ms; there must be one."""
    return sum(rows.sum_parts().values()) / len(rows) / MS_NS


def format_ms(value_ms: float) -> str:
    """Format milliseconds with four digits, or all before the decimal point."""
    return f"{value_ms:.4g}" if value_ms < 1000 else f"{value_ms:,.0f}"


def format_share(share: float) -> str:
    """Format a share in whole percent, `<1 %` below one, `>99 %` if not quite all."""
    if 0 < share < _FEW or 1 - _FEW < share < 1:
        return "<1 %" if share < _FEW else ">99 %"
    return f"{100 * share:.0f} %"


def describe_shares(rows: PartRows, most: int) -> str:
    """Describe the `most` largest parts of some waits, as `62 % others' prefill, 31 % decode step`."""
    largest = rank_part_times(rows)[:most]
    return ", ".join(f"{format_share(time.share)} {time.part.label}" for time in largest)


def make_wait_table(columns: Sequence[WaitColumn]) -> Table:
    """Make the table of the parts that any column has, mean in ms and share, and of the total's mean."""
    times = [{time.part.key: time for time in list_part_times(each.rows)} for each in columns]
    rows = [
        (
            part.label,
            *(
                Number(f"{time.mean_ms:,.2f} ({format_share(time.share)})", time.mean_ms) if time else "–"
                for time in (each.get(part.key) for each in times)
            ),
        )
        for part in PARTS
        if any(part.key in each for each in times)
    ]
    rows.append(("total", *(format_number("", mean_ms(each.rows)) for each in columns)))
    return make_table(("ms, mean", *(f"{each.title} (n={each.waits:,})" for each in columns)), rows)


BY_MEANS = "*"  # marks a column whose parts are means
_MEANS = ("queue", "prefill", "decode", "inference")  # histograms of a ServerWindow


def list_kinds(found: Attribution) -> list[EvidenceKind]:
    """List the kinds of evidence that there were, in their order."""
    return [kind for kind in EVIDENCE if kind.key in found.evidence]


def list_reasons(found: Attribution) -> Iterator[str]:
    """Yield a line of the parts that each kind of evidence showed; of a rare kind those no other showed."""
    shown = {key for rows in (found.ttft, found.gaps) for key, sum_ns in rows.sum_parts().items() if sum_ns}
    if own := _name_parts(BEFORE_SENT, shown):
        yield f"{own}: this client's own times"
    kinds = list_kinds(found)
    left = shown.difference(*(kind.parts for kind in kinds))
    for kind in EVIDENCE:
        if parts := _name_parts(kind.parts, shown if kind in kinds else left):
            yield f"{parts}: {kind.label}"
            left.difference_update(kind.parts)


def _name_parts(keys: Sequence[str], shown: Set[str]) -> str:
    return ", ".join(part.label for part in PARTS if part.key in keys and part.key in shown)


def describe_means(facts: Facts, found: Attribution) -> Iterator[str]:
    """Yield the means of the server's histograms, where it reports no request's own times, and their mark."""
    window = facts.own_window
    if window is None or set(OF_EACH_REQUEST) & set(found.evidence):
        return
    means = ((name, getattr(window, name)) for name in _MEANS)
    known = ", ".join(f"{name} {format_ms(mean.mean_ms)} ms" for name, mean in means if mean is not None)
    if known:
        yield f"the server's means over the run: {known}"
    if found.mean_ttft is not None:
        yield f"{BY_MEANS} parts of this mean are the server's own means: they divide no single request"


def list_remedies(facts: Facts, found: Attribution) -> Iterator[str]:
    """Yield what would show more, of each kind of evidence that there was not, if it can be had."""
    if (stopped_s := facts.client.stopped_s) > PAUSED_S:
        yield (
            f"the client did not run for {stopped_s:.2g} s at once, and read late what came meanwhile: pause "
            "neither it nor its container, and leave it a core"
        )
    missing = [kind for kind in EVIDENCE if kind.key not in found.evidence]
    server = engines.find_by_name(facts.server.engine)
    if set(OF_EACH_REQUEST) & set(found.evidence):
        missing = [kind for kind in missing if kind.key not in OF_EACH_REQUEST]
    else:
        if server.own_times:
            yield f"{server.own_times}: it then reports each request's queue and prefill"
    if facts.own_window is not None:  # which counts no preemptions
        missing = [kind for kind in missing if kind.key != "preemptions"]
    # Received: it says why too few came. Our own servers export none.
    if server.ours or (facts.spans is not None and facts.spans.received):
        missing = [kind for kind in missing if kind.key != "spans"]
    had = [kind.remedy for kind in missing if facts.client.transport not in kind.transports]
    yield from filter(None, dict.fromkeys(had))


_LARGEST = 3  # parts in a line of the short report
BEYOND_TTFT, BEYOND_ITL = "beyond P99 TTFT", "gaps beyond P99"


def make_mean_column(title: str, found: Attribution) -> WaitColumn:
    """Make the column of all first tokens, marked where parts of their mean are the server's means."""
    if found.mean_ttft is None:
        return WaitColumn(title, found.ttft)
    return WaitColumn(f"{title}{BY_MEANS}", found.mean_ttft, len(found.ttft))


def list_columns(found: Attribution) -> list[WaitColumn]:
    """List the waits shown by part, if any: those of all first tokens, of the slowest, and the long gaps."""
    every = [
        make_mean_column("first token", found),
        WaitColumn(BEYOND_TTFT, found.tail_ttft),
        WaitColumn(BEYOND_ITL, found.gaps),
    ]
    return [column for column in every if len(column.rows)]


TITLE = "Where the time goes"
_UNKNOWN = 0.5  # of a tail: from there on a line names what would show more
ABOUT = "the wait for a first token from when the request was due, and the gap between two chunks"
NOTHING = (
    "nothing to explain: TTFT beyond P99, and gaps beyond P99 ITL, are longer than the median by less than "
    "1 ms or a fifth"
)


def make_attribution_table(result: Result) -> Table:
    """Make the table of parts; without rows if there is nothing to explain."""
    found = find_attribution(result)
    if found is None or found.nothing_to_explain:
        return make_table((), ())
    return make_wait_table(list_columns(found))


def describe_attribution(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on what the table of parts is of and rests on; a line if there is nothing to explain."""
    found = find_attribution(result)
    if found is not None and found.nothing_to_explain:
        yield f"{TITLE.lower()}: {NOTHING}"
    elif found is not None:
        yield f"{TITLE.lower()}: {ABOUT}"
        if labels := ", ".join(kind.label for kind in list_kinds(found)):
            yield f"evidence: {labels}"
        yield from describe_means(result.facts, found)
        if any(tail.share("unknown") >= _UNKNOWN for _, tail in found.tails):
            yield "`loadgen explain` names what would show more of what is unknown"


def summarize_attribution(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield a line on each tail that is long and has a cause."""
    found = find_attribution(result)
    if found is None or found.nothing_to_explain:
        return
    if has_causes(found.tail_ttft):
        yield f"first tokens beyond P99 TTFT: {_summarize(found.tail_ttft)}"
    if has_causes(found.gaps):
        yield f"gaps beyond P99 ITL: {_summarize(found.gaps)}"


def has_causes(tail: PartRows) -> bool:
    """Whether a tail is long, and a fifth of it or more is of parts that name a cause."""
    causes = (time.share for time in list_part_times(tail) if time.part.key not in TYPICAL)
    return tail.is_long and sum(causes) >= CAUSE


def _summarize(tail: PartRows) -> str:
    return f"{format_ms(mean_ms(tail))} ms, {describe_shares(tail, _LARGEST)}"


def list_part(run: Result, key: str, wait: Wait) -> Int64:
    """List a part of each request's waits of a kind, summed, int64[requests] (ns); -1: not known."""
    found = find_attribution(run)
    waits = None if found is None else found.ttft if wait == "ttft" else found.gaps
    shown_by = {kind.key for kind in EVIDENCE if key in kind.parts}
    if (
        found is None
        or waits is None
        # Nothing would have shown the part, and nothing of it was found: its 0 is no answer.
        or (shown_by and shown_by.isdisjoint(found.evidence) and not waits.parts[ROWS[key]].any())
    ):
        return np.broadcast_to(np.int64(UNKNOWN), len(run.records))
    values = np.full(len(run.records), UNKNOWN, np.int64)
    values[found.ttft.request] = 0
    np.add.at(values, waits.request, waits.parts[ROWS[key]])
    return values


_WAITS: dict[Wait, str] = {
    "ttft": "the wait from when it was due until its first token", "tail": "its gaps beyond P99 ITL, summed"
}  # fmt: skip
COLUMNS = tuple(
    RequestColumn(
        f"{wait}_{part.key}_ns",
        "int64",
        f"{part.label}: of {what}",
        numbers=partial(list_part, key=part.key, wait=wait),
    )
    for wait, what in _WAITS.items()
    for part in PARTS
    if wait in part.waits
)
