"""vLLM's `prefix_repetition`: groups of prompts with one beginning, as many in each."""

from __future__ import annotations

import pytest

from builders.drop_in import planned
from loadgen.base.errors import UsageError

SIZES = (
    "--prefix-repetition-prefix-len 32 --prefix-repetition-suffix-len 8 --prefix-repetition-num-prefixes 3"
)
COMMAND = f"--dataset-name prefix_repetition --num-prompts 14 {SIZES}".split()


@pytest.fixture(autouse=True)
def _transformers() -> None:
    pytest.importorskip("transformers", reason="the tokenizer extra is not installed")


def test_all_but_the_first_prompt_of_a_prefix_can_use_it_again() -> None:
    made = planned([*COMMAND, "--disable-shuffle"])
    prompts = [made.payload(i)["prompt"] for i in range(len(made))]
    starts = {prompt[:12] for prompt in prompts}
    assert (len(prompts), len(starts)) == (12, 3)
    assert made.facts.reusable_tokens == 9 * 32
    assert made.facts.sent == 12
    assert made.notes == ("12 of 14 requests: as many for each of 3 prefixes",)


def test_its_answers_may_end_by_themselves_as_in_vllm() -> None:
    made = planned(COMMAND)
    assert not made.profile.ignore_eos
    assert made.payload(0)["max_tokens"] == 128


def test_a_seed_that_numpy_does_not_take_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--seed 4294967296: prefix_repetition takes 0 to 4294967295"):
        planned([*COMMAND, "--seed", "4294967296"])
