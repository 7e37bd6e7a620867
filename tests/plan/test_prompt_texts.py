"""Corpus: real text of exactly as many tokens as were asked for, never twice the same first block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.engines.engines import UNKNOWN
from loadgen.plan import plan, profile, prompt_texts
from loadgen.plan.plan import Plan
from loadgen.plan.random_prompts import TokenIds
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.plan.tokenizers import load_tokenizer

pytest.importorskip("transformers")
TOKENIZER = str(Path(__file__).parents[1] / "data" / "tokenizer")
SEED = Seed(7)
SUBJECT = ModelTarget(UNKNOWN, "m", tokenizer=TOKENIZER)


def made(seed: Seed = SEED, subject: ModelTarget = SUBJECT, **keys: Any) -> Plan:
    table = {
        "name": "p",
        "input_len": 64,
        "output_len": 4,
        "num_prompts": 20,
        "prompt_format": "corpus",
        **keys,
    }
    return plan.make(profile.build(table), subject, seed)


def texts(of: Plan) -> list[str]:
    return [of.payload(i)["messages"][0]["content"] for i in range(len(of))]


def test_ids_are_those_of_the_shipped_text() -> None:
    ids = made()
    decode = load_tokenizer(TOKENIZER, "corpus").decode
    alice = " ".join(prompt_texts.load_corpus("").text.split())
    for i in range(20):
        prompt = ids.payload(i)["prompt"]
        assert len(prompt) == ids.requests.input_lens[i] == 64
        passage = " ".join(decode(prompt[6:]).split())
        assert passage in alice or alice.endswith(passage.split(" ALICE'S")[0])
    assert ids.facts.kind == "random"
    assert ids.facts.text == "Alice's Adventures in Wonderland (shipped)"
    assert ids.facts.file == ids.facts.file_digest == ""


def test_a_text_encodes_to_exactly_its_length_without_outer_blanks() -> None:
    chat = made(backend="openai-chat", input_dist="uniform:min=1,max=700", num_prompts=60)
    encode = load_tokenizer(TOKENIZER, "corpus").encode
    counts = [len(encode(text, add_special_tokens=False)) for text in texts(chat)]
    assert counts == chat.requests.input_lens.tolist()
    asked = made(input_dist="uniform:min=1,max=700", num_prompts=60).requests.input_lens
    assert counts == asked.tolist()
    assert [text for text in texts(chat) if text != text.strip()] == []


def test_texts_of_a_group_begin_alike_and_of_no_two_prompts_else() -> None:
    chat = made(backend="openai-chat", prefix_len=200, prefix_groups=2, num_prompts=40)
    begins = {text[:300] for text in texts(chat)}
    assert len(begins) == 2
    assert chat.facts.reusable_tokens == 200 * 38
    ids = made(num_prompts=500)
    assert len({tuple(ids.payload(i)["prompt"][:16]) for i in range(500)}) == 500


def test_a_seed_names_the_same_prompts_in_every_version() -> None:
    assert made().digest() == made().digest() == "94f7e4473f7bbd009edf5bde764be2c6"
    assert made(Seed(8)).digest() != made().digest()


def test_a_text_of_ones_own_is_named_and_changes_the_digest(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("\ufeff" + prompt_texts.load_corpus("").text.upper(), "utf-8")
    ours = made(prompt_corpus=str(own))
    assert (ours.facts.text, ours.facts.file) == (str(own), str(own))
    assert len(ours.facts.file_digest) == 32
    assert ours.digest() != made().digest()
    assert made(prompt_corpus=str(own), prompt_format="auto").digest() == ours.digest()
    # The same first prompts, another text behind them: still another digest.
    before = prompt_texts.load_corpus("")
    tokens, _ = prompt_texts.encode_corpus(before, TOKENIZER)
    shape = made().requests
    assert isinstance(shape, TokenIds)
    shape._text_digest = "0" * 32
    assert shape.digest() != made().requests.digest()
    assert len(tokens.starts) > len(tokens.ids) / 4


def test_a_text_longer_than_one_piece_is_encoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = prompt_texts.encode_corpus(prompt_texts.load_corpus(""), TOKENIZER)
    prompt_texts.encode_corpus.cache_clear()
    monkeypatch.setattr(prompt_texts, "_PIECE", 10_000)
    pieces, _ = prompt_texts.encode_corpus(prompt_texts.load_corpus(""), TOKENIZER)
    prompt_texts.encode_corpus.cache_clear()
    assert abs(len(pieces.ids) - len(whole.ids)) < 40
    assert np.array_equal(pieces.ids[:1000], whole.ids[:1000])


def test_text_without_blanks_between_words_is_cut_at_characters(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("吾輩は猫である。名前はまだ無い。どこで生れたか、とんと見当がつかぬ。\n " * 300, "utf-8")
    chat = made(backend="openai-chat", prompt_corpus=str(own), input_dist="uniform:min=1,max=200")
    encode = load_tokenizer(TOKENIZER, "corpus").encode
    counts = [len(encode(text, add_special_tokens=False)) for text in texts(chat)]
    assert (
        counts
        == made(prompt_corpus=str(own), input_dist="uniform:min=1,max=200").requests.input_lens.tolist()
    )
    assert not any("\ufffd" in text for text in texts(chat))
