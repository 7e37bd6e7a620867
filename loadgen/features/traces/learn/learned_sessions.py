"""Learned sessions: those of a spool as rows of a workload, all or some, at the log's rate or another.

A rate of X is made by superposition, whole sessions at a time. Below 1 each session is kept by the chance X,
as its hash decides. Above 1 there are copies of the log, the last one thinned to the fraction; each is later
by one drawn time, 15 s to a minute, and what would begin after the log's last session begins at its start. So
bursts stay as they are, and over longer times the rate is X times the log's; in windows of seconds the index
of dispersion stays that of the log, since counts that are independent add up in mean and variance alike.

What several sessions of the log share, copies share too. What is a session's own is another in each copy.
Both log and workload become columns, which are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS, US_NS
from loadgen.features.traces.learn.call_spool import PARTS, CallSpool, KeptCall, open_temporary
from loadgen.features.traces.learn.calls import UNKNOWN
from loadgen.features.traces.learn.prompt_blocks import BLOCK, Salt
from loadgen.features.traces.trace_blocks import make_load_columns, scope_hashes
from loadgen.features.traces.trace_rows import TraceColumns, sort_by_time
from loadgen.features.traces.workload import WorkloadCall, WorkloadSession, count_kept
from loadgen.figures.workloads import LoadColumns

_MOST_MOVED_NS, _LEAST_MOVED = 60 * SECOND_NS, 0.25  # by which a copy is later, and the least share of it
_WORD = 2.0**64
_MASK = np.int64(2**63 - 1)
_PART_BITS = 57  # of a hash of 63 bits, below those that choose its part
MOST_CALLS, MOST_BLOCKS = 1 << 20, 1 << 23  # that are compared, in 1 GiB at most


class LearnedSessions:
    """Makes the rows of a workload from a spool, in the order of their sessions' hashes."""

    def __init__(self, spool: CallSpool, salt: Salt, scale: float, most: int | None, directory: Path) -> None:
        self._spool, self._salt, self._scale, self._most = spool, salt, scale, most
        self._shared = find_shared_blocks(spool, directory) if scale > 1 else np.zeros(0, np.int64)
        self._span_ns = spool.find_last_begin() - spool.first_ns + 1 if scale > 1 else 0
        self._samplings, self._paths = [dict(pairs) for pairs in spool.samplings], list(spool.paths)
        self.columns = LearnedColumns("workload")
        self.sessions = self.rows = self.calls = self.cancelled = self.without_end = 0

    def make(self) -> Iterator[WorkloadSession]:
        """Yield the row of each kept session and of its copies, up to `most` sessions; counts them."""
        whole, part = divmod(self._scale, 1)
        for found in self._spool.list_sessions():
            if self._most is not None and self.sessions == self._most:
                return
            copies = range(int(whole) + (found[0].session < part * _WORD))  # 0 is the log's own
            self.sessions += bool(copies)
            blocks = [self._spool.read_blocks(call) for call in found] if copies else []
            for copy in copies:
                yield self._make_row(found, blocks, copy)

    def _make_row(self, found: list[KeptCall], blocks: list[Int64], copy: int) -> WorkloadSession:
        """Make the row of a session, or of its copy (0: the log's own); count its calls, note its columns."""
        begin_ns = found[0].begin_ns
        moved_ns = begin_ns - self._spool.first_ns
        if copy:  # moved by the drawn time of its copy
            drawn = _LEAST_MOVED + (1 - _LEAST_MOVED) * self._salt.hash_name("copy", str(copy)) / _WORD
            moved_ns = (moved_ns + int(drawn * min(_MOST_MOVED_NS, self._span_ns))) % self._span_ns
        row, agents = WorkloadSession(_floor_s(moved_ns), []), {(): 0}
        before = np.zeros(0, np.int64)
        for call, own in zip(found, blocks, strict=True):
            ids = own if copy == 0 else self._change_own(own, copy)
            kept = count_kept(before, ids)
            at_s, end_s = (
                _floor_s(at_ns - begin_ns) for at_ns in (call.begin_ns, max(call.begin_ns, call.end_ns))
            )
            path = self._paths[call.agents]
            for depth in range(1, len(path) + 1):  # parents are numbered before their sub-agents
                if path[:depth] not in agents:
                    row.parents.append(agents[path[: depth - 1]])
                    agents[path[:depth]] = len(row.parents)
            row.calls.append(
                WorkloadCall(
                    at_s,
                    call.input_len,
                    call.output_len,
                    None if call.end_ns == UNKNOWN else round(end_s - at_s, 6),
                    agents[path],
                    kept,
                    ids[kept:].tolist(),
                    bool(call.cancelled),
                    None if call.sampling == UNKNOWN else self._samplings[call.sampling],
                )
            )
            at_ns = round(row.t * SECOND_NS) + round(at_s * SECOND_NS)
            self.columns.add(self.rows, at_ns, (call.input_len, call.output_len), ids)
            self.cancelled += call.cancelled
            self.without_end += call.end_ns == UNKNOWN
            before = ids
        self.rows += 1
        self.calls += len(row.calls)
        return row

    def _change_own(self, ids: Int64, copy: int) -> Int64:
        """Return a prompt's hashes in a copy: other ones for blocks that only one session of the log has."""
        at = np.searchsorted(self._shared, ids)
        shared = np.zeros(len(ids), np.bool_)
        inside = at < len(self._shared)
        shared[inside] = self._shared[at[inside]] == ids[inside]
        return np.where(shared, ids, scope_hashes(ids, copy) & _MASK)


