"""Path delays: how much longer than the quickest each piece of a response was on its way, and why.

A piece was sent, for the first time, no later than any byte after it: so it was sent at the least TSval from
it on. A piece whose own TSval is later was sent again; when its lost copy was sent lies between its
neighbours, and is taken in proportion to the bytes. How long the way takes is not known, only how much longer
it was than that of the connection's quickest segment at about that time.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Float64, Int64
from loadgen.base.clock import MS_NS, SECOND_NS, US_NS
from loadgen.records.record import MOST_COUNT, NO_CAUSE, PATH, REORDERING, RETRANSMISSION
from loadgen.transport.capture import Capture

# The quickest of so long counts, and of as long before and after: two clocks drift apart, by 1 ms in 10 s at
# the most.
_NEAR_NS = 10 * SECOND_NS
_FAR_NS = 1 << 62  # more than any difference
_GRAIN_NS = MS_NS
_TELLING_MS, _FEW_TICKS = 100, 1000  # from which on a clock's unit shows; fewer are not of microseconds
_UNITS = ((0.5, 2.0, MS_NS), (500.0, 2000.0, US_NS))  # ticks per ms, from and up to; what a tick is then
_HALF = 1 << 31


class ReadDelays(msgspec.Struct, frozen=True):
    """The delay of each read's last byte, its cause, and with which others it became readable."""

    delay_ns: Int64  # empty where none is felt
    # None if all came in order: the path's cause, then with the last byte, then each by itself.
    cause: NDArray[np.int8] | None = None
    sooner_ns: Int64 | None = None  # how much sooner than the last byte the first one was sent
    together: Int64 | None = None  # equal for reads that became readable at once

    def pick(self, at: Int64, ends: Int64, read_ends: Int64) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
        """Return the delay (µs) and cause of messages, which end in reads `at` and at bytes `ends`.

        `read_ends` is how many bytes there were after each read. A delay below the grain is none, and has no
        cause.
        """
        if not len(self.delay_ns):
            return np.zeros(len(at), np.int32), np.zeros(len(at), np.int8)
        delay_ns = self.delay_ns[at]
        if self.sooner_ns is not None:  # sent again together, and first one by one
            left = (read_ends[at] - ends) / np.diff(read_ends, prepend=0)[at]
            delay_ns += (self.sooner_ns[at] * left).astype(np.int64)
        felt = delay_ns >= _GRAIN_NS
        delay_us = np.where(felt, np.minimum(delay_ns // US_NS, MOST_COUNT), 0)
        cause = PATH if self.cause is None else self.cause[at]
        return delay_us.astype(np.int32), np.where(felt, cause, NO_CAUSE).astype(np.int8)


_NONE_FELT = ReadDelays(np.zeros(0, np.int64))


def _keep_felt(delay_ns: Int64) -> ReadDelays:
    """Make the delays of reads whose segments came in order; nearly always none is felt."""
    # Indexing by argmax is the quickest way to the greatest.
    return ReadDelays(delay_ns) if int(delay_ns[delay_ns.argmax()]) >= _GRAIN_NS else _NONE_FELT


class _Clock(msgspec.Struct):
    """The server's clock, as the segments of a slot's connection show it."""

    connection: int
    ticks: int  # TSval of the first segment
    began_ns: int  # when that came
    # Number of _NEAR_NS → least difference between arrival and clock, both since the first segment.
    least_ns: dict[int, int] = {}

    def measure_plain(self, came_ns: Int64, sent: Int64) -> ReadDelays | None:
        """Find the delays of segments that came in order, and were sent so, and learn from them.

        None where it is not as plain: a segment was sent again, the clock wrapped, or they took long.
        """
        first_ns, last_ns = int(came_ns[0]) - self.began_ns, int(came_ns[-1]) - self.began_ns
        number = first_ns // _NEAR_NS
        if last_ns // _NEAR_NS != number or np.count_nonzero(sent[1:] < sent[:-1]):
            return None
        first, last = int(sent[0]), int(sent[-1])
        since = self.count_since(first)
        tick_ns = _find_tick_ns(since + last - first, last_ns)
        if not tick_ns:
            return None
        behind_ns = came_ns - sent * tick_ns
        offset_ns = self.began_ns + (since - first) * tick_ns
        least_ns = self._learn_one(number, int(behind_ns[behind_ns.argmin()]) - offset_ns)
        return _keep_felt(behind_ns - (offset_ns + least_ns + tick_ns // 2))

    def count_since(self, ticks: int) -> int:
        """Count the ticks since the first segment; the clock has 32 bits."""
        return (ticks - self.ticks + _HALF) % (2 * _HALF) - _HALF

    def learn(self, came_ns: Int64, behind_ns: Int64) -> Int64 | int:
        """Learn how far behind the clock segments came (ns); return the least near each, int64[segments].

        Where all came in one stretch of `_NEAR_NS` it is one int.
        """
        first = (int(came_ns.min()) - self.began_ns) // _NEAR_NS
        last = (int(came_ns.max()) - self.began_ns) // _NEAR_NS
        if first == last:
            return self._learn_one(first, int(behind_ns.min()))
        number = (came_ns - self.began_ns) // _NEAR_NS
        for each in range(first, last + 1):
            if len(of_it := behind_ns[number == each]):
                self._learn_one(each, int(of_it.min()))
        near = np.array([self._find_near(each) for each in range(first, last + 1)])
        self.least_ns = {each: ns for each, ns in self.least_ns.items() if each >= last - 1}
        found: Int64 = near[number - first]
        return found

    def _learn_one(self, number: int, ns: int) -> int:
        """Note a difference (ns) in stretch `number`; return the least of it and its two neighbours."""
        if ns < self.least_ns.get(number, _FAR_NS):
            self.least_ns[number] = ns
        return self._find_near(number)

    def _find_near(self, number: int) -> int:
        get = self.least_ns.get
        return min(get(number - 1, _FAR_NS), get(number, _FAR_NS), get(number + 1, _FAR_NS))


class PathDelays(msgspec.Struct, eq=False):
    """Finds the delays of a run's responses; keeps the clock of each slot's connection."""

    clocks: dict[int, _Clock] = {}

    def measure(self, capture: Capture, arrival_ns: Int64) -> ReadDelays | None:
        """Find the delays of a response's reads from when each arrived, int64[reads]; None if unknown."""
        times = capture.times
        if times is None or not len(arrival_ns) or capture.earlier_offsets_ns:
            return None
        clocks = np.frombuffer(times.sent, np.uint32).astype(np.int64)
        began, came_ns = int(clocks[0]), arrival_ns
        if times.order:
            came_ns = times.read_counts("came_ns") - capture.realtime_offset_ns
        clock = self.clocks.get(capture.slot)
        if clock is None or clock.connection != times.connection:
            clock = self.clocks[capture.slot] = _Clock(times.connection, began, int(came_ns[0]))
        if not times.order and (plain := clock.measure_plain(arrival_ns, clocks)) is not None:
            return plain
        sent, since = times.read_clock("sent"), clock.count_since(began)
        tick_ns = _find_tick_ns(int(sent.max()) + since, int(came_ns.max()) - clock.began_ns)
        if not tick_ns:
            return None
        behind_ns = came_ns - sent * tick_ns - (clock.began_ns + since * tick_ns)
        # A timestamp is up to a tick early, and that of the quickest hardly is: half a tick on the mean.
        quickest_ns = clock.learn(came_ns, behind_ns) + tick_ns // 2
        if not (times.order or np.count_nonzero(sent[1:] < sent[:-1])):
            return _keep_felt(behind_ns - quickest_ns)
        each = np.arange(len(sent))
        if times.order:
            order, ends = times.read_counts("order"), times.read_counts("ends")
            found = _find_first_sent(sent, times.read_clock("least"), ends, order)
        else:
            order, found = each, _find_first_sent(sent, sent, capture.read_ends(), each)
        ticks, sooner, cause = found
        of_reads = times.read_counts("of_reads") if times.of_reads else each
        passed_ns = (ticks * tick_ns).astype(np.int64) + quickest_ns + clock.began_ns + since * tick_ns
        return ReadDelays(
            arrival_ns - passed_ns[of_reads],
            cause[of_reads],
            (sooner * tick_ns).astype(np.int64)[of_reads],
            np.maximum.accumulate(order)[of_reads],
        )


def _find_tick_ns(ticks: int, passed_ns: int) -> int:
    """Find how long a clock's tick is (ns) by how many passed in a time: 1 ms, 1 µs, or 0 for neither.

    In less than 100 ms fewer than 1000 ticks are taken for 1 ms each, and more cannot be distinguished: 0.
    """
    passed_ms = passed_ns / MS_NS
    if passed_ms < _TELLING_MS:
        return MS_NS if ticks < _FEW_TICKS else 0
    for low, high, tick_ns in _UNITS:
        if low <= ticks / passed_ms <= high:
            return tick_ns
    return 0


def _find_first_sent(
    sent: Int64, least: Int64, ends: Int64, order: Int64
) -> tuple[Float64, Float64, NDArray[np.int8]]:
    """Find when each piece's last byte was first sent, how much sooner its first, and what held it up.

    `sent` is the clock (ticks) of the copy that came first, `least` the earliest of all its copies; `ends`
    are bytes, `order` is in which order pieces came. A piece that waited for one before it was held up by
    what held up that one.
    """
    bound = np.minimum.accumulate(least[::-1])[::-1]  # no byte is sent later than one after it
    ticks, sooner = bound.astype(np.float64), np.zeros(len(sent))
    earliest_after = np.append(np.minimum.accumulate(order[:0:-1])[::-1], order.max() + 1)
    # If its own first copy came too, later, it was not lost: something overtook it.
    lost, overtaken = least > bound, (order > earliest_after) | (least < sent)
    cause = np.where(lost, RETRANSMISSION, np.where(overtaken, REORDERING, PATH)).astype(np.int8)
    if lost.any() and not lost.all():
        known = ends[~lost], ticks[~lost]
        begins = np.append(0, ends[:-1])[lost]
        between = np.minimum(np.interp(ends[lost], *known), ticks[lost])
        sooner[lost] = np.maximum(between - np.interp(begins, *known), 0)
        ticks[lost] = between
    waited_for = np.maximum.accumulate(
        np.where(order == np.maximum.accumulate(order), np.arange(len(order)), 0)
    )
    return ticks, sooner, cause[waited_for]
