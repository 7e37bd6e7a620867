"""Prefix groups: who shares what, how much of it a cache can hold, and one group is what it always was."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from loadgen.engines.engines import UNKNOWN
from loadgen.plan import plan, profile
from loadgen.plan.model_files import make_default_vocabulary
from loadgen.plan.random_prompts import PromptShape, TokenIds
from loadgen.plan.request_sources import ModelTarget, RandomStream, Seed

STREAM = RandomStream(seed=7, profile="high-load")


def token_ids(groups: int, zipf: float = 0.0, n: int = 200) -> TokenIds:
    shape = PromptShape(n, 20, 4, prefix_len=32, prefix_groups=groups, prefix_zipf=zipf)
    return TokenIds(shape, make_default_vocabulary().draw, STREAM)


def prefixes(made: TokenIds) -> list[tuple[int, ...]]:
    return [tuple(made.prompt(i)[:32]) for i in range(len(made.input_lens))]


def test_each_prompt_begins_with_the_prefix_of_its_group() -> None:
    made = token_ids(8)
    assert sorted(Counter(prefixes(made)).values()) == [25] * 8
    assert len({tuple(made.prompt(i)[32:]) for i in range(200)}) == 200
    assert made.input_lens.tolist() == [52] * 200
    assert prefixes(made) != sorted(prefixes(made), key=prefixes(made).index)  # in random order


def test_the_first_group_is_the_prefix_of_a_run_without_groups() -> None:
    alone, grouped = token_ids(1), token_ids(8)
    assert set(prefixes(alone)) < set(prefixes(grouped))
    assert [alone.prompt(i)[32:] for i in range(9)] == [grouped.prompt(i)[32:] for i in range(9)]


@pytest.mark.parametrize("zipf", [0.5, 1.0, 2.0])
def test_popularity_follows_zipfs_law(zipf: float) -> None:
    counts = np.array(sorted(Counter(prefixes(token_ids(5, zipf, 5000))).values(), reverse=True))
    shares = np.arange(1, 6) ** -zipf
    expected = 5000 * shares / shares.sum()
    assert float((((counts - expected) ** 2) / expected).sum()) < 18.5  # chi², 4 degrees: one in a thousand


@pytest.mark.parametrize(
    ("groups", "n", "reusable"), [(1, 200, 199), (8, 200, 192), (300, 200, 0), (1, 0, 0)]
)
def test_all_but_the_first_prompt_of_a_group_can_be_reused(groups: int, n: int, reusable: int) -> None:
    assert token_ids(groups, n=n).reusable_tokens == 32 * reusable


def test_more_groups_than_are_kept_are_made_again_the_same() -> None:
    made = token_ids(300, n=600)
    assert prefixes(made) == prefixes(made)
    assert len(set(prefixes(made))) == 300


def test_groups_and_popularity_change_the_digest() -> None:
    digests = {token_ids(groups, zipf).digest() for groups, zipf in [(1, 0), (2, 0), (8, 0), (8, 1)]}
    assert len(digests) == 4
    assert token_ids(8, 1).digest() == token_ids(8, 1).digest()


def built(**keys: object) -> plan.Plan:
    return plan.make(
        profile.build({"name": "p", "input_len": 16, **keys}), ModelTarget(UNKNOWN, "m"), Seed(7)
    )


def test_the_expected_reuse_is_a_fact_where_the_number_of_prompts_is() -> None:
    keys = {"prefix_len": 48, "prefix_groups": 4}
    facts = built(num_prompts=100, **keys).facts
    assert (facts.reusable_tokens, facts.reuse) == (96 * 48, 96 * 48 / (100 * 64))
    assert built(num_prompts=100).facts.reusable_tokens == 0
    assert built(duration=5.0, max_concurrency=2, **keys).facts.reusable_tokens is None
