"""Load columns: the requests of a trace, a log or a plan as columns, and the shape of their sessions."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.plan.planned_requests import LengthFacts

NO_DELAY = -1


class LoadColumns(msgspec.Struct, frozen=True):
    """The requests of one workload in the order of sending, as columns of int64[requests].

    The blocks of request i are `blocks[starts[i] : starts[i + 1]]`, equal where all up to their end is equal
    or where the block alone is; tokens that no block covers are shared with no other request.
    """

    name: str  # of the file or the workload
    input_lens: Int64  # in tokens, UNKNOWN_LEN where only the server knows them
    output_lens: Int64
    times_ns: Int64 | None = None  # after its begin, never decreasing; None: as answers come
    blocks: NDArray[Any] | None = None  # int32 or int64; None: what is shared is unknown
    starts: Int64 | None = None  # int64[requests + 1], with `blocks`
    block_tokens: int = 0  # tokens of a block, with `blocks`
    sessions: Int64 | None = None  # any number of each session; None: there are none
    delays_ns: Int64 | None = None  # the pause before each request, NO_DELAY where there is none
    depths: Int64 | None = None  # 0: a session's main line, 1: its sub-agents, 2: theirs
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.input_lens)

    def find_gaps_ns(self) -> Int64:
        """Return the time between successive requests, int64[requests − 1]; [] without times."""
        return np.diff(self.times_ns) if self.times_ns is not None else np.zeros(0, np.int64)


class SessionShape(msgspec.Struct, frozen=True):
    """The sessions of a workload."""

    sessions: int
    requests: LengthFacts  # of each session: requests, not tokens
    delays_s: tuple[float, ...]  # P10, P50, P90 of the pauses before requests; () where they are unknown
    delay_sum_s: float
    by_depth: tuple[int, ...]  # requests of the main lines, of their sub-agents, of theirs; () if unknown


def count_requests(sessions: Int64) -> Int64:
    """Return the number of requests of each session, int64[sessions], by ascending session numbers."""
    counts: Int64 = np.unique(sessions, return_counts=True)[1]
    return counts


def find_delays_ns(load: LoadColumns) -> Int64:
    """Return the known pauses before requests (ns), in their order; [] where there are none."""
    return np.zeros(0, np.int64) if load.delays_ns is None else load.delays_ns[load.delays_ns >= 0]


def measure_sessions(load: LoadColumns) -> SessionShape | None:
    """Measure the sessions of a workload; None where it has none."""
    if load.sessions is None or not len(load):
        return None
    requests = LengthFacts.measure(counts := count_requests(load.sessions))
    assert requests is not None
    delays_s = find_delays_ns(load) / SECOND_NS
    ranks = np.percentile(delays_s, (10, 50, 90), method="inverted_cdf") if len(delays_s) else np.zeros(0)
    return SessionShape(
        len(counts),
        requests,
        tuple(ranks.tolist()),
        float(delays_s.sum()),
        () if load.depths is None else tuple(np.bincount(load.depths).tolist()),
    )
