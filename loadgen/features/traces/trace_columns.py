"""Trace columns: a trace's rows as the load that they are, to be measured."""

from __future__ import annotations

from loadgen.features.traces.trace_rows import TraceRows
from loadgen.figures.workloads.load_columns import LoadColumns


def make_load_columns(rows: TraceRows) -> LoadColumns:
    """Make the columns of all rows that can be sent; blocks are unknown without hashes."""
    hashed = bool(rows.block and len(rows.hashes))
    skipped = (f"left out: {count:,} rows, {why}" for why, count in rows.skipped.items())
    return LoadColumns(
        rows.file,
        rows.input_lens,
        rows.output_lens,
        rows.at_ns,
        rows.hashes if hashed else None,
        rows.starts if hashed else None,
        rows.block,
        rows.sessions,
        notes=(*rows.notes, *skipped),
    )
