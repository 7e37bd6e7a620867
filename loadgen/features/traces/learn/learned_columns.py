"""Learned columns: a log's calls and those of the workload as columns, to compare one with the other."""

from __future__ import annotations

from array import array

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.features.traces.learn.call_spool import PARTS, CallSpool
from loadgen.features.traces.learn.prompt_blocks import BLOCK
from loadgen.features.traces.workload import WorkloadSession
from loadgen.figures.workloads.load_columns import LoadColumns

MOST_CALLS, MOST_BLOCKS = 1 << 20, 1 << 23  # that are compared: memory does not grow with the log


class LearnedColumns:
    """The columns of a workload, filled session by session; too many are not kept."""

    def __init__(self) -> None:
        self._times_ns, self._inputs, self._outputs, self._sessions = (array("q") for _ in range(4))
        self._blocks, self._counts = array("q"), array("q")
        self._rows, self._full = 0, False

    def add(self, row: WorkloadSession) -> None:
        """Add the calls of a session."""
        if self._full:
            return
        before: list[int] = []
        for call in row.calls:
            before = [*before[: call.keep], *call.ids]
            self._times_ns.append(round(row.t * SECOND_NS) + round(call.t * SECOND_NS))
            self._inputs.append(call.prompt)
            self._outputs.append(call.answer)
            self._sessions.append(self._rows)
            self._blocks.extend(before)
            self._counts.append(len(before))
        self._rows += 1
        if len(self._inputs) > MOST_CALLS or len(self._blocks) > MOST_BLOCKS:
            self._full = True

    def make(self) -> LoadColumns | None:
        """Make the columns in the order of time; None of more than 2²⁰ calls or 2²³ blocks."""
        if self._full:
            return None
        times_ns, inputs, outputs, sessions, counts, blocks = (
            np.frombuffer(column, np.int64)
            for column in (
                self._times_ns,
                self._inputs,
                self._outputs,
                self._sessions,
                self._counts,
                self._blocks,
            )
        )
        return _sort("workload", (times_ns, inputs, outputs, sessions), counts, blocks)


def make_log_columns(spool: CallSpool) -> LoadColumns | None:
    """Make the columns of a log's calls in the order of time; None of more than 2²⁰ calls or 2²³ blocks."""
    if spool.calls > MOST_CALLS or spool.blocks > MOST_BLOCKS:
        return None
    parts = [spool.read_part(part) for part in range(PARTS)]
    records = np.concatenate(parts)
    blocks = [spool.read_blocks(record) for record in records]
    names = ("begin_ns", "input_len", "output_len")
    times_ns, inputs, outputs = (records[name].astype(np.int64) for name in names)
    sessions = np.unique(records["session"], return_inverse=True)[1].astype(np.int64)
    counts = np.array([len(each) for each in blocks], np.int64)
    return _sort("log", (times_ns, inputs, outputs, sessions), counts, np.concatenate(blocks))


def _sort(name: str, calls: tuple[Int64, Int64, Int64, Int64], counts: Int64, blocks: Int64) -> LoadColumns:
    """Make the columns of calls (begins, prompts, answers, sessions) in the order of their begins."""
    times_ns, inputs, outputs, sessions = calls
    order = np.argsort(times_ns, kind="stable")
    begins = np.cumsum(counts) - counts
    starts = np.concatenate(([0], np.cumsum(counts[order]))).astype(np.int64)
    at = np.arange(starts[-1]) + np.repeat(begins[order] - starts[:-1], counts[order])
    return LoadColumns(
        name,
        inputs[order],
        outputs[order],
        times_ns[order] - times_ns[order[0]],
        blocks[at] if len(blocks) else None,
        starts if len(blocks) else None,
        BLOCK,
        sessions[order],
    )
