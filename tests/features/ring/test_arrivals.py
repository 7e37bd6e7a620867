"""Arrivals: what the timestamps of a response's segments say of the request's own way."""

from __future__ import annotations

import numpy as np

from builders.loops import loop_over
from loadgen.base.clock import MS_NS
from loadgen.features.ring.ring_transport import Arrivals
from loadgen.features.ring.segments import SEGMENT

CLOCK = 1 << 32
SENT_NS, END_NS = 5_000_400_000, 9_000_000_000
UNKNOWN = -1


def arrivals(echoed_ms: int, ahead_ms: int, kept: int = 52, sent: tuple[int, ...] = (7, 8)) -> Arrivals:
    """Two segments, the first of which echoes our clock at an instant; that clock is so far ahead."""
    rows = np.zeros(len(sent), SEGMENT)
    rows["echoed"], rows["kept"], rows["sent"] = (echoed_ms + ahead_ms) % CLOCK, kept, sent
    return Arrivals(np.arange(1, len(sent) + 1), rows, timed=True)


@loop_over("ahead_ms", [0, 12345, CLOCK - 5001, CLOCK - 5000, CLOCK - 1, -4_000])
@loop_over(
    ("echoed_ms", "delay_ms"),
    [
        (5000, 0),
        (5001, 0),
        (4999, 0),  # the kernel clears the clock's last bit
        (5002, 1.5),
        (5300, 299.5),
        (4998, UNKNOWN),  # before it was sent: of another clock
        (9000, 3999.5),
        (9010, UNKNOWN),  # after the answer's end
    ],
)
def test_a_request_was_late_by_what_is_echoed(ahead_ms: int, echoed_ms: int, delay_ms: float) -> None:
    found_ns = arrivals(echoed_ms, ahead_ms).measure_request_delay_ns(SENT_NS, END_NS, ahead_ms)
    assert found_ns == (UNKNOWN if delay_ms == UNKNOWN else delay_ms * MS_NS)


def test_a_clock_that_cannot_be_read_says_nothing() -> None:
    late = 5300
    assert arrivals(late, 0).measure_request_delay_ns(SENT_NS, END_NS, None) == UNKNOWN
    odd = arrivals(late, 0, kept=51)  # without the last byte
    assert odd.measure_request_delay_ns(SENT_NS, END_NS, 0) == UNKNOWN
    again = arrivals(late, 0, sent=(9, 8))  # the first one was sent again, after the second
    assert again.measure_request_delay_ns(SENT_NS, END_NS, 0) == UNKNOWN
    alone = arrivals(late, 0, sent=(9,))
    assert alone.measure_request_delay_ns(SENT_NS, END_NS, 0) == 299.5 * MS_NS
