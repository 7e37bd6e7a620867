"""Path delays: when each byte was first sent, by TSval and sequence, and what held it up on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from loadgen.base.clock import MS_NS
from loadgen.records.path_delays import PathDelays
from loadgen.records.record import NO_CAUSE, PATH, REORDERING, RETRANSMISSION
from loadgen.transport.capture import Capture, SegmentTimes

TABLES = read_tables("path_delays")

CLOCK = 1 << 32
WALL_NS = 1_700_000_000_000_000_000
BYTES = 10  # of a piece
Way = tuple[float, float]  # of a piece's first copy to come: TSval (ms), arrival (ms)


def captured(
    ways: Sequence[Way],
    least: Sequence[float] | None = None,
    begin: int = 500,
    connection: int = 7,
    ticks: float = 1,
    at_ms: float = 0,
) -> tuple[Capture, list[int]]:
    """A capture of pieces in order of their bytes, and when each became readable (ns)."""
    sent = [(begin + math.floor(ms * ticks)) % CLOCK for ms, _ in ways]
    earliest = sent if least is None else [(begin + math.floor(ms * ticks)) % CLOCK for ms in least]
    came_ns = [round((at_ms + came) * MS_NS) for _, came in ways]
    order = np.argsort(np.argsort(came_ns, kind="stable"), kind="stable")
    readable_ns = np.maximum.accumulate(came_ns).tolist()
    times = SegmentTimes(connection, np.array(sent, np.uint32).tobytes())
    if least is not None or readable_ns != came_ns:
        times.least = np.array(earliest, np.uint32).tobytes()
        times.came_ns = (np.array(came_ns) + WALL_NS).tobytes()
        times.order = order.astype(np.int64).tobytes()
        times.ends = (np.arange(1, len(ways) + 1) * BYTES).tobytes()
    lengths = np.full(len(ways), BYTES).tobytes()
    return (
        Capture(0, 0, 0, 1, 2, read_lengths=lengths, realtime_offset_ns=WALL_NS, segments=True, times=times),
        readable_ns,
    )


def measured(
    paths: PathDelays, capture: Capture, readable_ns: list[int], shares: Sequence[float] = ()
) -> list[tuple[float, int]] | None:
    """Delay (ms) and cause of a message at the end of each piece, or after these shares of the pieces."""
    found = paths.measure(capture, np.array(readable_ns))
    if found is None:
        return None
    ends = np.arange(1, len(readable_ns) + 1) * BYTES
    at = np.arange(len(readable_ns))
    places = ends - np.array([round((1 - share) * BYTES) for share in shares or [1] * len(ends)])
    delay_us, cause = found.pick(at, places, ends)
    return [(us / 1000, each) for us, each in zip(delay_us.tolist(), cause.tolist(), strict=True)]


NONE = (0.0, NO_CAUSE)
CAUSES = {"none": NO_CAUSE, "path": PATH, "reordering": REORDERING, "retransmission": RETRANSMISSION}


# Of an overtaken piece: one that comes as it would waits for another, and is held up by what held up that.
@loop_over("begin", [500, 0, CLOCK - 1, CLOCK - 30, CLOCK // 2 - 20])
@loop_over_named(("ways", "least", "found"), TABLES["ways"])
def test_a_piece_was_late_by_what_its_clock_says(
    ways: list[Way], least: list[float] | None, found: list[tuple[float, str]], begin: int
) -> None:
    delays = [(ms, CAUSES[cause]) for ms, cause in found]
    assert measured(PathDelays(), *captured(ways, least, begin)) == delays


def test_what_was_sent_again_together_was_first_sent_one_by_one() -> None:
    """A segment of three tokens, of which the first two end at 40 % and 70 %: sent at 10 + 40 × share ms."""
    ways = [(10.0, 15.0), (110.0, 115.0), (50.0, 55.0)]
    capture, readable_ns = captured(ways)
    delays = [
        (measured(PathDelays(), capture, readable_ns, [1, share, 1]) or [])[1] for share in (0.4, 0.7, 1)
    ]
    assert [ms for ms, _ in delays] == pytest.approx([99.5 - 20 * share for share in (0.4, 0.7, 1)])
    assert {cause for _, cause in delays} == {RETRANSMISSION}


def test_a_connection_s_quickest_counts_in_its_next_responses() -> None:
    paths = PathDelays()
    assert measured(paths, *captured([(0, 5), (20, 25)])) == [NONE] * 2
    later = captured([(0, 25), (20, 45)], begin=600, at_ms=100)
    assert measured(paths, *later) == [(19.5, PATH)] * 2
    another = captured([(0, 25), (20, 45)], begin=600, connection=8, at_ms=100)
    assert measured(paths, *another) == [NONE] * 2


def test_clocks_that_drift_apart_delay_nothing() -> None:
    """By 50 ms in 1000 s."""
    ways = [(at, 5 + at * 1.00005) for at in range(0, 1_000_000, 100)]
    found = measured(PathDelays(), *captured(ways))
    assert found is not None
    assert max(delay for delay, _ in found) <= 1.5


@pytest.mark.parametrize(
    ("ticks", "known"), [(1, True), (1000, True), (0.1, False), (100, False), (0, False)]
)
def test_a_clock_of_another_unit_says_nothing(ticks: float, known: bool) -> None:
    ways = [(20.0 * i, 20.0 * i + (15 if i == 4 else 5)) for i in range(10)]
    found = measured(PathDelays(), *captured(ways, ticks=ticks))
    assert (found is not None) == known
    if found is not None:
        delay_ms, cause = found[4]
        assert delay_ms == pytest.approx(10, abs=0.51)
        assert cause == PATH
        assert found[:4] + found[5:] == [NONE] * 9


def test_without_segments_or_across_a_step_of_the_clock_nothing_is_known() -> None:
    capture, readable_ns = captured([(0, 5), (20, 35)])
    capture.earlier_offsets_ns = (1,)
    assert measured(PathDelays(), capture, readable_ns) is None
    capture.earlier_offsets_ns, capture.times = (), None
    assert measured(PathDelays(), capture, readable_ns) is None
