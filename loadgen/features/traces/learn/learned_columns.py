"""Learned columns: a log's calls and those of the workload as columns, to compare one with the other."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from loadgen.base.clock import SECOND_NS
from loadgen.features.traces.learn.call_spool import CallSpool
from loadgen.features.traces.learn.prompt_blocks import BLOCK
from loadgen.features.traces.workload import WorkloadSession
from loadgen.figures.workloads.load_columns import LoadColumns

MOST_CALLS, MOST_BLOCKS = 1 << 20, 1 << 23  # that are compared, in 1 GiB at most


class LearnedColumns:
    """The columns of calls, filled session by session; of too many nothing is kept."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._times_ns, self._inputs, self._outputs, self._sessions = (array("q") for _ in range(4))
        self._blocks, self._counts = array("q"), array("q")
        self._rows = 0
        self.full = False

    def add(self, row: WorkloadSession) -> None:
        """Add the calls of a session of the workload."""
        if self.full:
            return
        before: list[int] = []
        for call in row.calls:
            before = [*before[: call.keep], *call.ids]
            at_ns = round(row.t * SECOND_NS) + round(call.t * SECOND_NS)
            self.add_call(self._rows, at_ns, (call.prompt, call.answer), before)
        self._rows += 1

    def add_call(self, session: int, at_ns: int, lens: tuple[int, int], blocks: Sequence[int]) -> None:
        """Add one call of a session: its time, its lengths and its blocks."""
        self._times_ns.append(at_ns)
        self._inputs.append(lens[0])
        self._outputs.append(lens[1])
        self._sessions.append(session)
        self._blocks.extend(blocks)
        self._counts.append(len(blocks))
        self.full = len(self._inputs) > MOST_CALLS or len(self._blocks) > MOST_BLOCKS

    def make(self) -> LoadColumns | None:
        """Make the columns in the order of time; None of more than 2²⁰ calls or 2²³ blocks."""
        if self.full:
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
        order = np.argsort(times_ns, kind="stable")
        begins = np.cumsum(counts) - counts
        starts = np.concatenate(([0], np.cumsum(counts[order]))).astype(np.int64)
        at = np.arange(starts[-1]) + np.repeat(begins[order] - starts[:-1], counts[order])
        return LoadColumns(
            self._name,
            inputs[order],
            outputs[order],
            times_ns[order] - times_ns[order[0]],
            blocks[at] if len(blocks) else None,
            starts if len(blocks) else None,
            BLOCK,
            sessions[order],
        )


def make_log_columns(spool: CallSpool) -> LoadColumns | None:
    """Make the columns of a log's calls in the order of time; None of more than 2²⁰ calls or 2²³ blocks."""
    if spool.calls > MOST_CALLS or spool.blocks > MOST_BLOCKS:
        return None
    columns = LearnedColumns("log")
    for number, session in enumerate(spool.list_sessions()):
        for call in session:
            blocks = spool.read_blocks(call).tolist()
            columns.add_call(number, call.begin_ns, (call.input_len, call.output_len), blocks)
    return columns.make()
