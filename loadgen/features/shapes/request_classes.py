"""Request classes: which class each request is of, and how long it is: drawn per index from the seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadgen.base.arrays import Float64, Int64
from loadgen.plan.prompts.random_ids import length_bounds, parse_range_ratio
from loadgen.plan.streams import RandomStream
from loadgen.settings.request_class import RequestClass


def drawn(classes: Sequence[RequestClass], stream: RandomStream, n: int) -> Int64:
    """The number of the class of each of the first n requests, int64[n].

    A request's class is its own draw, so it depends on profile, seed and index alone.
    """
    until = np.cumsum([each.share for each in classes])
    draws = stream.rng("class").random(n) * until[-1]
    numbers: Int64 = np.minimum(np.searchsorted(until, draws, "right"), len(classes) - 1)
    return numbers


def lengths(
    classes: Sequence[RequestClass], stream: RandomStream, n: int, compat: str
) -> tuple[Int64, Int64]:
    """Tokens of each prompt, without a shared prefix, and of each answer: int64[n] each."""
    numbers = drawn(classes, stream, n)
    ratios = [
        parse_range_ratio(each.range_ratio, compat, f"--class {each.name}: range_ratio") for each in classes
    ]
    inputs = [length_bounds(c.input_len, r[0], compat) for c, r in zip(classes, ratios, strict=True)]
    outputs = [length_bounds(c.output_len, r[1], compat) for c, r in zip(classes, ratios, strict=True)]
    return (
        _uniform(np.array(inputs)[numbers], stream.rng("class input").random(n)),
        _uniform(np.array(outputs)[numbers], stream.rng("class output").random(n)),
    )


def _uniform(low_high: Int64, draws: Float64) -> Int64:
    """A whole number from low to high for each draw from [0, 1): int64[n]."""
    low, high = low_high[:, 0], low_high[:, 1]
    return (low + np.floor(draws * (high - low + 1))).astype(np.int64)
