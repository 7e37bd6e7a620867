"""Part times: the mean and the share of each part of some waits, and a table of several kinds of waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from loadgen.base.clock import MS_NS
from loadgen.base.text import align_cells
from loadgen.features.attribution.attribution import Attribution, PartRows, attribute_run
from loadgen.features.attribution.parts import PARTS, WaitPart
from loadgen.report.run_directory import Result

TYPICAL = ("decode_step", "unknown")  # parts that name no cause of a long wait
CAUSE = 0.2  # of a tail's time: from there on its causes are shown unasked
_FEW = 0.01  # of the time: of a smaller share the percent are not given
_NAME, _MS, _SHARE = 17, 12, 8  # columns


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
    whole = sum(sums.values())
    return [
        PartTime(part, sums[part.key] / len(rows) / MS_NS, sums[part.key] / whole)
        for part in PARTS
        if sums[part.key]
    ]


def rank_part_times(rows: PartRows) -> list[PartTime]:
    """List the parts that are not 0, the largest first."""
    return sorted(list_part_times(rows), key=lambda time: -time.share)


def measure_causes(rows: PartRows) -> float:
    """Measure the share of the parts that name a cause, 0 to 1: all but the typical step and unknown."""
    return sum(time.share for time in list_part_times(rows) if time.part.key not in TYPICAL)


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


def draw_part_table(columns: Sequence[WaitColumn]) -> Iterator[str]:
    """Yield the lines of a table: a row a part that any column has, mean ms and share; 80 columns wide."""
    widths = (-_NAME, *(_MS, _SHARE) * len(columns))
    pair = _MS + _SHARE
    yield align_cells(("mean ms", *(each.title for each in columns)), (-_NAME, *(pair,) * len(columns)))
    yield align_cells(("", *(f"n = {each.waits:,}" for each in columns)), (-_NAME, *(pair,) * len(columns)))
    times = [{time.part.key: time for time in list_part_times(each.rows)} for each in columns]
    for part in PARTS:
        found = [each.get(part.key) for each in times]
        if any(found):
            cells = (("", "") if time is None else _format_time(time) for time in found)
            yield align_cells((part.label, *(text for pair in cells for text in pair)), widths)
    wholes = (text for each in columns for text in (f"{mean_ms(each.rows):,.2f}", ""))
    yield align_cells(("total", *wholes), widths)


def _format_time(time: PartTime) -> tuple[str, str]:
    return f"{time.mean_ms:,.2f}", format_share(time.share)