def find_shared_blocks(spool: CallSpool, directory: Path) -> Int64:
    """Find the hashes that several sessions of a spool have, sorted; they go over the disk by parts."""
    with ExitStack() as stack:
        files = open_temporary(stack, directory, PARTS)
        for session in spool.list_sessions():
            hashes = np.unique(np.concatenate([spool.read_blocks(call) for call in session]))
            bounds = np.searchsorted(hashes >> _PART_BITS, np.arange(PARTS + 1))
            for part in np.flatnonzero(np.diff(bounds)).tolist():
                files[part].write(hashes[bounds[part] : bounds[part + 1]].tobytes())
        repeated = []
        for file in files:
            file.seek(0)
            hashes = np.sort(np.frombuffer(file.read(), np.int64))
            repeated.append(np.unique(hashes[1:][hashes[1:] == hashes[:-1]]))
        return np.concatenate(repeated)


def _floor_s(span_ns: int) -> float:
    """Round nanoseconds down to microseconds, in seconds: what ended before another began still did."""
    return span_ns // US_NS / 1e6


class LearnedColumns:
    """The columns of calls, filled session by session; of too many nothing is kept."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._columns = TraceColumns()
        self.full = False

    def add(self, session: int, at_ns: int, lens: tuple[int, int], blocks: Int64) -> None:
        """Add one call of a session: its time, its lengths and its blocks; nothing once `full`."""
        if not self.full:
            self._columns.add(at_ns, lens, len(self._columns) + 1, session, blocks.tolist())
            self.full = len(self._columns) > MOST_CALLS or self._columns.blocks > MOST_BLOCKS

    def make(self) -> LoadColumns | None:
        """Make the columns sorted by time and forget the calls; None of over 2²⁰ calls or 2²³ blocks."""
        columns, self._columns = self._columns, TraceColumns()
        if self.full:
            return None
        return make_load_columns(sort_by_time(columns.make(self._name, "", BLOCK, sessions=columns.sessions)))


def list_log_calls(spool: CallSpool) -> LearnedColumns | None:
    """Collect the columns of a log's calls; None of more than 2²⁰ calls or 2²³ blocks."""
    if spool.calls > MOST_CALLS or spool.blocks > MOST_BLOCKS:
        return None
    columns = LearnedColumns("log")
    for number, session in enumerate(spool.list_sessions()):
        for call in session:
            lens = call.input_len, call.output_len
            columns.add(number, call.begin_ns, lens, spool.read_blocks(call))
    return columns
