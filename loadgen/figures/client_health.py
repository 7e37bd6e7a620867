"""Health: what the client itself may have done to a run's figures, from its Records alone."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Float64, Int64, sum_exactly
from loadgen.base.clock import MS_NS
from loadgen.figures.distribution import Distribution
from loadgen.figures.percentiles import percentiles as ranked
from loadgen.figures.record import UNKNOWN, MessageBlock, Records


class ClientHealth(msgspec.Struct, frozen=True):
    """What the client itself may have done to the figures, over every request."""

    messages: int  # token messages of every request
    shared_reads: int  # of these, how many were coalesced with an earlier one, whose timestamp they share
    reads: int  # reads from the sockets
    unstamped_reads: int  # reads timed by the client's own clock, without a kernel timestamp
    lag_mean_ms: float  # read lag, kernel timestamp → bytes in the client, per timestamped read; 0: none
    lag_max_ms: float  # the worst of these
    shared_lag_ms: float  # mean lag of the reads that messages shared, by message; 0 without any
    answers: int  # requests that brought a token
    with_first: int  # messages coalesced with the first of their answer, whose timestamp is that much late
    p99_gap_excess: float  # share of P99 gap that is too much if messages of a read came evenly, 0 to 1
    connects: int  # requests that had to open their connection first
    resends: int  # requests sent again because the server had closed the idle connection

    @property
    def shared_share(self) -> float:
        """The share of token messages that were coalesced with an earlier one in a read, 0 to 1."""
        return self.shared_reads / self.messages if self.messages else 0.0

    @classmethod
    def of(cls, records: Records, first_ns: Int64) -> ClientHealth:
        """The health over these records; `first_ns` is PerRequest's, int64[requests]."""
        stamped = int((records.reads - records.unstamped_reads).sum())
        shared = int(records.shared_reads.sum())
        answers = int(np.count_nonzero(first_ns != UNKNOWN))
        like_first = 0
        for block in records.blocks():
            begins = first_ns[block.first : block.last].repeat(np.diff(block.start))
            like_first += int(np.count_nonzero(block.arrival_ns == begins))
        return cls(
            messages=len(records.arrival_ns),
            shared_reads=shared,
            reads=int(records.reads.sum()),
            unstamped_reads=int(records.unstamped_reads.sum()),
            lag_mean_ms=sum_exactly(records.lag_sum_ns) / stamped / MS_NS if stamped else 0.0,
            lag_max_ms=int(records.lag_max_ns.max(initial=0)) / MS_NS,
            # A run of an earlier version has no such column: all UNKNOWN.
            shared_lag_ms=sum_exactly(records.shared_lag_ns.clip(0)) / max(shared, 1) / MS_NS,
            answers=answers,
            with_first=like_first - answers,
            p99_gap_excess=_p99_gap_excess(records) if shared else 0.0,
            connects=int((records.connect_ns > 0).sum()),
            resends=int(records.resends.sum()),
        )


def _p99_gap_excess(records: Records) -> float:
    """The share by which P99 of the gaps is too long, 0 to 1, if the messages of one read came evenly.

    That is over the wait before the read. What came with an answer's first message has no such wait, and is
    left out.
    """
    if records.in_one_block:
        gap_ns, apart_ns = _waits(next(iter(records.blocks())))
        if not len(gap_ns):
            return 0.0
        (measured_ns,), (true_ns,) = ranked(gap_ns, (99,)), ranked(apart_ns, (99,))
    else:
        measured_ns, true_ns = (_p99_of_waits(records, which) for which in range(2))
    return 1 - true_ns / measured_ns if measured_ns else 0.0


def _p99_of_waits(records: Records, which: int) -> float:
    waits = Distribution.of_pieces(
        lambda: ((_waits(block)[which], None) for block in records.blocks()), (99,)
    )
    return waits.percentiles_ms[99] if waits.n else 0.0


def _waits(block: MessageBlock) -> tuple[Int64, Float64]:
    """The gaps by timestamp, and as they were if the messages of one read had come evenly; in any order."""
    counts = np.diff(block.start)
    begins = np.zeros(len(block.arrival_ns), np.bool_)
    begins[block.start[:-1][counts > 0]] = True
    wait_ns = np.diff(block.arrival_ns, prepend=0)
    reads = np.flatnonzero(begins | (wait_ns != 0))  # the first message of each
    later, messages = ~begins[reads], np.diff(reads, append=len(begins))
    wait_ns, messages = wait_ns[reads[later]], messages[later]
    apart_ns = np.repeat(wait_ns / messages, messages)
    gap_ns = np.zeros(len(apart_ns), np.int64)
    gap_ns[: len(wait_ns)] = wait_ns  # and nothing between messages of one read
    return gap_ns, apart_ns
