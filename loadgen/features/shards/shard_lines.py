"""Shard lines: of which runs a merged one was made, and how their clocks were compared."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.text import format_count
from loadgen.facts.run_facts import MergedShard
from loadgen.report.run_directory import Result
from loadgen.report.section import ReportOptions


def describe_shards(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield the shards of a merged run if their clocks differ or one was lost; with --explain always."""
    shards, explain = result.facts.shards, options.explain
    others = [row for row in shards if row.reference]
    lost = [row.name for row in shards if row.lost]
    if not shards or not (explain or others or lost):
        return
    names = f", lost: {', '.join(lost)}" if lost else ""
    if not others:
        clocks = "" if len(shards) == 1 else "; all of one clock"
    else:
        how = ", ".join(dict.fromkeys(row.reference for row in others))
        moved = f"; times of {len(others)} moved to the clock of the first shard by {how}"
        if any(row.error_ns < 0 for row in others):
            clocks = f"{moved}, by how much that is off is unknown; no latency depends on it"
        else:
            worst_ms = max(row.error_ns for row in others) / MS_NS
            clocks = f"{moved}, ± {worst_ms:.3g} ms at most; no latency depends on it"
    yield f"merged from {len(shards) - len(lost)} of {len(shards)} shards{names}{clocks}"
    if explain:
        yield from map(_describe_row, shards)


def _describe_row(row: MergedShard) -> str:
    if row.lost:
        return f"  {row.lost}"
    clock = ""
    if row.reference:
        error = f" ± {row.error_ns / MS_NS:.3g} ms" if row.error_ns >= 0 else ", error unknown"
        clock = f", times moved by {row.offset_ns / SECOND_NS:+.6f} s{error} ({row.reference})"
    return (
        f"  shard {row.name}: {format_count(row.requests, 'request')}, {row.cores:.2f} of a core busy{clock}"
    )
