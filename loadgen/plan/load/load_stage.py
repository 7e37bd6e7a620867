"""Load stage: one part of a load over time: a level that holds, or one that rises or falls."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Float64, Int64


class LoadStage(msgspec.Struct, frozen=True):
    """A level for some time: requests a second, or requests in flight; equal ends are a constant one."""

    span_s: float
    begin: float
    end: float
    exponential: bool = False

    @property
    def constant(self) -> bool:
        """Whether the level holds."""
        return self.begin == self.end

    @property
    def count(self) -> float:
        """The integral of a rate over the stage: how many requests are due in it on average."""
        return float(self.counted(self.span_s))

    def level(self, after_s: float) -> float:
        """The level at a time after the stage's begin."""
        share = after_s / self.span_s
        if self.exponential:
            return float(self.begin * (self.end / self.begin) ** share)
        return self.begin + (self.end - self.begin) * share

    def counted(self, after_s: float) -> float:
        """The integral of a rate from the stage's begin to a time after it."""
        if self.exponential and not self.constant:
            return (self.level(after_s) - self.begin) / self._growth_per_s
        return (self.begin + self.level(after_s)) / 2 * after_s

    def after_s(self, counts: Float64) -> Float64:
        """When the integral of a rate reaches each of these counts, in seconds after the stage's begin.

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

    def steps(self) -> tuple[Float64, Int64]:
        """Whole levels on the way, and when each begins, in seconds after the stage's begin.

        Each whole number from one end to the other holds for its part of the time: a linear ramp gives all
        the same, an exponential one as long as an exponential curve to `most + 1` takes from it to the next.
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
