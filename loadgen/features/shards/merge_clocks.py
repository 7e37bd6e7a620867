"""Merge clocks: how the times of a shard are moved to the clock of the first one, and how sure that is.

No latency needs it: each is a difference of two times of one clock. What does are the start, the edges of
windows, the peaks, and all that is divided by the duration of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadgen.verdict.run_facts import ClockReading, ShardFacts

_DRIFT = 1e-4  # of the time, where no second reading shows it: quartz is off by less
UNKNOWN_ERROR = -1


class ClockShift(msgspec.Struct, frozen=True):
    """What is added to a shard's times; `error_ns` is by how much that may be off at most, -1: unknown."""

    offset_ns: int = 0
    error_ns: int = 0
    reference: str = ""  # "": it is the same clock


class ClockSpan(msgspec.Struct, frozen=True):
    """A shard's clock, and the first and the last of its times; both 0 where it has none."""

    shard: ShardFacts
    begin_ns: int = 0
    end_ns: int = 0


def shifts(spans: Sequence[ClockSpan]) -> list[ClockShift]:
    """Of each shard, onto the clock of the first one that sent anything."""
    first = next((span for span in spans if span.begin_ns), spans[0])
    return [_shift(first, span) for span in spans]


def _shift(first: ClockSpan, span: ClockSpan) -> ClockShift:
    one, other = first.shard.before, span.shard.before
    if one.boot and one.boot == other.boot:
        return ClockShift()
    if one.reference != other.reference:  # nothing says how they stand to each other: let both begin at once
        both = f"{one.reference} and {other.reference}"
        return ClockShift(first.begin_ns - span.begin_ns, UNKNOWN_ERROR, both)
    (to_ns, to_error_ns), (from_ns, from_error_ns) = _reading(first), _reading(span)
    known = UNKNOWN_ERROR not in (to_error_ns, from_error_ns)
    error_ns = to_error_ns + from_error_ns if known else UNKNOWN_ERROR
    return ClockShift(from_ns - to_ns, error_ns, other.reference)


def _reading(span: ClockSpan) -> tuple[int, int]:
    """The reference − this clock in the middle of the run, and by how much it may be off; -1: unknown."""
    before, after = span.shard.before, span.shard.after
    if after is None or after.reference != before.reference:
        drift_ns = round(_DRIFT * (span.end_ns - span.begin_ns))
        return before.offset_ns, _error(before, before, drift_ns)
    apart_ns = abs(after.offset_ns - before.offset_ns)
    return middle_ns(before, after), _error(before, after, -(-apart_ns // 2))


def middle_ns(before: ClockReading, after: ClockReading | None) -> int:
    """The offset in the middle of a run, by both readings, or by the one there is."""
    return before.offset_ns if after is None else (before.offset_ns + after.offset_ns) // 2


def _error(before: ClockReading, after: ClockReading, more_ns: int) -> int:
    errors = before.error_ns, after.error_ns
    return UNKNOWN_ERROR if min(errors) < 0 else max(errors) + more_ns
