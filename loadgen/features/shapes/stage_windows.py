"""Stage windows: the parts of a load that changes over time, as a report lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.clock import SECOND_NS
from loadgen.features.shapes.processes import process_of
from loadgen.plan.profile import Profile
from loadgen.plan.streams import RandomStream, arrival_rng
from loadgen.settings.load_schedule import LoadSchedule, RampEnds

_PARTS = 4  # in which a ramp is read


class StageWindow(msgspec.Struct, frozen=True):
    """A level, or a part of a ramp: in nanoseconds after the start, [begin, end)."""

    name: str  # as `rate 2`, or `rate 2 to 5.5`
    begin_ns: int
    end_ns: int


def planned_offsets_ns(profile: Profile, stream: RandomStream, requests: int) -> Int64 | None:
    """When each request of a load over time is due, as its plan has it; None: it has no such times."""
    if not profile.shaped or not profile.open_loop or profile.timed:
        return None
    process = process_of(profile, profile.num_prompts or requests)
    return process.offsets_ns(requests, arrival_rng(stream))


def windows(profile: Profile, offsets_ns: Int64 | None) -> list[StageWindow]:
    """The stages of a profile's schedule or ramp, a ramp in four parts; empty where it has neither."""
    if profile.stages is not None:
        return list(_of_schedule(profile.stages))
    if profile.ramp is not None and offsets_ns is not None and len(offsets_ns) >= _PARTS:
        return list(_of_ramp(profile.ramp, profile.num_prompts or len(offsets_ns), offsets_ns))
    return []


def _of_schedule(schedule: LoadSchedule) -> Iterator[StageWindow]:
    kind, begin_s = "concurrency" if schedule.concurrency else "rate", 0.0
    limits = schedule.steps() if schedule.concurrency else None
    for stage in schedule.stages:
        parts = 1 if stage.constant else _PARTS
        edges_s = np.linspace(0.0, stage.span_s, parts + 1).tolist()
        for from_s, to_s in pairwise(edges_s):
            begin_ns, end_ns = _ns(begin_s + from_s), _ns(begin_s + to_s)
            levels = [stage.level(from_s), stage.level(to_s)]
            if limits is not None:  # whole numbers, of which the last one ends with the part
                levels = [limits.limit(begin_ns), limits.limit(end_ns - 1)]
            yield StageWindow(_name(kind, levels), begin_ns, end_ns)
        begin_s += stage.span_s


def _of_ramp(ramp: RampEnds, count: int, offsets_ns: Int64) -> Iterator[StageWindow]:
    """By quarters of the requests, since the rate is one of them and not of the time."""
    n = len(offsets_ns)
    edges = [n * part // _PARTS for part in range(_PARTS + 1)]
    rates_per_s = ramp.rates_per_s(count, n)
    last_gap_ns = round(SECOND_NS / float(rates_per_s[-1]))  # each request has the gap that follows it
    ends_ns = [*offsets_ns[edges[1:-1]].tolist(), int(offsets_ns[-1]) + last_gap_ns]
    begin_ns = 0
    for (first, last), end_ns in zip(pairwise(edges), ends_ns, strict=True):
        name = _name("rate", [float(rates_per_s[first]), float(rates_per_s[last - 1])])
        yield StageWindow(name, begin_ns, end_ns)
        begin_ns = end_ns


def _name(kind: str, levels: Sequence[float]) -> str:
    shown = (f"{level:.0f}" if level >= 100 else f"{level:.3g}" for level in levels)
    return f"{kind} " + " to ".join(dict.fromkeys(shown))


def _ns(time_s: float) -> int:
    return round(time_s * SECOND_NS)
