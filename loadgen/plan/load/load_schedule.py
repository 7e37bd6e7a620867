"""Load schedule: stages of a rate or of a concurrency, one after another, as `--schedule` writes them."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from loadgen.base.arrays import Float64, Int64
from loadgen.base.bounds import MOST_STREAMS, NUMBER, TIME, YEAR_S, seconds, shown
from loadgen.base.clock import SECOND_NS
from loadgen.plan.arrival import LEAST_RATE_PER_S
from loadgen.plan.load.concurrency_steps import ConcurrencySteps
from loadgen.plan.load.load_stage import LoadStage

_MOST_STAGES = 1000
_MOST_RATE_PER_S = 1e9
_LEAST_S = 0.001
_STAGE = re.compile(
    rf"(?:(?P<kind>rate|concurrency)\s+)?(?P<begin>{NUMBER})\s+"
    rf"(?:for\s+(?P<held>{TIME})|to\s+(?P<end>{NUMBER})\s+over\s+(?P<ramped>{TIME})"
    r"(?:\s+(?P<how>linearly|exponentially))?)",
    re.ASCII,
)
# A stage of which a number, a time or a word is wrong; its parts are those of a right one.
_LOOSE = re.compile(
    r"(?:(?:rate|concurrency)\s+)?(?P<begin>\S+)\s+(?:to\s+(?P<end>\S+)\s+)?(?P<verb>for|over)"
    r"(?:\s+(?P<span>\S+(?:\s+(?:ms|s|m|h)(?!\S))?))?(?:\s+(?P<how>.+))?"
)
_NUMBER_FORM = "is no number: write it as 2 or 0.5"
_PARTS = (  # of it, what each must be, and what to say where it is not
    ("begin", NUMBER, _NUMBER_FORM),
    ("end", NUMBER, _NUMBER_FORM),
    ("span", TIME, "is no time: write it as 60s; units ms, s, m, h"),
    ("how", "linearly|exponentially", "has no place there: write `linearly` or `exponentially`, or nothing"),
)
_FORM = "write `8 for 120s`, or `2 to 16 over 60s` with `exponentially` after it or not; units ms, s, m, h"
_KIND = re.compile(r"(?:rate|concurrency)\b")
_FIRST = "begin with `rate` or `concurrency`, as `rate 2 for 60s, 8 for 120s`"


class LoadSchedule(msgspec.Struct, frozen=True):
    """Stages of one kind, without a gap between them."""

    concurrency: bool  # the levels are requests in flight; else requests a second
    stages: tuple[LoadStage, ...]

    @property
    def duration_s(self) -> float:
        """How long all stages take."""
        return sum(stage.span_s for stage in self.stages)

    @property
    def most(self) -> float:
        """The highest level."""
        return max(max(stage.begin, stage.end) for stage in self.stages)

    @property
    def mean_rate_per_s(self) -> float:
        """Requests per second over all stages of a rate, on average."""
        return sum(stage.count for stage in self.stages) / self.duration_s

    def offsets_s(self, counts: Float64) -> Float64:
        """When the integral of the rate passes each of these counts, which ascend: the duration where never.

        A count that is reached as a pause begins is passed at its end: stages are [begin, end).
        """
        until = np.cumsum([stage.count for stage in self.stages])
        begins = np.cumsum([0.0, *(stage.span_s for stage in self.stages)])
        numbers = np.searchsorted(until, counts, "right")
        offsets_s = np.full(len(counts), self.duration_s)
        for number in np.unique(numbers[numbers < len(self.stages)]).tolist():
            of = numbers == number
            before = until[number - 1] if number else 0.0
            offsets_s[of] = begins[number] + self.stages[number].after_s(counts[of] - before)
        ended_s: Float64 = np.minimum(offsets_s, self.duration_s)
        return ended_s

    def steps(self) -> ConcurrencySteps:
        """The limits of a closed loop; a ramp goes through every whole number."""
        begin_s, from_s, limits = 0.0, [], []
        for stage in self.stages:
            times_s, levels = stage.steps()
            from_s.append(begin_s + times_s)
            limits.append(levels)
            begin_s += stage.span_s
        from_ns = np.rint(np.concatenate(from_s) * SECOND_NS).astype(np.int64)
        every: Int64 = np.concatenate(limits)
        changed = np.diff(every, prepend=0) != 0
        return ConcurrencySteps(from_ns[changed], every[changed])


def parse(text: str) -> LoadSchedule:
    """The schedule that a text writes; raises ValueError that names the stage, and what to write instead."""
    parts = [" ".join(part.split()) for part in text.split(",")]
    if len(parts) > _MOST_STAGES:
        raise ValueError(f"has {len(parts)} stages: {_MOST_STAGES} are the most")
    kind, stages = "", []
    for number, part in enumerate(parts, 1):
        match = _STAGE.fullmatch(part)
        where = f"stage {number} `{part[:60]}`"
        if match is None:
            raise ValueError(f"{where}: {_wrong(part) if kind or _KIND.match(part) else _FIRST}")
        named = match["kind"] or kind
        if not named:
            raise ValueError(f"{where}: {_FIRST}")
        if kind and named != kind:
            raise ValueError(f"{where}: one schedule has rates or concurrencies, not both: write two runs")
        kind = named
        stages.append(_stage(match, kind, where))
    made = LoadSchedule(kind == "concurrency", tuple(stages))
    if not made.most:
        raise ValueError("every rate is 0: give one stage a rate above 0")
    if made.duration_s > YEAR_S:
        raise ValueError("is longer than a year: shorten its stages")
    return made


def _wrong(part: str) -> str:
    """What is wrong with a stage that cannot be read: its first wrong part, or the form of all."""
    match = _LOOSE.fullmatch(part)
    if match is None:
        return _FORM
    for name, form, why in _PARTS:
        if match[name] is not None and re.fullmatch(form, match[name], re.ASCII) is None:
            return f"{shown(match[name])} {why}"
    return _FORM


def _stage(match: re.Match[str], kind: str, where: str) -> LoadStage:
    begin = float(match["begin"])
    end = begin if match["end"] is None else float(match["end"])
    span_s = seconds(match["held"] or match["ramped"])
    exponential = match["how"] == "exponentially"
    if span_s < _LEAST_S:
        raise ValueError(f"{where}: a stage takes 1ms at least")
    if exponential and not (begin and end):
        raise ValueError(f"{where}: an exponential ramp never is at 0: write 0.01, or leave the word out")
    for level in (begin, end):
        if kind == "concurrency" and not (level == int(level) and 1 <= level <= MOST_STREAMS):
            raise ValueError(f"{where}: a concurrency is a whole number from 1 to {MOST_STREAMS}")
        if kind == "rate" and level and not LEAST_RATE_PER_S <= level <= _MOST_RATE_PER_S:
            raise ValueError(f"{where}: a rate is 0 (a pause), or from 1e-9 to 1e9 requests per second")
    return LoadStage(span_s, begin, end, exponential)
