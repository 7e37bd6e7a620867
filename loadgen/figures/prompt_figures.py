"""Prompt figures: how fast prompts were read, what else is in that time, and what a cache held of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from loadgen.base.arrays import Bool, Int64, total
from loadgen.base.clock import SECOND_NS
from loadgen.figures.distribution import RateDistribution
from loadgen.figures.record import UNKNOWN, Records


class PrefillFigures(TypedDict):
    """The fields of Metrics on the prefill."""

    prefill_speed: RateDistribution
    prefill_behind: int
    prefill_queued: float | None


class CacheFigures(TypedDict):
    """The fields of Metrics on prompt tokens that the server found in its cache."""

    total_cached_tokens: int
    cached_counts: int
    cached_share: float | None


def prefill(
    records: Records, begun: Bool, first_ns: Int64, input_tokens: Int64, percentiles: Sequence[float]
) -> PrefillFigures:
    """Input tokens / TTFT of the successes with a first token, bool[requests], whose prompt is known.

    `first_ns` is every request's first token, `input_tokens` its prompt's, int64[requests], -1: unknown.
    """
    ttft_ns, sent = first_ns - records.sent_ns, records.sent
    some = begun & (input_tokens > 0) & (ttft_ns > 0)
    until_ns = np.where(first_ns == UNKNOWN, records.end_ns, first_ns)
    ahead = np.zeros(len(records), np.int64)
    ahead[sent] = prefills_ahead(records.sent_ns[sent], until_ns[sent])
    reported = some & (records.server_queue_ns >= 0)
    speeds = input_tokens[some] * SECOND_NS / ttft_ns[some]
    return {
        "prefill_speed": RateDistribution.of(speeds, percentiles),
        "prefill_behind": int((some & (ahead > 0)).sum()),
        "prefill_queued": total(records.server_queue_ns[reported]) / total(ttft_ns[reported])
        if reported.any()
        else None,
    }


def prefills_ahead(sent_ns: Int64, until_ns: Int64) -> Int64:
    """How many others each request found without a token when it was sent, int64[requests].

    `until_ns` is each one's first token, or its end without one.
    """
    ahead = np.sort(sent_ns).searchsorted(sent_ns, side="right") - 1  # all but itself
    over = np.sort(until_ns).searchsorted(sent_ns, side="right")
    return (ahead - over).clip(0)


def cached(records: Records, ok: Bool) -> CacheFigures:
    """What the usage of successes, bool[requests], reports of the cache; over those that do."""
    reported = ok & (records.cached_tokens >= 0) & (records.input_tokens >= 0)
    found, prompts = (int(of[reported].sum()) for of in (records.cached_tokens, records.input_tokens))
    return {
        "total_cached_tokens": found,
        "cached_counts": int(reported.sum()),
        "cached_share": found / prompts if prompts else None,
    }
