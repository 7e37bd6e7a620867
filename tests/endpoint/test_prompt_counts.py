"""Prompt counts: what a server counts is learned from a few texts, whatever its tokenizer makes of words."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from loadgen.endpoint.prompt_counts import Count, checked, fit
from loadgen.errors import MeasureError
from loadgen.workload.plan_inputs import WordCounts
from loadgen.workload.prompts import words
from loadgen.workload.prompts.random_ids import PromptShape
from loadgen.workload.streams import RandomStream

TWO = frozenset(words.common()[64:128])  # one group
THIRD = frozenset(words.common()[::3])
# Tokens of each of the first 128 common words, by a byte-pair vocabulary of 6000 entries; then 2 in the mean.
SMALL = (
    "1111111111111111111121112111111111111221111111111111111211111111"
    "1111111111111113111111131111114111321121111212111321311111112111"
)
SMALL_TOKENS = dict(zip(words.common(), map(int, SMALL + "123" * 128), strict=True))


def one_each(text: str) -> int:
    return 11 + len(text.split())


def long_first(text: str) -> int:
    return 12 + len(text.split())  # its first word is two tokens


def one_group_of_two(text: str) -> int:
    return 11 + sum(2 if word in TWO else 1 for word in text.split())


def a_third_of_two(text: str) -> int:
    return 12 + sum(2 if word in THIRD else 1 for word in text.split())


def by_bytes(text: str) -> int:
    return 5 + math.ceil(len(text) / 4)


def small_vocabulary(text: str) -> int:
    return 10 + sum(SMALL_TOKENS[word] for word in text.split())


EXACT = [one_each, long_first, one_group_of_two, small_vocabulary]
COUNTERS = [*EXACT, a_third_of_two, by_bytes]


def asynchronous(count: Callable[[str], int], asked: list[str] | None = None) -> Count:
    async def answer(text: str) -> int:
        if asked is not None:
            asked.append(text)
        return count(text)

    return answer


def learned(
    by: Callable[[str], int], real: Callable[[str], int], tokens: int = 1000, groups: int = 8
) -> WordCounts:
    async def ask() -> WordCounts:
        return await checked(await fit(asynchronous(by), groups), asynchronous(real), tokens)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("count", "kinds", "overhead", "per_word"),
    [
        (one_each, 512, 11, 1),
        (long_first, 512, 12, 1),
        (one_group_of_two, 448, 11, 1),
        (small_vocabulary, 32, 10, 1),
        (a_third_of_two, 64, 14 - 85 / 64, 85 / 64),  # its first word is of two tokens
    ],
)
def test_overhead_and_tokens_a_word_are_separated_exactly(
    count: Callable[[str], int], kinds: int, overhead: float, per_word: float
) -> None:
    asked: list[str] = []
    found = asyncio.run(fit(asynchronous(count, asked), 8))
    assert (len(found.words), found.overhead, found.per_word) == (kinds, overhead, per_word)
    assert len(asked) == (17 if count is small_vocabulary else 9)
    if per_word == 1:
        assert {count(f"the {word}") - count("the") for word in found.words} == {1}


@pytest.mark.parametrize("groups", [2, 8])
@pytest.mark.parametrize("asked", [32, 100, 1000])
@pytest.mark.parametrize("count", COUNTERS)
def test_prompts_reach_the_asked_length_within_one_percent(
    count: Callable[[str], int], asked: int, groups: int
) -> None:
    counts = learned(count, count, asked, groups)
    for seed in range(20):
        made = words.WordTexts(PromptShape(20, asked, 1), counts, RandomStream(seed))
        texts = [made.prompt(i) for i in range(20)]
        counted = [count(text) for text in texts]
        assert sum(counted) / 20 == pytest.approx(asked, rel=0.01)
        assert len(set(texts)) == 20
        if count in EXACT:
            assert set(counted) == {asked}


def test_a_real_request_corrects_what_another_path_counts() -> None:
    assert learned(one_each, lambda text: one_each(text) + 7).tokens(500) == 11 + 7 + 500
    doubled = learned(one_each, lambda text: 2 * one_each(text))
    assert (doubled.per_word, doubled.overhead) == (2, 22)
    added = learned(a_third_of_two, lambda text: a_third_of_two(text) + 1, 40)  # where a token is 2.5 %
    assert (added.per_word, added.overhead) == (85 / 64, 15 - 85 / 64)


def test_a_count_is_checked_once_at_the_length_of_the_run() -> None:
    asked: list[str] = []
    asyncio.run(checked(WordCounts(words.common(), 11), asynchronous(one_each, asked), 2000))
    assert [one_each(text) for text in asked] == [2000]
    asked.clear()
    asyncio.run(checked(WordCounts(words.common(), 11), asynchronous(one_each, asked), 500_000))
    assert [one_each(text) for text in asked] == [8192 + 11]


def test_a_count_that_does_not_grow_with_the_prompt_is_refused() -> None:
    with pytest.raises(MeasureError, match=r"counts 9 tokens in a prompt of 513 words.*pass --tokenizer"):
        learned(lambda text: 9, lambda text: 9)
