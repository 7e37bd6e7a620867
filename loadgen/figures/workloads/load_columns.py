"""Load columns: the requests of a trace, a log or a plan as columns, without what they say."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64

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
