"""Prompt counts: what a server counts is learned from a few texts, whatever its tokenizer makes of words."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from loadgen.endpoint.prompt_counts import Count, checked, fit
from loadgen.errors import MeasureError
from loadgen.protocol.engines import UNKNOWN
from loadgen.workload import plan, profile
from loadgen.workload.plan_inputs import ModelTarget, Seed, WordCounts
from loadgen.workload.prompts import words

TWO = frozenset(words.common()[64:128])  # one group
THIRD = frozenset(words.common()[::3])


def one_each(text: str) -> int:
    return 11 + len(text.split())


def long_first(text: str) -> int:
    return 12 + len(text.split())  # its first word is two tokens


def one_group_of_two(text: str) -> int:
    return 11 + sum(2 if word in TWO else 1 for word in text.split())


def a_third_of_two(text: str) -> int:
    return 30 + sum(2 if word in THIRD else 1 for word in text.split())


def by_bytes(text: str) -> int:
    return 5 + math.ceil(len(text) / 4)


COUNTERS = [one_each, long_first, one_group_of_two, a_third_of_two, by_bytes]


def asynchronous(count: Callable[[str], int], asked: list[str] | None = None) -> Count:
    async def answer(text: str) -> int:
        if asked is not None:
            asked.append(text)
        return count(text)

    return answer


def learned(by: Callable[[str], int], real: Callable[[str], int], tokens: int = 1000) -> WordCounts:
    async def ask() -> WordCounts:
        return await checked(await fit(asynchronous(by), 8), asynchronous(real), tokens)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("count", "kinds", "overhead", "per_word"),
    [
        (one_each, 512, 11, 1),
        (long_first, 512, 12, 1),
        (one_group_of_two, 448, 11, 1),
        (a_third_of_two, 512, 30 + 1 - (512 + 171) / 512, (512 + 171) / 512),
    ],
)
def test_overhead_and_tokens_a_word_are_separated_exactly(
    count: Callable[[str], int], kinds: int, overhead: float, per_word: float
) -> None:
    found = asyncio.run(fit(asynchronous(count), 8))
    assert len(found.words) == kinds
    assert found.per_word == pytest.approx(per_word)
    if count is not a_third_of_two:
        assert found.overhead == overhead
        assert not TWO & set(found.words) or count is not one_group_of_two
    else:
        assert found.overhead == pytest.approx(overhead + 1, abs=1.1)  # its first word is of two tokens


@pytest.mark.parametrize("groups", [2, 8])
@pytest.mark.parametrize("asked", [64, 1000])
@pytest.mark.parametrize("count", COUNTERS)
def test_prompts_reach_the_asked_length_within_one_percent(
    count: Callable[[str], int], asked: int, groups: int
) -> None:
    async def ask() -> WordCounts:
        return await checked(await fit(asynchronous(count), groups), asynchronous(count), asked)

    table = {"name": "p", "input_len": asked, "num_prompts": 300, "backend": "openai-chat"}
    subject = ModelTarget(UNKNOWN, "m", word_counts=asyncio.run(ask()))
    made = plan.make(profile.build(table), subject, Seed(3))
    counted = [count(made.payload(i)["messages"][0]["content"]) for i in range(300)]
    assert sum(counted) / 300 == pytest.approx(asked, rel=0.01, abs=0.6)
    if count in (one_each, long_first, one_group_of_two):
        assert set(counted) == {asked}


def test_a_real_request_corrects_what_another_path_counts() -> None:
    assert learned(one_each, lambda text: one_each(text) + 7).tokens(500) == 11 + 7 + 500
    doubled = learned(one_each, lambda text: 2 * one_each(text))
    assert (doubled.per_word, doubled.overhead) == (2, 22)


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
