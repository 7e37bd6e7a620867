"""What the self-test prints of a transport, in one worker or several."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.base.text import format_count
from loadgen.verdict.calibration import Calibration, Error


def table(measured: Calibration) -> list[str]:
    """A transport's figures, at most 80 columns."""
    lines = [f"{measured.transport + ': error':<14}{'median':>22}{'P99':>22}{'max':>22}"]
    for name, error in (("TTFT", measured.ttft), ("message gap", measured.gap), ("E2E", measured.e2e)):
        values_us = (error.median_us, error.p99_us, error.max_us)
        lines.append(f"  {name:<12}" + "".join(f"{_cell(error, us):>22}" for us in values_us))
    if measured.capacity_streams:
        capacity = "" if measured.capacity_bounded else "at least "
        capacity += f"{measured.capacity_tokens_per_s:,.0f} tok/s, on {measured.capacity_streams:,} streams"
    else:
        capacity = "no load that was tried was held"
    return [
        *lines,
        f"  capacity          {capacity}",
        f"  messages a read   {measured.events_per_read:.4f}",
        f"  CPU per token     {measured.cpu_us_per_token:.1f} µs",
    ]


_COLUMNS = (("workers", 7), ("streams", 10), ("tok/s", 12), ("× one", 8), ("gap error: median", 19),
            ("P99", 12), ("CPU a token", 12))  # fmt: skip


def workers_table(measured: Sequence[Calibration], ended: Sequence[str]) -> list[str]:
    """A transport's figures as its workers grow, at most 80 columns; `ended`: why no more was tried."""
    lines = ["".join(f"{name:>{width}}" for name, width in _COLUMNS)]
    for each in measured:
        least = "" if each.capacity_bounded or not each.capacity_streams else "≥ "
        one = measured[0].capacity_tokens_per_s
        cells = (
            str(each.workers),
            f"{each.capacity_streams:,}",
            f"{least}{each.capacity_tokens_per_s:,.0f}",
            f"{each.capacity_tokens_per_s / one:.2f}" if one else "–",
            f"{each.gap.median_us:,.1f} µs",
            f"{each.gap.p99_us:,.1f} µs",
            f"{each.cpu_us_per_token:.1f} µs",
        )
        lines.append("".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True)))
    words = zip(measured, ended, strict=True)
    return lines + [
        f"  {format_count(each.workers, 'worker')}: no higher load was tried: {why}"
        for each, why in words
        if why
    ]


def _cell(error: Error, us: float) -> str:
    percent = error.percent(us)
    return f"{us:,.{1 * (us < 100)}f} µs {percent:6.{2 * (percent < 100)}f} %"
