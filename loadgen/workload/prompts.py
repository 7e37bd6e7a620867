"""Prompts: a function of a seed and of nothing that happens during the run."""

from __future__ import annotations

import hashlib
import math
from typing import Literal, Protocol

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.arrays import Int64
from loadgen.errors import UsageError
from loadgen.workload.vocabulary import Vocabulary

DIGESTED_PROMPTS = 64
Purpose = Literal["measure", "warmup", "when"]
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


class RandomStream(msgspec.Struct, frozen=True):
    """The name of one independent stream of random numbers.

    Two streams that differ in any field have nothing in common, so a repeat, another profile or the
    warm-up never meets prompts that the server has in its prefix cache. The same name gives the same
    numbers in every process: the key is a hash of the fields (blake2b, not Python's salted `hash`).
    """

    seed: int
    profile: str = ""
    repeat: int = 0
    purpose: Purpose = "measure"

    def rng(self, part: str, index: int = 0) -> np.random.Generator:
        """A fresh generator for one part of this stream, at its start."""
        return np.random.default_rng(np.random.SeedSequence(self.key(part), spawn_key=(index,)))

    def key(self, part: str) -> int:
        """128 bits that name `part` of this stream."""
        name = msgspec.json.encode([str(self.seed), self.profile, self.repeat, self.purpose, part])
        return int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")


def arrival_rng(stream: RandomStream) -> np.random.Generator:
    """The generator of arrival times that belongs to `stream`: when is drawn apart from what."""
    return replace(stream, purpose="when").rng("gaps")


class Prompts(Protocol):
    """The prompts of one run, each available at any time and in any order.

    `input_lens` and `output_lens` are int64[num_prompts], in tokens; the first is the client's count.
    """

    @property
    def format(self) -> str: ...
    @property
    def input_lens(self) -> Int64: ...
    @property
    def output_lens(self) -> Int64: ...
    def prompt(self, i: int) -> list[int] | str: ...


def digest(prompts: Prompts) -> str:
    """A fingerprint of all lengths and of the first 64 prompts: equal plans have equal digests."""
    hashed = hashlib.blake2b(prompts.format.encode(), digest_size=16)
    for lens in (prompts.input_lens, prompts.output_lens):
        hashed.update(lens.astype("<i8").tobytes())
    for i in range(min(len(prompts.input_lens), DIGESTED_PROMPTS)):
        hashed.update(msgspec.json.encode(prompts.prompt(i)))
    return hashed.hexdigest()


class TokenIds:
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
