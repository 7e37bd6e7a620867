"""Capture: the bytes of one response, not yet decoded, and when each read arrived.

The transport takes the timestamps (`EpollTransport._read_ready`); here the kernel's become CLOCK_MONOTONIC.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.transport.failure import Failure

NO_STAMP = bytes(16)
_TOLERANCE_NS = 100_000  # of the offset's own measurement
_IMPOSSIBLE_NS = 1 << 61  # away: more than any other
A_READ = 3  # entries of a read in what `Capture.fill` takes
KEPT_READS = 16  # of an answer that was too long: enough to see what it was


def pack_int64s(numbers: Iterable[int]) -> bytes:
    """Pack integers as int64 bytes, as a capture stores them."""
    return np.fromiter(numbers, np.int64).tobytes()


def join_reads(reads: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Join reads into a capture's `raw` (all bytes) and `read_lengths` (packed int64 each)."""
    return b"".join(reads), pack_int64s(map(len, reads))


class Capture(msgspec.Struct, tag="capture", array_like=True):
    """The raw response to one request, with its reads' timestamps; times are CLOCK_MONOTONIC ns unless named.

    `raw` is all that was read. For each read, `read_lengths` holds an int64, how much of that it was,
    `seen_ns` an int64 user-space timestamp and `kernel` the kernel's timespec (two int64, CLOCK_REALTIME;
    zero where it gave none).
    """

    index: int  # position in the plan
    slot: int  # which connection slot carried it
    intended_ns: int  # when it was due: the plan (open loop), the slot's previous end (closed loop)
    sent_ns: int  # right before the first byte went to the kernel; 0: never sent
    end_ns: int  # when the response was over, user space
    connect_ns: int = 0  # TCP and TLS set-up paid for this request; 0: the connection was open
    resends: int = 0  # the server had closed the idle connection: sent again, `sent_ns` is the first time
    framed: bool = True  # the bytes are a whole HTTP/1.1 response; else the body alone, status apart
    status: int = 0  # HTTP status where the bytes do not hold it
    failure: Failure | None = None  # what the transport knows; decoding may find more
    raw: bytes = b""
    read_lengths: bytes = b""
    seen_ns: bytes = b""
    kernel: bytes = b""
    realtime_offset_ns: int = 0  # CLOCK_REALTIME − CLOCK_MONOTONIC as last measured
    earlier_offsets_ns: tuple[int, ...] = ()  # what it was before, where the clock was stepped meanwhile
    retry_after: str = ""  # the header of that name where the bytes do not hold it
    out_of_order: int = -1  # segments of the response that came before an earlier one; -1: not known
    retransmitted: int = -1  # segments of the request that were sent again; -1: not known
    segments: bool = False  # the "reads" are TCP segments: each has its own timestamp, whenever it was read

    def fill(self, got: Sequence[Any]) -> None:
        """Store reads given as a flat list of bytes, kernel timespec and client's time (ns) of each."""
        self.raw, self.read_lengths = join_reads(got[::A_READ])
        self.kernel, self.seen_ns = b"".join(got[1::A_READ]), pack_int64s(got[2::A_READ])

    def read_ends(self) -> Int64:
        """Return how many bytes had come after each read, int64[reads]."""
        ends: Int64 = np.add.accumulate(np.frombuffer(self.read_lengths, np.int64))
        return ends

    def user_ns(self) -> Int64:
        """Return when the client had received each read (user space), int64[reads]."""
        return np.frombuffer(self.seen_ns, np.int64)

    def kernel_ns(self) -> Int64:
        """Return when the kernel received the last segment of each read, int64[reads]; 0 where unknown."""
        timespec = np.frombuffer(self.kernel, np.int64)
        wall_ns = timespec[::2] * 1_000_000_000 + timespec[1::2]
        found_ns = wall_ns - self.realtime_offset_ns
        if self.earlier_offsets_ns:
            found_ns = self._find_offsets(wall_ns)
        if np.count_nonzero(wall_ns) < len(wall_ns):
            found_ns[wall_ns == 0] = 0
        return found_ns

    def _find_offsets(self, wall_ns: Int64) -> Int64:
        """Convert wall times to CLOCK_MONOTONIC, each by the clock offset then in force."""
        offsets_ns = np.array((self.realtime_offset_ns, *self.earlier_offsets_ns))
        by_offset_ns = wall_ns - offsets_ns[:, None]
        lag_ns = self.user_ns() - by_offset_ns
        away_ns = np.where(lag_ns >= -_TOLERANCE_NS, np.abs(lag_ns), _IMPOSSIBLE_NS - lag_ns)
        nearest_ns: Int64 = by_offset_ns[away_ns.argmin(0), np.arange(len(wall_ns))]
        return nearest_ns
