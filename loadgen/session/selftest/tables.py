"""What the self-test prints of a transport."""

from __future__ import annotations

from loadgen.validity.calibration import Calibration, Error


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


def _cell(error: Error, us: float) -> str:
    percent = error.percent(us)
    return f"{us:,.{1 * (us < 100)}f} µs {percent:6.{2 * (percent < 100)}f} %"
