"""Load schedule: a load over time, by stages, vLLM's ramp or bursts, as people write it."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from loadgen.base.arrays import Float64, Int64
from loadgen.base.clock import SECOND_NS
from loadgen.base.parsing import (
    LEAST_RATE_PER_S,
    MOST_RATE_PER_S,
    MOST_REQUESTS,
    MOST_STREAMS,
    NUMBER,
    TIME,
    YEAR_S,
    parse_seconds,
)
from loadgen.base.text import quote_value

_MOST_STAGES = 1000
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
_BURSTS = re.compile(r"([0-9]{1,10})\s+every\s+(\S+(?:\s*(?:ms|s|m|h))?)", re.ASCII)
_LEAST_PERIOD_S = 0.001


class LoadStage(msgspec.Struct, frozen=True):
    """A stage: a load, in requests per second or in flight, that holds or ramps from `begin` to `end`."""

    span_s: float
    begin: float
    end: float
    exponential: bool = False

    @property
    def constant(self) -> bool:
        """Whether the load is the same from the stage's begin to its end."""
        return self.begin == self.end

    @property
    def count(self) -> float:
        """The mean number of requests due in the stage: the integral of its rate."""
        return float(self.integrate(self.span_s))

    def compute_level(self, after_s: float) -> float:
        """Compute the load, in requests per second or in flight, `after_s` seconds into the stage."""
        share = after_s / self.span_s
        if self.exponential:
            return float(self.begin * (self.end / self.begin) ** share)
        return self.begin + (self.end - self.begin) * share

    def integrate(self, after_s: float) -> float:
        """Integrate the rate over the first `after_s` seconds: the mean number of requests due in these."""
        if self.exponential and not self.constant:
            return (self.compute_level(after_s) - self.begin) / self._growth_per_s
        return (self.begin + self.compute_level(after_s)) / 2 * after_s

    def find_times_s(self, counts: Float64) -> Float64:
        """Find at which second of the stage the integral of its rate reaches each count, float64[counts].

        The rate must be above 0 somewhere.
        """
        if self.exponential and not self.constant:
            grown: Float64 = np.log1p(counts * (self._growth_per_s / self.begin)) / self._growth_per_s
            return grown
        slope_per_s2 = (self.end - self.begin) / self.span_s
        # The root of begin t + slope t² / 2 = count that keeps its digits where the slope is small.
        sums = self.begin + np.sqrt(np.maximum(self.begin**2 + 2 * slope_per_s2 * counts, 0.0))
        times: Float64 = np.divide(2 * counts, sums, out=np.zeros_like(counts), where=sums > 0)
        return times

    @property
    def _growth_per_s(self) -> float:
        return float(np.log(self.end / self.begin)) / self.span_s

    def list_steps(self) -> tuple[Float64, Int64]:
        """List at which second of the stage each whole level of concurrency begins, and the levels.

        A linear ramp holds each whole number for the same time, an exponential one as long as an exponential
        curve to `most + 1` takes from it to the next.
        """
        begin, end = round(self.begin), round(self.end)
        least, most = min(begin, end), max(begin, end)
        levels = np.arange(least, most + 1)
        if self.exponential:
            begins = np.log(levels / least) / np.log((most + 1) / least)
        else:
            begins = (levels - least) / (most + 1 - least)
        if begin > end:  # the way up, backwards
            levels, begins = levels[::-1], np.concatenate([[0.0], 1 - begins[:0:-1]])
        times_s: Float64 = begins * self.span_s
        return times_s, levels


class RampEnds(msgspec.Struct, frozen=True):
    """The rates of vLLM's ramp, in requests per second, and its strategy."""

    begin: float
    end: float
    exponential: bool

    def compute_mean_rate_per_s(self, requests: int) -> float:
        """Compute the mean rate, in requests per second, of a ramp over this many requests, 2 at least."""
        return 1 / float(np.mean(1 / self.compute_rates_per_s(max(requests, 2))[1:]))

    def compute_rates_per_s(self, requests: int, first: int | None = None) -> Float64:
        """Compute the rate at each of `requests`, or of the `first` of them, by vLLM's formula."""
        progress = np.arange(requests if first is None else first) / max(requests - 1, 1)
        if self.exponential:
            return np.asarray(self.begin * (self.end / self.begin) ** progress)
        return np.asarray(self.begin + (self.end - self.begin) * progress)


