"""Speculative decoding: how many draft tokens each step of an answer accepts, drawn from the request."""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from random import Random

import msgspec


class DraftedSteps(msgspec.Struct, frozen=True):
    """The steps of one answer: how many tokens it has after each, and how many were accepted in vain."""

    ends: tuple[int, ...] = ()  # tokens after its first, second, … step; empty: one a step
    past: int = 0  # draft tokens that the last step accepted past the answer's end


def draw_steps(raw: bytes, output_tokens: int, acceptance: Sequence[float]) -> DraftedSteps:
    """Draw the steps of an answer; a function of the request's bytes, as its length is.

    The first step gives one token, the prompt's. Draft token j is accepted with probability acceptance[j] if
    all before it were, and a step gives one token more than it accepts.
    """
    if not acceptance:
        return DraftedSteps()
    # Chances that 1, 2, … are accepted, ascending for the bisection.
    reached = [*accumulate(acceptance, mul)][::-1]
    drafts, draw = len(acceptance), Random(zlib.crc32(raw, 2)).random
    ends, produced = [1], 1
    while produced < output_tokens:
        produced += 1 + drafts - bisect_left(reached, 1.0 - draw())
        ends.append(produced)
    ends[-1] = output_tokens
    return DraftedSteps(tuple(ends), max(produced - output_tokens, 0))
