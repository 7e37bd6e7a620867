"""Random ids: prompts of random token ids, a function of a seed and of nothing that happens in a run."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from loadgen.arrays import Int64
from loadgen.errors import UsageError
from loadgen.workload.requests import PromptRequests
from loadgen.workload.streams import RandomStream
from loadgen.workload.vocabulary import Vocabulary

_RATIO_RULE = (
    "give a number from 0 (every length the same; SGLang's 1.0) to below 1, "
    'or two such numbers as {"input": R, "output": R}'
)


class PromptShape(msgspec.Struct, frozen=True):
    """How many prompts, how long they are and how long the answers shall be, in tokens.

    Lengths are uniform over the integers floor(L × (1 − r)) … ceil(L × (1 + r)), as
    `vllm bench serve` draws them; `prefix_len` shared tokens come before, on top of `input_len`.
    A profile bounds the sizes, and `parse_range_ratio` the ratios.
    """

    num_prompts: int
    input_len: int
    output_len: int
    range_ratio_input: float = 0
    range_ratio_output: float = 0
    prefix_len: int = 0


class _RangeRatios(msgspec.Struct, forbid_unknown_fields=True):
    input: float
    output: float


def parse_range_ratio(text: str) -> tuple[float, float]:
    """The (input, output) ratios of `--random-range-ratio`: one number or `{"input": R, "output": R}`.

    Raises UsageError unless both are in [0, 1).
    """
    try:
        try:
            given = _RangeRatios(float(text), float(text))
        except ValueError:
            given = msgspec.json.decode(text, type=_RangeRatios)
    except msgspec.DecodeError:
        raise UsageError(f"--random-range-ratio {text}: {_RATIO_RULE}") from None
    if not (0 <= given.input < 1 and 0 <= given.output < 1):
        raise UsageError(f"--random-range-ratio {text}: {_RATIO_RULE}")
    return given.input, given.output


class TokenIds(PromptRequests):
    """Prompts of exactly N uniformly random token ids (`--prompt-format ids`).

    Each is drawn when asked for, from a key of its own: none is kept, and the order of asking does not
    matter. No two share a first block of 16 but by a chance of one in (ids allowed)^16.
    """

    format = "ids"

    def __init__(self, shape: PromptShape, vocabulary: Vocabulary, stream: RandomStream) -> None:
        rng, n = stream.rng("lengths"), shape.num_prompts
        self._inner_lens = uniform_lens(rng, n, shape.input_len, shape.range_ratio_input)
        self.output_lens: Int64 = uniform_lens(rng, n, shape.output_len, shape.range_ratio_output)
        self.input_lens: Int64 = self._inner_lens + shape.prefix_len
        self._allowed = vocabulary.allowed
        self._key = stream.key("prompt")
        self._prefix = self._draw(stream.rng("prefix"), shape.prefix_len)

    def ids(self, i: int) -> Int64:
        """Prompt i, int64[input_lens[i]]."""
        rng = np.random.default_rng(np.random.SeedSequence(self._key, spawn_key=(i,)))
        inner = self._draw(rng, int(self._inner_lens[i]))
        return np.concatenate([self._prefix, inner]) if len(self._prefix) else inner

    def prompt(self, i: int) -> list[int]:
        """Prompt i as the list that goes into the request's JSON."""
        ids: list[int] = self.ids(i).tolist()
        return ids

    def _draw(self, rng: np.random.Generator, n: int) -> Int64:
        return self._allowed[rng.integers(0, len(self._allowed), n)]


def uniform_lens(rng: np.random.Generator, n: int, length: int, ratio: float, least: int = 1) -> Int64:
    """Uniform integers in floor(length × (1 − ratio)) … ceil(length × (1 + ratio)), int64[n], ≥ `least`.

    The bounds are computed in floating point, as vLLM's are: 100 with ratio 0.1 reaches 111.
    """
    low = max(math.floor(length * (1 - ratio)), least)
    high = max(math.ceil(length * (1 + ratio)), least)
    return rng.integers(low, high + 1, n)
