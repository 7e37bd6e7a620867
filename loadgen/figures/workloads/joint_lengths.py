"""Joint lengths: prompts and answers together, how their ranks go along, and how many have which two."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.base.arrays import Float64, Int64
from loadgen.plan.planned_requests import LengthFacts


class LengthCount(msgspec.Struct, frozen=True):
    """How many requests have a prompt and an answer of at least these tokens, and of less than twice them."""

    input_from: int
    output_from: int
    requests: int


class JointLengths(msgspec.Struct, frozen=True):
    """The lengths of a workload's prompts and answers; None where none is known."""

    input: LengthFacts | None
    output: LengthFacts | None
    rank_correlation: float | None  # Spearman's, of the requests with both; None where one never varies
    counts: tuple[LengthCount, ...]  # a joint histogram, by powers of two, without empty places


def measure_lengths(input_lens: Int64, output_lens: Int64) -> JointLengths:
    """Measure the lengths of requests in tokens, int64[requests] each, UNKNOWN_LEN where unknown."""
    both = (input_lens > 0) & (output_lens > 0)
    own, other = input_lens[both], output_lens[both]
    return JointLengths(
        LengthFacts.measure(input_lens),
        LengthFacts.measure(output_lens),
        correlate_ranks(own, other),
        tuple(_count_together(own, other)),
    )


def _count_together(input_lens: Int64, output_lens: Int64) -> list[LengthCount]:
    """Count requests by the powers of two below their lengths, ascending."""
    columns = (
        np.frexp(lens.astype(np.float64))[1].astype(np.int64) - 1 for lens in (input_lens, output_lens)
    )
    own, other = columns
    counts = np.bincount(own * 64 + other)
    places = np.flatnonzero(counts).tolist()
    return [LengthCount(1 << place // 64, 1 << place % 64, int(counts[place])) for place in places]


def correlate_ranks(own: Int64, other: Int64) -> float | None:
    """Compute Spearman's rank correlation, ties by their mean rank; None if one of both does not vary."""
    if len(own) < 2:
        return None
    ranks = [_rank(column) for column in (own, other)]
    first, second = (column - column.mean() for column in ranks)
    scale = float(np.sqrt((first * first).sum() * (second * second).sum()))
    return float((first * second).sum()) / scale if scale else None


def _rank(values: Int64) -> Float64:
    """Return each value's rank from 1, equal ones their mean, float64[values]."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Float64 = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks
