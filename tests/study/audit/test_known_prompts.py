"""Prompts of a known seed are recognised by their count, and nothing else is."""

from __future__ import annotations

import os
from itertools import product

import pytest

from builders.loops import loop_over
from builders.required import require
from loadgen.plan.random_prompts import PromptShape
from loadgen.plan.vllm_texts import make_vllm_texts
from loadgen.study.consistency import subject
from loadgen.study.consistency.subject import PROMPTS, recognise_workload

MID, SEPTEMBER = "mid-2025", "september-2025"
LENGTHS = (128, 256, 512, 1024, 2048, 4096)


def count_input_tokens(client: str, input_len: int, requests: int) -> int:
    """The tokens of the first prompts of a client and length, by the table."""
    missing = subject._read_workloads()[subject._CLIENTS[client]][input_len]
    return subject._count_tokens(missing, input_len, requests)


@loop_over(
    ("requests", "total", "input_len", "short", "client"),
    [
        (10, 20431, 2048, 1, MID), (100, 204169, 2048, 9, MID), (200, 408281, 2048, 20, MID),
        (1000, 1021646, 1024, 64, MID), (100, 204357, 2048, 8, SEPTEMBER),
    ],
)  # fmt: skip
def test_a_total_that_was_seen_in_the_field_tells_its_length_and_client(
    requests: int, total: int, input_len: int, short: int, client: str
) -> None:
    found = require(recognise_workload(requests, total))
    assert (found.input_len, found.short, found.client) == (input_len, short, subject._CLIENTS[client])
    assert count_input_tokens(client, input_len, requests) == total


@loop_over(
    ("requests", "total"),
    [
        (100, 204800),  # exact prompts are anybody's
        (100, 204168),
        (99, 204169),
        (1, 2048),
        (5, 10240),
        (10, 10239),  # one token short is anybody's too
        (0, 0),
        (1001, 2046000),  # beyond what was derived
    ],
)
def test_another_total_is_nobodys_mark(requests: int, total: int) -> None:
    assert recognise_workload(requests, total) is None


def test_a_smaller_run_has_the_first_prompts_of_a_greater_one() -> None:
    pairs = ((10, 20431), (100, 204169), (100, 204357))
    ten, hundred, other = (require(recognise_workload(*pair)) for pair in pairs)
    assert (ten.count_shared(hundred), hundred.count_shared(ten), ten.count_shared(other)) == (10, 10, 0)
    assert hundred.has_first(1, 2048)
    assert hundred.has_first(6, 6 * 2048 - 49)
    assert not hundred.has_first(6, 6 * 2048)
    assert not hundred.has_first(PROMPTS + 1, (PROMPTS + 1) * 2048)


def test_no_total_is_the_mark_of_two_workloads() -> None:
    seen: dict[tuple[int, int], tuple[str, int]] = {}
    for client, input_len, requests in product((MID, SEPTEMBER), LENGTHS, range(1, PROMPTS + 1)):
        total = count_input_tokens(client, input_len, requests)
        if requests * input_len - total < subject.LEAST_MISSING:
            continue
        assert seen.setdefault((requests, total), (client, input_len)) == (client, input_len)
    assert len(seen) > PROMPTS


@pytest.mark.parametrize(("input_len", "requests"), [(2048, 200), (1024, 100)])
def test_the_table_is_what_the_real_tokenizer_makes(input_len: int, requests: int) -> None:
    name = os.environ.get("QWEN_TOKENIZER")
    if not name:
        pytest.skip("QWEN_TOKENIZER does not name a Qwen tokenizer's directory")
    prompts = make_vllm_texts("text-vllm-0.9", PromptShape(requests, input_len, 128), name, 0)
    counted = prompts.input_lens.cumsum().tolist()
    assert counted == [count_input_tokens(MID, input_len, n) for n in range(1, requests + 1)]
