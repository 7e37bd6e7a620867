"""Arrivals: when each read of a capture arrived, by the kernel's clock where that can be true."""

from __future__ import annotations

import numpy as np

from loadgen.base.arrays import Int64
from loadgen.transport.capture import Capture

_WAITED_NS = 1_000_000  # a read lag that is seldom the client's own


def arrivals(capture: Capture) -> tuple[Int64, Int64, int, int]:
    """When each read arrived and the client's lag, int64[reads]; how many reads go by the client's clock.

    The last is how many of these have a kernel timestamp that cannot be true. Segments have no lag: each has
    its own timestamp, no matter what came by the time it was read.
    """
    user_ns, kernel_ns = capture.user_ns(), capture.kernel_ns()
    reads = len(user_ns)
    stamped = int(np.count_nonzero(kernel_ns))
    if not stamped:
        return user_ns, np.zeros(reads, np.int64), reads, 0
    if capture.out_of_order > 0 and not capture.segments:
        arrival_ns = _readable(user_ns, kernel_ns)
        return arrival_ns, user_ns - arrival_ns, reads - stamped, 0
    lag_ns = user_ns - kernel_ns
    usual = stamped == reads and kernel_ns[0] >= capture.sent_ns and np.minimum.reduce(lag_ns) >= 0
    # Counted, which of all ways to ask whether there is any is the quickest.
    if usual and not np.count_nonzero(kernel_ns[1:] < kernel_ns[:-1]):
        return kernel_ns, np.zeros(reads, np.int64) if capture.segments else lag_ns, 0, 0
    arrival_ns, impossible = _possible(user_ns, kernel_ns, capture.sent_ns)
    lag_ns = np.zeros(reads, np.int64) if capture.segments else user_ns - arrival_ns
    return arrival_ns, lag_ns, reads - stamped + impossible, impossible


def _readable(user_ns: Int64, kernel_ns: Int64) -> Int64:
    """When each read of an answer with segments out of order could be read at all, int64[reads].

    A read has the timestamp of its last segment, which may have waited for one before it that was lost or
    slower: then it was read much later than that, and right after it could be. So of reads with such a lag
    the client's own time counts.
    """
    lag_ns = user_ns - kernel_ns
    arrival_ns = np.where((lag_ns < 0) | (lag_ns > _WAITED_NS), user_ns, kernel_ns)
    in_order: Int64 = np.maximum.accumulate(arrival_ns)
    return in_order


def _possible(user_ns: Int64, kernel_ns: Int64, sent_ns: int) -> tuple[Int64, int]:
    """The kernel's timestamps where they can be true, else the client's own; how many cannot.

    A read arrived after the request was sent, not before the read ahead of it, and before the client
    read it. Where that does not hold, the kernel's clock was set in between.
    """
    arrival_ns, impossible, earliest_ns = user_ns.copy(), 0, sent_ns
    for i, (seen_ns, stamp_ns) in enumerate(zip(user_ns.tolist(), kernel_ns.tolist(), strict=True)):
        if stamp_ns == 0:
            continue
        if earliest_ns <= stamp_ns <= seen_ns:
            arrival_ns[i] = earliest_ns = stamp_ns
        else:
            impossible += 1
            earliest_ns = max(earliest_ns, seen_ns)
    return arrival_ns, impossible
