"""Step counts: the decoding steps of each request, by its messages, and ratios over them with intervals."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Float64, Int64
from loadgen.base.intervals import RatioOfSums, t_quantile
from loadgen.records.record import Records

MOST_TOKENS = 64  # of a step that the histogram tells apart; drafts have 2 to 16


class RatioEstimate(msgspec.Struct, frozen=True):
    """A ratio of two sums with its 95 % interval; `low` and `high` are None with fewer than two units."""

    mean: float
    low: float | None = None
    high: float | None = None
    units: int = 0  # that the interval is of: requests, or waves of them; 0: a server's own mean


class StepCounts(msgspec.Struct, frozen=True):
    """What followed each request's first message, int64[requests]; 0 where there was one message or none."""

    tokens: Int64  # in later messages; of an answer whose messages are not counted all but the first token
    steps: Int64  # later messages with tokens: a step each, where none holds or shares several
    span_ns: Int64  # from the first message to the last
    exact: bool  # the tokens of every later message are known
    least: int  # tokens of the smallest message that is neither first nor last; 0: none, or not exact
    histogram: Int64  # later messages by their tokens, int64[MOST_TOKENS + 1], the last for more

    @classmethod
    def from_records(cls, records: Records, among: Bool) -> StepCounts:
        """Count the steps of those requests in `among`, bool[requests], whose tokens are known; others: 0."""
        exact: Bool = records.exact_tokens > 0
        counted = among & (exact | (records.usage > 0))
        tokens, steps, span_ns = (np.zeros(len(records), np.int64) for _ in range(3))
        histogram, least = np.zeros(MOST_TOKENS + 1, np.int64), 0
        for block in records.blocks():
            rows = slice(block.first, block.last)
            several = counted[rows] & (np.diff(block.start) > 1)
            first, after = block.start[:-1][several], block.start[1:][several]
            sums = np.concatenate([[0], np.cumsum(block.tokens)])
            tokens[rows][several] = np.where(
                exact[rows][several], sums[after] - sums[first + 1], records.output_tokens[rows][several] - 1
            )
            steps[rows][several] = after - first - 1
            span_ns[rows][several] = block.arrival_ns[after - 1] - block.arrival_ns[first]
            later = np.repeat(several, np.diff(block.start))
            later[first] = False
            histogram += np.bincount(block.tokens[later].clip(0, MOST_TOKENS), minlength=MOST_TOKENS + 1)
            later[after - 1] = False
            if later.any():
                fewest = int(block.tokens[later].min())
                least = min(least or fewest, fewest)
        every = bool(exact[steps > 0].all())
        return cls(tokens, steps, span_ns, every, least * every, histogram * every)

    def take_reported(self, records: Records) -> StepCounts | None:
        """Return the counts with the steps that the server reports of each request; None if one lacks them.

        Of T tokens T − accepted came with a step of their own; where every step drafts, drafts are the steps.
        """
        some = self.steps > 0
        if not some.any() or (records.server_accepted_tokens[some] < 0).any():
            return None
        steps = np.maximum(records.server_drafts, self.tokens - records.server_accepted_tokens).clip(1)
        none = np.zeros_like(self.histogram)
        return msgspec.structs.replace(
            self, steps=np.where(some, steps, 0), exact=False, least=0, histogram=none
        )


def estimate_ratio_of_sums(
    numerator: Int64 | Float64, denominator: Int64 | Float64, scale: float = 1.0, wave: int = 1
) -> RatioEstimate | None:
    """Estimate scale × Σ numerator / Σ denominator, whose units are waves of `wave` successive requests.

    Requests without a denominator are no units. None without any.
    """
    some = denominator > 0
    begins = np.arange(0, int(some.sum()), max(wave, 1))
    if not len(begins):
        return None
    if len(begins) > 1 and int(some.sum()) % max(wave, 1):
        begins = begins[:-1]  # the last wave takes the rest
    y, x = (np.add.reduceat(values[some], begins) for values in (numerator, denominator))
    ratio, units = RatioOfSums(y, x), len(begins)
    if units < 2:
        return RatioEstimate(scale * ratio.mean, units=units)
    half = t_quantile(units - 1) * ratio.error
    return RatioEstimate(scale * ratio.mean, scale * (ratio.mean - half), scale * (ratio.mean + half), units)
