"""Segment times: what the TCP timestamps of a response's segments say of when its bytes were sent."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Int64


class SegmentTimes(msgspec.Struct, array_like=True):
    """The server's clock at the sending of each piece of a response, in the order of its bytes.

    A piece is what one segment brought first. Usually they came in order, each once, and are the capture's
    reads. Else all fields are filled, and the reads are pieces too, but under TLS, where `of_reads` says
    which piece ends each read. TSval is 32 bits of the server's clock, counted in ms by Linux.
    """

    connection: int  # the same for all responses over a connection of a slot
    sent: bytes  # uint32[pieces]: TSval of the copy that came first
    least: bytes = b""  # uint32[pieces]: the earliest TSval of all its copies
    came_ns: bytes = b""  # int64[pieces]: when it came, CLOCK_REALTIME
    order: bytes = b""  # int64[pieces]: the greater, the later it came
    ends: bytes = b""  # int64[pieces]: bytes up to its end
    of_reads: bytes = b""  # int64[reads]

    def read_counts(self, name: str) -> Int64:
        """Return a field of int64."""
        return np.frombuffer(getattr(self, name), np.int64)

    def read_clock(self, name: str) -> Int64:
        """Return `sent` or `least` since the clock of the first piece's `sent`, without its wraps, int64."""
        clock = np.frombuffer(getattr(self, name), np.uint32)
        since: Int64 = (clock - np.frombuffer(self.sent, np.uint32, 1)).view(np.int32).astype(np.int64)
        return since
