"""Random prompts: the requests of a profile without a file: lengths, classes, prefixes and token ids."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec
import numpy as np

from loadgen.base.arrays import Float64, Int64
from loadgen.base.errors import UsageError
from loadgen.plan.lengths import LengthDistribution, parse_lengths
from loadgen.plan.planned_requests import DataFacts, PromptRequests, fingerprint
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import PlanInputs, RandomStream
from loadgen.settings.load_settings import RequestClass

IDS = "ids"
P = TypeVar("P")
_TWO = 'or two such numbers as {"input": R, "output": R}'
_BELOW_ONE = (
    "give a number from 0 (every length the same) to below 1, which varies lengths by ± R; SGLang's and "
    "InferenceX's 1.0 goes with --compat sglang or --compat inferencex;"
)
_TO_ONE = "give a number from 0 to 1 (every length the same), with --compat {}: lengths from R × L to L;"
_MOST_KEPT = 256  # prefixes in memory


class PromptSource(msgspec.Struct, frozen=True):
    """A source of random prompts; `make` makes those of a shape from a random stream."""

    make: Callable[[PromptShape, RandomStream], RandomPrompts]
    facts: DataFacts = DataFacts()  # of the text
    ids_source: str = ""  # where token ids are drawn from; "" for text
    tokenizer: str = ""  # that makes the texts
    notes: tuple[str, ...] = ()


def make_shape(inputs: PlanInputs) -> tuple[PromptShape, list[str]]:
    """Compute the number and lengths of prompts, and notes on lengths that are not as requested."""
    profile, notes = inputs.profile, list[str]()

    def read_dist(way: str, usual: int) -> LengthDistribution | None:
        text: str = getattr(profile, f"{way}_dist")
        if not text:
            return None
        dist = parse_lengths(text, f"--{way}-dist", usual)
        if remark := dist.remark():
            notes.append(f"--{way}-dist {text}: {remark}")
        return dist

    count = profile.most_prompts if inputs.most is None else inputs.most
    shape = PromptShape(
        count,
        profile.input_len,
        profile.output_len,
        *parse_range_ratio(profile.range_ratio, profile.compat),
        profile.prefix_len,
        profile.compat,
        read_dist("input", profile.input_len),
        read_dist("output", profile.output_len),
        profile.prefix_groups,
        profile.prefix_zipf,
        draw_class_lens(profile.classes, inputs.stream, count, profile.compat) if profile.classes else None,
    )
    return shape, notes


def is_count_known(shape: PromptShape, profile: Profile) -> bool:
    """Whether the number of prompts is known; else as many are planned as may be sent in time."""
    return profile.num_prompts is not None or shape.num_prompts < profile.most_prompts


class RangeRule(msgspec.Struct, frozen=True):
    """How one client (`--compat`) interprets `--random-range-ratio`."""

    bounds: Callable[[int, float], tuple[int, int]]  # of uniform integers, from a length and a ratio
    to_one: bool  # whether 1.0 is a ratio: every length the same
    ratios: str  # which there are, in words


def _up_to(length: int, ratio: float) -> tuple[int, int]:
    """Return the bounds from length × ratio up to the length, as SGLang does."""
    return int(length * ratio), length


# vLLM 0.32 rounds floats: 100 with ratio 0.1 reaches 111. The others are vLLM 0.9, sglang.bench_serving, and
# the fork of vLLM's client of 2024 that InferenceX runs, whose 0.8 makes 0.9 of the nominal length.
RANGE_RULES = {
    "vllm": RangeRule(
        lambda length, ratio: (math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio))),
        False,
        _BELOW_ONE,
    ),
    "vllm-0.9": RangeRule(
        lambda length, ratio: (int(length * (1 - ratio)), int(length * (1 + ratio))), False, _BELOW_ONE
    ),
    "sglang": RangeRule(_up_to, True, _TO_ONE.format("sglang")),
    "inferencex": RangeRule(_up_to, True, _TO_ONE.format("inferencex")),
}


class PromptShape(msgspec.Struct, frozen=True):
    """The number of prompts, and how long prompts and answers are, in tokens.

    Lengths are uniform over integers, whose bounds `compat` has from length and ratio: for `vllm` floor(L ×
    (1 − r)) … ceil(L × (1 + r)); or those of a distribution that was given. `prefix_len` shared tokens come
    before, on top of `input_len`. A profile bounds the sizes, and `parse_range_ratio` the ratios.
    """

    num_prompts: int
    input_len: int
    output_len: int
    range_ratio_input: float = 0
    range_ratio_output: float = 0
    prefix_len: int = 0
    compat: str = "vllm"  # a key of RANGE_RULES
    input_dist: LengthDistribution | None = None  # None: by length and ratio
    output_dist: LengthDistribution | None = None
    prefix_groups: int = 1  # prefixes, of which each prompt begins with one
    prefix_zipf: float = 0
    class_lens: tuple[Int64, Int64] | None = None  # of each prompt and answer, where there are classes


class _RangeRatios(msgspec.Struct, forbid_unknown_fields=True):
    input: float
    output: float


def parse_range_ratio(
    text: str, compat: str = "vllm", given: str = "--random-range-ratio"
) -> tuple[float, float]:
    """Parse `--random-range-ratio`, a number or `{"input": R, "output": R}`, to (input, output).

    Raises UsageError, by the flag that was `given`, unless both are in [0, 1), or in [0, 1] where `compat`
    has 1.
    """
    rule = RANGE_RULES[compat]
    refused = UsageError(f"{given} {text}: {rule.ratios} {_TWO}")
    try:
        try:
            both = _RangeRatios(float(text), float(text))
        except ValueError:
            both = msgspec.json.decode(text, type=_RangeRatios)
    except msgspec.DecodeError:
        raise refused from None
    if not all(0 <= ratio < 1 or (rule.to_one and ratio == 1) for ratio in (both.input, both.output)):
        raise refused
    return both.input, both.output


class RandomPrompts(PromptRequests):
    """Prompts of a shape, made when needed, of which groups may begin with a shared prefix."""

    reusable_tokens: int


class SharedPrefixes(RandomPrompts, Generic[P]):
    """Prompts whose lengths, content and prefixes are drawn from a stream; a subclass defines `prompt`."""

    def __init__(
        self, shape: PromptShape, stream: RandomStream, make_prefix: Callable[[np.random.Generator], P]
    ) -> None:
        self._own_lens, self.output_lens = draw_lens(shape, stream.rng("lengths"))
        self.input_lens = self._own_lens + shape.prefix_len
        self._key = stream.key("prompt")
        count, groups = shape.num_prompts, shape.prefix_groups
        self._groups = PrefixGroups(count, groups, shape.prefix_zipf, stream, make_prefix)
        self.reusable_tokens = self._groups.count_reusable(shape.prefix_len)

    def make_rng(self, *place: int) -> np.random.Generator:
        """Make the random generator of one place of the plan, independent of all earlier draws."""
        return np.random.default_rng(np.random.SeedSequence(self._key, spawn_key=place))

    def digest(self) -> str:
        """Return a hash of all lengths, the first 64 prompts, and which prefix each prompt has."""
        return self._groups.digest(super().digest())


class TokenIds(SharedPrefixes[Int64]):
    """Prompts of exactly N token ids, random ones (`--prompt-format ids`) or a text's, made when needed.

    `draw` gives ids, int64[n], from a generator. Each prompt is drawn when asked for, from a key of its own:
    none is kept, and the order of asking does not matter. No two of random ids share a first block of 16 but
    by a chance of one in (ids allowed)^16.
    """

    def __init__(
        self,
        shape: PromptShape,
        draw: Callable[[np.random.Generator, int], Int64],
        stream: RandomStream,
        form: str = IDS,
        text_digest: str = "",
    ) -> None:
        super().__init__(shape, stream, lambda rng: draw(rng, shape.prefix_len))
        self.format, self._draw, self._text_digest = form, draw, text_digest

    def ids(self, i: int) -> Int64:
        """Return the token ids of prompt i, int64[input_lens[i]]."""
        own = self._draw(self.make_rng(i), int(self._own_lens[i]))
        prefix = self._groups.prefix(i)
        return np.concatenate([prefix, own]) if len(prefix) else own

    def prompt(self, i: int) -> list[int]:
        """Return the token ids of prompt i as a list, for JSON."""
        ids: list[int] = self.ids(i).tolist()
        return ids

    def digest(self) -> str:
        """Return a hash of lengths, first prompts, who shares which prefix, and the text if there is one."""
        own = super().digest()
        return fingerprint(own, (), (self._text_digest.encode(),)) if self._text_digest else own


def draw_lens(
    shape: PromptShape, rng: np.random.Generator, added: int = 0, least: int = 1
) -> tuple[Int64, Int64]:
    """Draw the tokens of each prompt (without prefix and `added` ones) and answer, int64[num_prompts] each.

    Prompts are drawn first; each has at least `least` tokens, each answer one.
    """
    n = shape.num_prompts
    if shape.class_lens is not None:
        return np.maximum(shape.class_lens[0] - added, least), shape.class_lens[1]
    if shape.input_dist is not None:
        inputs = np.maximum(shape.input_dist.draw(rng, n) - added, least)
    else:
        length = max(0, shape.input_len - added)
        bounds = find_length_bounds(length, shape.range_ratio_input, shape.compat, least)
        inputs = draw_uniform_lens(rng, n, bounds)
    if shape.output_dist is not None:
        return inputs, shape.output_dist.draw(rng, n)
    bounds = find_length_bounds(shape.output_len, shape.range_ratio_output, shape.compat)
    return inputs, draw_uniform_lens(rng, n, bounds)


def find_length_bounds(length: int, ratio: float, compat: str, least: int = 1) -> tuple[int, int]:
    """Return the smallest and the greatest length to draw, in tokens, each at least `least`."""
    low, high = RANGE_RULES[compat].bounds(length, ratio)
    return max(low, least), max(high, least)


def draw_uniform_lens(rng: np.random.Generator, n: int, bounds: tuple[int, int]) -> Int64:
    """Draw n uniform integers between the bounds, both included, int64[n]."""
    return rng.integers(bounds[0], bounds[1] + 1, n)


class PrefixGroups(Generic[P]):
    """Groups of prompts that share a prefix: `of`, int64[requests], is the group of each prompt.

    With `zipf` 0 every prefix has the same number of prompts, give or take one, in random order; else prefix
    g = 0, 1, … has a prompt with probability ∝ (g + 1)^−zipf. `make` makes a prefix from its own generator:
    one that is alone is the same as without groups.
    """

    def __init__(
        self, n: int, groups: int, zipf: float, stream: RandomStream, make: Callable[[np.random.Generator], P]
    ) -> None:
        self.groups = groups
        self.of: Int64
        if groups == 1:
            self.of = np.broadcast_to(np.int64(0), n)  # takes no memory
        elif zipf == 0:
            self.of = stream.rng("groups").permutation(n) % groups
        else:
            shares = np.cumsum(np.arange(1, groups + 1, dtype=np.float64) ** -zipf)
            drawn = stream.rng("groups").random(n)
            self.of = np.searchsorted(shares / shares[-1], drawn, side="right").astype(np.int64)
        self._stream, self._make = stream, make
        self._made: dict[int, P] = {}

    def prefix(self, i: int) -> P:
        """Return the prefix of prompt i, made when first needed; 256 at most are kept."""
        group = int(self.of[i])
        if group not in self._made:
            if len(self._made) >= _MOST_KEPT:
                self._made.clear()
            self._made[group] = self._make(self._stream.rng("prefix", group))
        return self._made[group]

    def count_reusable(self, prefix_len: int) -> int:
        """Count the prefix tokens that an earlier prompt had too: all but the first of each group.

        An engine caches whole blocks, as vLLM of 16 tokens: its hits are so much fewer.
        """
        begun = 1 if self.groups == 1 else len(np.unique(self.of))
        return prefix_len * max(0, len(self.of) - begun)

    def digest(self, prompts: str) -> str:
        """Combine the hash of the prompts with who shares which prefix; unchanged with one group."""
        if self.groups == 1:
            return prompts
        return hashlib.blake2b(prompts.encode() + self.of.astype("<i8").tobytes(), digest_size=16).hexdigest()


def draw_classes(classes: Sequence[RequestClass], stream: RandomStream, n: int) -> Int64:
    """Draw the class number of each of the first n requests, int64[n].

    A request's class is its own draw, so it depends on profile, seed and index alone.
    """
    until = np.cumsum([each.share for each in classes])
    draws = stream.rng("class").random(n) * until[-1]
    numbers: Int64 = np.minimum(np.searchsorted(until, draws, "right"), len(classes) - 1)
    return numbers


def draw_class_lens(
    classes: Sequence[RequestClass], stream: RandomStream, n: int, compat: str
) -> tuple[Int64, Int64]:
    """Draw the tokens of each prompt, without a shared prefix, and answer by class, int64[n] each."""
    numbers = draw_classes(classes, stream, n)
    ratios = [
        parse_range_ratio(each.range_ratio, compat, f"--class {each.name}: range_ratio") for each in classes
    ]
    inputs = [find_length_bounds(c.input_len, r[0], compat) for c, r in zip(classes, ratios, strict=True)]
    outputs = [find_length_bounds(c.output_len, r[1], compat) for c, r in zip(classes, ratios, strict=True)]
    return (
        _scale_draws(np.array(inputs)[numbers], stream.rng("class input").random(n)),
        _scale_draws(np.array(outputs)[numbers], stream.rng("class output").random(n)),
    )


def _scale_draws(low_high: Int64, draws: Float64) -> Int64:
    """Scale draws from [0, 1) to integers between low and high, both included, int64[n]."""
    low, high = low_high[:, 0], low_high[:, 1]
    return (low + np.floor(draws * (high - low + 1))).astype(np.int64)
