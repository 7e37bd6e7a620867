"""Turn figures: what the turns of sessions got, by how far into its session each was."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.figures.distribution import Distribution
from loadgen.figures.per_request import PerRequest
from loadgen.figures.record import Records

_P99 = (99.0,)
_ALONE = 4  # turns that have a row of their own; after them 5 to 8, 9 to 16, and so on


class TurnFigures(msgspec.Struct, frozen=True):
    """The turns of one row; latencies in milliseconds over its successes, NaN if there are none."""

    first: int  # turn, counted from 1
    last: int
    requests: int
    failed: int
    mean_input_tokens: float | None  # by usage, else as planned; None: not known
    cached_tokens: int  # of successes that report them
    cached_of: int  # prompt tokens of these
    cached_share: float | None  # cached_tokens / cached_of, 0 to 1; None: no response reports any
    mean_output_tokens: float | None
    mean_ttft_ms: float
    median_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    mean_e2el_ms: float

    @property
    def name(self) -> str:
        """The turn, or the range of turns, as 3 or 5–8."""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


def turn_figures(turn: Int64, records: Records, each: PerRequest) -> list[TurnFigures]:
    """The figures of turns 1, 2, 3, 4, 5–8, 9–16, …, as far as there are any.

    `turn`, int64[requests], is the turn of each request, counted from 1.
    """
    rows, first = [], 1
    while first <= turn.max(initial=0):
        last = first if first <= _ALONE else 2 * (first - 1)
        if (ours := (turn >= first) & (turn <= last)).any():
            rows.append(_figures((first, last), ours, records, each))
        first = last + 1
    return rows


def cached(records: Records, of: Bool) -> tuple[int, int]:
    """The prompt tokens of some successes, bool[requests], that were cached by usage, and of how many."""
    counted = of & records.ok & (records.cached_tokens >= 0) & (records.input_tokens >= 0)
    return int(records.cached_tokens[counted].sum()), int(records.input_tokens[counted].sum())


def _figures(turns: tuple[int, int], ours: Bool, records: Records, each: PerRequest) -> TurnFigures:
    ok = ours & each.ok
    hits, looked_up = cached(records, ours)
    ttft = Distribution.of(each.ttft_ns[ours & each.has_ttft], _P99)
    return TurnFigures(
        *turns,
        requests=int(ours.sum()),
        failed=int((ours & each.failed).sum()),
        mean_input_tokens=_mean(each.input_tokens[ok]),
        cached_tokens=hits,
        cached_of=looked_up,
        cached_share=hits / looked_up if looked_up else None,
        mean_output_tokens=_mean(each.output_tokens[ok]),
        mean_ttft_ms=ttft.mean_ms,
        median_ttft_ms=ttft.median_ms,
        p99_ttft_ms=ttft.p99_ms,
        mean_tpot_ms=Distribution.of(each.tpot_ns()[ours & each.has_tpot], _P99).mean_ms,
        mean_e2el_ms=Distribution.of(each.e2el_ns[ok], _P99).mean_ms,
    )


def _mean(counts: Int64) -> float | None:
    known = counts[counts >= 0]
    return float(np.mean(known)) if len(known) else None
