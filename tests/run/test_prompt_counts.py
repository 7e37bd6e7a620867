"""Prompt counts: what a server counts is learned from a few texts, whatever its tokenizer makes of words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from builders.loops import loop_over
from loadgen.base.errors import MeasureError
from loadgen.plan.request_sources import WordCounts, list_common_words
from loadgen.run.prompt_counts import Count, correct_counts, fit_counts

TWO = frozenset(list_common_words()[64:128])  # one group
THIRD = frozenset(list_common_words()[::3])
# Tokens of each of the first 128 common words, by a byte-pair vocabulary of 6000 entries; then 2 in the mean.
SMALL = (
    "1111111111111111111121112111111111111221111111111111111211111111"
    "1111111111111113111111131111114111321121111212111321311111112111"
)
SMALL_TOKENS = dict(zip(list_common_words(), map(int, SMALL + "123" * 128), strict=True))


def one_each(text: str) -> int:
    return 11 + len(text.split())


def long_first(text: str) -> int:
    return 12 + len(text.split())  # its first word is two tokens


def one_group_of_two(text: str) -> int:
    return 11 + sum(2 if word in TWO else 1 for word in text.split())


def a_third_of_two(text: str) -> int:
    return 12 + sum(2 if word in THIRD else 1 for word in text.split())


def small_vocabulary(text: str) -> int:
    return 10 + sum(SMALL_TOKENS[word] for word in text.split())


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
        return await correct_counts(await fit_counts(asynchronous(by), groups), asynchronous(real), tokens)

    return asyncio.run(ask())


@loop_over(
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
    found = asyncio.run(fit_counts(asynchronous(count, asked), 8))
    assert (len(found.words), found.overhead, found.per_word) == (kinds, overhead, per_word)
    assert len(asked) == (17 if count is small_vocabulary else 9)
    if per_word == 1:
        assert {count(f"the {word}") - count("the") for word in found.words} == {1}


def cut_at(most: int) -> Callable[[str], int]:
    return lambda text: min(one_each(text), most)


def cut_in_steps(text: str) -> int:
    """As a context of 1024 tokens that drops a piece of itself until the prompt fits."""
    tokens = one_each(text)
    return tokens if tokens <= 1024 else 1024 - (-tokens % 381)


def by_blocks(text: str) -> int:
    return -(-one_each(text) // 16) * 16


CUT = (
    r"the server counts {} tokens for any longer prompt \({} words as well as {}\), as one that cuts prompts "
)


@loop_over("path", [one_each, None])
@loop_over("most", [300, 600, 1004, 1024, 1500, 1900, 1970])
def test_a_server_that_cuts_prompts_is_refused_with_its_cap(
    most: int, path: Callable[[str], int] | None
) -> None:
    asked: list[str] = []

    async def ask() -> None:
        await correct_counts(
            await fit_counts(asynchronous(path or cut_at(most)), 8), asynchronous(cut_at(most), asked), 2000
        )

    with pytest.raises(
        MeasureError, match=CUT.format(most, r"\d+", r"\d+") + r".*num_ctx.*--random-input-len"
    ):
        asyncio.run(ask())
    assert max(len(text.split()) for text in asked) <= 4000
    if path is not None:
        assert max(len(text.split()) for text in asked) <= 2000


def test_a_prompt_that_is_shorter_than_the_cap_has_its_length() -> None:
    for most in (101, 300, 513, 600):
        counts = learned(cut_at(most), cut_at(most), 100)
        assert counts.tokens(counts.count_words(100 - counts.overhead)) == pytest.approx(100, rel=0.001)


def test_a_count_that_does_not_grow_with_the_prompt_is_refused() -> None:
    with pytest.raises(MeasureError, match=CUT.format(9, 65, 513)):
        learned(lambda text: 9, lambda text: 9)


@loop_over(
    "count", [cut_in_steps, lambda text: 7 * len(text.split()) % 999 + 1, lambda text: one_each(text) // 3]
)
def test_a_count_that_is_not_of_the_words_is_refused(count: Callable[[str], int]) -> None:
    with pytest.raises(
        MeasureError, match=r"counts \d+ tokens in a prompt of \d+ words and \d+ in one of \d+, so"
    ):
        learned(one_each, count, 2000)


@loop_over("asked", [100, 1000, 8000])
def test_a_count_by_blocks_or_a_long_template_is_no_cut(asked: int) -> None:
    assert learned(by_blocks, by_blocks, asked).tokens(asked) == pytest.approx(asked + 11, abs=16)
    assert learned(one_each, lambda text: one_each(text) + 900, asked + 900).overhead == 911


def test_prompts_without_a_cached_part_are_counted_right() -> None:
    """A server that counts what it computes: nothing of a beginning that it has had before."""
    seen: set[tuple[str, ...]] = set()

    def computed(text: str) -> int:
        known = text.split()
        # From eight words on, as caches go by blocks: two random prompts may begin with two equal words.
        new = next((n for n in range(len(known), 7, -1) if tuple(known[:n]) in seen), 0)
        seen.update(tuple(known[:n]) for n in range(8, len(known) + 1))
        return 11 + len(known) - new

    assert learned(computed, computed, 500) == WordCounts(list_common_words(), 11)


@loop_over("per_word", [0.02, 0.4])
def test_no_prompt_has_more_than_twice_the_words_it_needs(per_word: float) -> None:
    with pytest.raises(MeasureError):
        learned(one_each, lambda text: 5 + int(per_word * len(text.split())), 2000)
