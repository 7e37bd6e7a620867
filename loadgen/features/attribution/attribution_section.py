"""Attribution section: where the time to first tokens, and that of gaps beyond P99, goes, by part."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.base.text import wrap_text
from loadgen.features.attribution.attribution import Attribution, PartRows
from loadgen.features.attribution.basis import BY_MEANS, describe_basis, describe_means
from loadgen.features.attribution.part_times import (
    CAUSE,
    WaitColumn,
    describe_shares,
    draw_part_table,
    find_attribution,
    format_ms,
    mean_ms,
    measure_causes,
)
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions

_LARGEST = 3  # parts in a line of the short report
BEYOND_TTFT, BEYOND_ITL = "beyond P99 TTFT", "gaps beyond P99"


def make_mean_column(title: str, found: Attribution) -> WaitColumn:
    """Make the column of all first tokens, marked where parts of their mean are the server's means."""
    if found.mean_ttft is None:
        return WaitColumn(title, found.ttft)
    return WaitColumn(f"{title}{BY_MEANS}", found.mean_ttft, len(found.ttft))


def list_columns(found: Attribution) -> list[WaitColumn]:
    """List the waits that are shown by part: those of all first tokens, of the slowest, and the long gaps."""
    every = [
        make_mean_column("first token", found),
        WaitColumn(BEYOND_TTFT, found.tail_ttft),
        WaitColumn(BEYOND_ITL, found.gaps),
    ]
    return [column for column in every if len(column.rows)]


TITLE = "where the time goes"
ABOUT = "the wait for a first token from when the request was due, and the gap between two messages"
NOTHING = (
    "nothing to explain: TTFT beyond P99, and gaps beyond P99 ITL, are longer than the median by less than "
    "1 ms or a fifth"
)


def describe_attribution(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield the table of parts in one entry, and what it rests on; a line if there is nothing to explain."""
    found = find_attribution(result)
    if found is None:
        return
    if found.nothing_to_explain:
        lines = wrap_text(f"{TITLE}: {NOTHING}")
    else:
        lines = wrap_text(f"{TITLE}: {ABOUT}")
        lines += draw_part_table(list_columns(found))
        for line in (*describe_basis(found), *describe_means(result.facts, found)):
            lines += wrap_text(line)
    yield "\n".join(lines)


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
    return tail.is_long and measure_causes(tail) >= CAUSE


def _summarize(tail: PartRows) -> str:
    return f"{format_ms(mean_ms(tail))} ms, {describe_shares(tail, _LARGEST)}"
