"""Trace columns: a trace's rows as the load that they are, to be measured."""

from __future__ import annotations

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.block_hashes import SERVER_BLOCK
from loadgen.base.text import format_count
from loadgen.features.traces.trace_rows import Growth, TraceRows
from loadgen.figures.workloads.load_columns import NO_DELAY, LoadColumns

_MOST_BLOCKS = 1 << 24  # of prompts without hashes; if they have more, blocks are longer
_TEXT = 1 << 40  # ids of each text that lines share: no prompt has as many blocks


def make_load_columns(rows: TraceRows, name: str = "") -> LoadColumns:
    """Make the columns of all rows that can be sent, under the file's name if none is given.

    Blocks are unknown without hashes, unless the rows say which earlier prompt each begins with.
    """
    blocks, starts, block = rows.hashes, rows.starts, rows.block
    if rows.growth is not None:
        blocks, starts, block = number_blocks(rows.growth, rows.input_lens, _MOST_BLOCKS)
    known = bool(block and len(blocks))
    pauses_ns = None if rows.delays_ns is None else rows.delays_ns.copy()
    if pauses_ns is not None and rows.waits is not None:
        pauses_ns[np.diff(rows.waits.starts) == 0] = NO_DELAY
    skipped = (f"left out: {format_count(count, 'row')}, {why}" for why, count in rows.skipped.items())
    return LoadColumns(
        name or rows.file,
        rows.input_lens,
        rows.output_lens,
        rows.at_ns,
        blocks if known else None,
        starts if known else None,
        block,
        rows.sessions,
        pauses_ns,
        None if rows.waits is None else rows.waits.depths,
        (*rows.notes, *rows.timed_notes, *skipped),
    )


def number_blocks(growth: Growth, input_lens: Int64, most: int) -> tuple[Int64, Int64, int]:
    """Number the whole blocks of prompts that begin as earlier ones do: ids, each row's begin, block size.

    The size is the server's, 16 tokens, or as many times its double that there are `most` at most.
    """
    block = SERVER_BLOCK
    while int((input_lens // block).sum()) > most:
        block *= 2
    counts, kept = input_lens // block, growth.kept // block
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    ids = np.arange(starts[-1], dtype=np.int64)
    begins = starts.tolist()
    shares = zip(growth.origins.tolist(), np.minimum(kept, counts).tolist(), strict=True)
    for begin, (origin, count) in zip(begins, shares, strict=False):
        first = begins[origin] if origin >= 0 else 0
        ids[begin : begin + count] = (
            ids[first : first + count] if origin >= 0 else origin * _TEXT + np.arange(count)
        )
    return ids, starts, block