class LoadSchedule(msgspec.Struct, frozen=True):
    """The stages of a load that changes over time, one after another: all rates, or all concurrencies."""

    concurrency: bool  # the levels are requests in flight; else requests a second
    stages: tuple[LoadStage, ...]

    @property
    def duration_s(self) -> float:
        """The total duration of all stages, in seconds."""
        return sum(stage.span_s for stage in self.stages)

    @property
    def most(self) -> float:
        """The highest rate or concurrency of any stage."""
        return max(max(stage.begin, stage.end) for stage in self.stages)

    @property
    def mean_rate_per_s(self) -> float:
        """The mean rate over all stages, in requests per second."""
        return sum(stage.count for stage in self.stages) / self.duration_s

    def find_offsets_s(self, counts: Float64) -> Float64:
        """Find at which second after the start the rate's integral passes each count, the duration at most.

        `counts` ascend. One reached as a pause begins is passed at the pause's end: stages are [begin, end).
        """
        until = np.cumsum([stage.count for stage in self.stages])
        begins = np.cumsum([0.0, *(stage.span_s for stage in self.stages)])
        numbers = np.searchsorted(until, counts, "right")
        offsets_s = np.full(len(counts), self.duration_s)
        for number in np.unique(numbers[numbers < len(self.stages)]).tolist():
            of = numbers == number
            before = until[number - 1] if number else 0.0
            offsets_s[of] = begins[number] + self.stages[number].find_times_s(counts[of] - before)
        ended_s: Float64 = np.minimum(offsets_s, self.duration_s)
        return ended_s

    def list_steps(self) -> tuple[Int64, Int64]:
        """List when each concurrency limit begins (ns), and the limits; a ramp has all whole numbers."""
        begin_s, from_s, limits = 0.0, [], []
        for stage in self.stages:
            times_s, levels = stage.list_steps()
            from_s.append(begin_s + times_s)
            limits.append(levels)
            begin_s += stage.span_s
        from_ns = np.rint(np.concatenate(from_s) * SECOND_NS).astype(np.int64)
        every: Int64 = np.concatenate(limits)
        changed = np.diff(every, prepend=0) != 0
        return from_ns[changed], every[changed]


def parse_schedule(text: str) -> LoadSchedule:
    """Parse the stages of `--schedule`; raises ValueError that names the wrong stage and what to write.

    They are 1000 and a year at most, all rates or all concurrencies, as the first is, and not all 0.
    """
    parts = [" ".join(part.split()) for part in text.split(",")]
    if len(parts) > _MOST_STAGES:
        raise ValueError(f"has {len(parts)} stages: {_MOST_STAGES} are the most")
    kind, stages = "", []
    for number, part in enumerate(parts, 1):
        match = _STAGE.fullmatch(part)
        where = f"stage {number} `{part[:60]}`"
        if match is None:
            raise ValueError(f"{where}: {_explain_stage(part) if kind or _KIND.match(part) else _FIRST}")
        named = match["kind"] or kind
        if not named:
            raise ValueError(f"{where}: {_FIRST}")
        if kind and named != kind:
            raise ValueError(f"{where}: one schedule has rates or concurrencies, not both: write two runs")
        kind = named
        begin = float(match["begin"])
        end = begin if match["end"] is None else float(match["end"])
        span_s = parse_seconds(match["held"] or match["ramped"])
        exponential = match["how"] == "exponentially"
        if span_s < _LEAST_S:
            raise ValueError(f"{where}: a stage takes 1ms at least")
        if exponential and not (begin and end):
            raise ValueError(f"{where}: an exponential ramp never is at 0: write 0.01, or leave the word out")
        for level in (begin, end):
            if kind == "concurrency" and not (level == int(level) and 1 <= level <= MOST_STREAMS):
                raise ValueError(f"{where}: a concurrency is a whole number from 1 to {MOST_STREAMS}")
            if kind == "rate" and level and not LEAST_RATE_PER_S <= level <= MOST_RATE_PER_S:
                raise ValueError(f"{where}: a rate is 0 (a pause), or from 1e-9 to 1e9 requests per second")
        stages.append(LoadStage(span_s, begin, end, exponential))
    made = LoadSchedule(kind == "concurrency", tuple(stages))
    if not made.most:
        raise ValueError("every rate is 0: give one stage a rate above 0")
    if made.duration_s > YEAR_S:
        raise ValueError("is longer than a year: shorten its stages")
    return made


def _explain_stage(part: str) -> str:
    """Explain why a stage of `--schedule` cannot be parsed: its first wrong field, or the form of all."""
    match = _LOOSE.fullmatch(part)
    if match is None:
        return _FORM
    for name, form, why in _PARTS:
        if match[name] is not None and re.fullmatch(form, match[name], re.ASCII) is None:
            return f"{quote_value(match[name])} {why}"
    return _FORM


class Bursts(msgspec.Struct, frozen=True):
    """Bursts of requests that are due all at once: at the start, and again after every period."""

    requests: int
    every_s: float

    @property
    def mean_rate_per_s(self) -> float:
        """The mean rate of the bursts, in requests per second."""
        return self.requests / self.every_s

    def offsets_ns(self, n: int) -> Int64:
        """Return when each of the first n requests is due after the start, int64[n] (ns)."""
        offsets_ns: Int64 = np.rint(np.arange(n) // self.requests * (self.every_s * SECOND_NS)).astype(
            np.int64
        )
        return offsets_ns


def parse_bursts(text: str) -> Bursts:
    """Parse `--bursts 50 every 10s`; raises ValueError that says what to write, also out of bounds."""
    match = _BURSTS.fullmatch(" ".join(text.split()))
    if match is None:
        raise ValueError("write it as `50 every 10s`")
    made = Bursts(int(match[1]), parse_seconds(match[2]))
    if not 1 <= made.requests <= MOST_REQUESTS:
        raise ValueError(f"a burst has 1 to {MOST_REQUESTS} requests")
    if not _LEAST_PERIOD_S <= made.every_s <= YEAR_S:
        raise ValueError("bursts are 1ms to a year apart")
    return made
