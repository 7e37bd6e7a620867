"""Prompts: exact lengths, the same for the same seed, never the same for another stream."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from builders.loops import loop_over, read_tables
from loadgen.plan.model_files import Vocabulary, make_default_vocabulary
from loadgen.plan.planned_requests import PromptRequests
from loadgen.plan.profile import build
from loadgen.plan.random_prompts import PromptShape, TokenIds, parse_range_ratio
from loadgen.plan.request_sources import RandomStream

TABLES = read_tables("random_prompts")

PINNED_IDS = [3594, 4953, 3534, 1871]
PINNED_DIGEST = "5b3b37c33c85f66e40856e93d2bed0a4"
STREAM = RandomStream(seed=7, profile="high-load")
VOCABULARY = make_default_vocabulary()


def token_ids(
    shape: PromptShape, stream: RandomStream = STREAM, vocabulary: Vocabulary = VOCABULARY
) -> TokenIds:
    return TokenIds(shape, vocabulary.draw, stream)


@loop_over(
    ("text", "expected"),
    [
        ("0", (0.0, 0.0)),
        ("0.0", (0.0, 0.0)),
        ("0.25", (0.25, 0.25)),
        ('{"input": 0.1, "output": 0.5}', (0.1, 0.5)),
        ('{"output": 0, "input": 0.9}', (0.9, 0.0)),
    ],
)
def test_range_ratio_reads_what_vllm_takes(text: str, expected: tuple[float, float]) -> None:
    assert parse_range_ratio(text) == expected


def test_every_prompt_has_its_exact_length_and_allowed_ids() -> None:
    allowed = np.array([5, 7, 11, 4000, 151642])
    prompts = token_ids(PromptShape(20, 300, 128), vocabulary=Vocabulary(allowed, "five ids"))
    assert prompts.format == "ids"
    assert prompts.input_lens.tolist() == [300] * 20
    assert prompts.output_lens.tolist() == [128] * 20
    for i in range(20):
        prompt = prompts.prompt(i)
        assert len(prompt) == 300
        assert set(prompt) == set(allowed.tolist())
        assert all(type(token) is int for token in prompt)


@loop_over(("compat", "length", "ratio", "low", "high"), TABLES["range_ratios"])
def test_a_range_ratio_means_what_it_means_to_the_named_client(
    compat: str, length: int, ratio: float, low: int, high: int
) -> None:
    assert parse_range_ratio(str(ratio), compat) == (ratio, ratio)
    prompts = token_ids(PromptShape(20_000, length, length, ratio, ratio, compat=compat))
    for lens in (prompts.input_lens, prompts.output_lens):
        assert lens.dtype == np.int64
        assert (int(lens.min()), int(lens.max())) == (low, high)


def test_without_a_ratio_inferencex_has_fixed_lengths() -> None:
    assert build({"compat": "inferencex"}).range_ratio == "1.0"
    assert build({"compat": "inferencex", "range_ratio": "0.8"}).range_ratio == "0.8"
    assert build({"compat": "sglang"}).range_ratio == "0.0"


def test_stream_names_that_run_together_are_still_two_streams() -> None:
    assert RandomStream(1, "12").key("x") != RandomStream(11, "2").key("x")
    assert RandomStream(1, "a", purpose="measure").key("b") != RandomStream(1, "a", purpose="warmup").key("b")


class Texts(PromptRequests):
    """Prompts that are given."""

    format = "text"

    def __init__(self, texts: list[str], output_len: int = 1) -> None:
        self._texts = texts
        self.input_lens = np.array([len(text) for text in texts])
        self.output_lens = np.full(len(texts), output_len)

    def prompt(self, i: int) -> str:
        return self._texts[i]


@loop_over(
    ("one", "other"),
    [
        (Texts(["ab", "c"]), Texts(["ab", "d"])),
        (Texts(["ab", "cd"]), Texts(["a,", "cd"])),
        (Texts(["ab"], 1), Texts(["ab"], 2)),
        (Texts(["ab"]), Texts(["ab", "ab"])),
        (token_ids(PromptShape(1, 4, 1)), token_ids(PromptShape(1, 5, 1))),
    ],
)
def test_the_digest_tells_plans_apart(one: PromptRequests, other: PromptRequests) -> None:
    assert one.digest() == one.digest()
    assert one.digest() != other.digest()


def test_the_digest_reads_no_more_than_64_prompts() -> None:
    texts = [f"text {i}" for i in range(100)]
    assert Texts(texts).digest() == Texts([*texts[:64], *("-" * 7 for _ in range(36))]).digest()


@pytest.mark.whole
def test_a_seed_names_the_same_plan_in_every_version_and_process() -> None:
    """Pinned: a change here means that a recorded seed no longer gives the run it was recorded for."""
    script = (
        "from loadgen.plan.random_prompts import PromptShape, TokenIds\n"
        "from loadgen.plan.request_sources import RandomStream\n"
        "from loadgen.plan.model_files import make_default_vocabulary\n"
        "shape, stream = PromptShape(10, 64, 16, 0.5, 0.5, 8), RandomStream(7, 'high-load')\n"
        "p = TokenIds(shape, make_default_vocabulary().draw, stream)\n"
        "print(p.prompt(3)[8:12], p.digest())\n"
    )
    root = Path(__file__).parents[3]
    ran = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    here = token_ids(PromptShape(10, 64, 16, 0.5, 0.5, 8))
    assert ran.stdout == f"{here.prompt(3)[8:12]} {here.digest()}\n"
    assert here.prompt(3)[8:12] == PINNED_IDS
    assert here.digest() == PINNED_DIGEST
