"""Words: without a tokenizer a text API is sent common words, as many as its count asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen.base.errors import UsageError
from loadgen.engines.engine import Engine
from loadgen.engines.engines import ENGINES, HOSTED, UNKNOWN
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import ModelTarget, Seed, WordCounts

SEED = Seed(7)
TEXT_ONLY = next(engine for engine in ENGINES if not engine.takes_ids)
COUNTS = WordCounts(overhead=11, how="the server counts so")


@pytest.fixture(autouse=True)
def _no_tokenizer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))


def made(
    counts: WordCounts | None = COUNTS, seed: Seed = SEED, engine: Engine = UNKNOWN, **keys: Any
) -> Plan:
    table = {
        "name": "p",
        "input_len": 64,
        "output_len": 4,
        "num_prompts": 20,
        "backend": "openai-chat",
        **keys,
    }
    return plan.make(profile.build(table), ModelTarget(engine, "m", word_counts=counts), seed)


def texts(of: Plan) -> list[str]:
    return [of.payload(i)["messages"][0]["content"] for i in range(len(of))]


@pytest.mark.parametrize(
    ("engine", "backend"), [(UNKNOWN, "openai-chat"), (HOSTED, "openai-chat"), (TEXT_ONLY, "openai")]
)
def test_a_text_api_without_a_tokenizer_gets_words(engine: Engine, backend: str) -> None:
    of = made(engine=engine, backend=backend)
    assert (of.requests.format, of.facts.kind, of.facts.text) == ("words", "random", "512 common words")
    assert of.notes[0] == "prompts of words: the server counts so"


def test_the_server_is_to_be_asked_first_where_words_are_sent() -> None:
    def asked(counts: WordCounts | None = None, **keys: Any) -> bool:
        subject = ModelTarget(UNKNOWN, "m", word_counts=counts)
        return plan.is_counted_by_server(profile.build(keys), subject)

    assert asked(backend="openai-chat")
    assert asked(prompt_format="words")
    assert not asked(COUNTS, backend="openai-chat")
    assert not asked()
    assert not asked(backend="openai-chat", dataset_path="rows.jsonl")
    assert made(None).notes[0] == "prompts of words: one token a word is assumed: the server was not asked"


def test_a_prompt_has_the_words_that_make_its_tokens() -> None:
    of = made(
        WordCounts(("cat", "dog"), overhead=10.5, per_word=1.5, how="x"), input_dist="uniform:min=13,max=700"
    )
    lens = [round(10.5 + 1.5 * len(text.split())) for text in texts(of)]
    assert max(abs(a - b) for a, b in zip(lens, of.requests.input_lens.tolist(), strict=True)) <= 2
    assert {word for text in texts(of) for word in text.split()} == {"the", "cat", "dog"}
    assert all(text.startswith("the ") for text in texts(of))


def test_prompts_of_a_group_begin_with_the_same_words() -> None:
    of = made(prefix_len=100, prefix_groups=4, num_prompts=40)
    assert of.requests.input_lens.tolist() == [164] * 40
    assert [len(text.split()) + 11 for text in texts(of)] == [164] * 40
    begins = [tuple(text.split()[:100]) for text in texts(of)]
    assert len(set(begins)) == 4
    assert len({text.split()[100] for text in texts(of)}) > 20
    assert of.facts.reusable_tokens == 36 * 100
    alone = made(prefix_len=100, num_prompts=40)
    assert {tuple(text.split()[:100]) for text in texts(alone)} < set(begins)


def test_a_seed_names_the_same_prompts_in_every_version() -> None:
    assert made().digest() == "728f424f46bf6486d3d5e5e4fdd1389a"
    assert texts(made())[3].split()[:4] == ["the", "published", "mean", "anything"]
    assert len({made().digest(), made(prefix_len=9).digest(), made(WordCounts(overhead=12)).digest()}) == 3


@loop_over("per_word", [1.0, 1.328, 4.7])
@loop_over("keys", [{"input_len": 33}, {"input_dist": "uniform:min=30,max=90"}])
def test_rounding_in_one_prompt_is_made_good_in_the_next(per_word: float, keys: dict[str, Any]) -> None:
    counts = WordCounts(overhead=10.4, per_word=per_word, how="x")
    of = made(counts, num_prompts=50, **keys)
    asked = of.requests.input_lens.cumsum().tolist()
    reached = [counts.tokens(len(text.split())) for text in texts(of)]
    behind = [sum(reached[: i + 1]) - asked[i] for i in range(50)]
    assert max(map(abs, behind)) <= per_word / 2 + 1e-6


def test_prompts_shorter_than_the_template_are_refused_or_lengthened() -> None:
    with pytest.raises(
        UsageError, match="--random-input-len 5: the server adds 11 tokens to each prompt: give 12"
    ):
        made(input_len=5)
    of = made(input_dist="uniform:min=1,max=30", num_prompts=100)
    assert int(of.requests.input_lens.min()) == 12
