"""Answers without usage are counted by the model's tokenizer, part by part; no text stays that need not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from builders import recorded
from builders.loops import loop_over, loop_over_named, read_tables
from builders.tiny_tokenizer import make_tokenizer
from fakes.scripted_server import DONE, HEAD, LAST, chunk, token, usage
from loadgen.base.errors import UsageError
from loadgen.figures.metrics import compute_metrics
from loadgen.figures.per_request import MetricOptions
from loadgen.records import text_tokens
from loadgen.records.decode import Decoder
from loadgen.records.record import UNKNOWN, Record, Records
from loadgen.records.text_tokens import TextTokenizer
from loadgen.transport.failure import Failure, FailureKind
from loadgen.wire.openai import DIALECTS

TABLES = read_tables("text_tokens")

MS = 1_000_000
PLANNED = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("model"))


def stream(*events: bytes) -> list[bytes]:
    return [HEAD, *map(chunk, events), LAST]


def chat(*deltas: dict[str, Any], index: int = 0) -> list[bytes]:
    """Chat events, the last with a finish reason."""
    choices = [{"index": index, "delta": delta} for delta in deltas]
    choices.append({"index": index, "delta": {}, "finish_reason": "stop"})
    return [b"data: %b\n\n" % msgspec.json.encode({"choices": [choice]}) for choice in choices]


def decoded(name: str, reads: list[bytes], keep: bool = True, planned: int = PLANNED) -> Record:
    """The record of plan index 3, whose text is kept if its tokens are not known otherwise."""
    lengths = np.full(4, planned, np.int64)
    dialect = DIALECTS["chat" if "chat" in name else "completions"]
    decoder = Decoder(dialect, "nostream" not in name, planned=(lengths, lengths), keep_uncounted=keep)
    return decoder.decode(recorded.capture(reads))


CALL = {"tool_calls": [{"function": {"name": "now", "arguments": '{"a"'}}]}
REST = {"tool_calls": [{"function": {"arguments": ": 1}"}}]}
TWO = [
    b"data: %b\n\n" % msgspec.json.encode({"choices": [{"index": at, "text": text, "finish_reason": reason}]})
    for at, text, reason in ((0, "He", None), (1, "Wo", None), (0, "llo", "stop"), (1, "rld", "stop"))
]
WHOLE = b'{"choices":[{"text":"Hello","finish_reason":"stop"}]}'
USED = b'{"choices":[{"text":"Hello","finish_reason":"stop"}],"usage":{"completion_tokens":2}}'


def answer(body: bytes) -> list[bytes]:
    return [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body), body]


@loop_over_named(
    ("name", "reads", "text"),
    {
        "a stream": ("completions", stream(token("a"), token("bc", "stop"), DONE), "abc"),
        "usage": ("completions", stream(token("a"), token("b", "stop"), usage(2), DONE), None),
        "a token each": ("completions", stream(*[token("a")] * 7, token("b", "length"), DONE), None),
        "fewer": ("completions", stream(*[token("a")] * 6, token("b", "length"), DONE), "aaaaaab"),
        "long": ("completions", stream(*[token("a")] * 98, token("b"), token("c", "stop")), "a" * 98 + "bc"),
        "two choices": ("completions", stream(*TWO, DONE), "HelloWorld"),
        "reasoning": ("chat", stream(*chat({"reasoning": "so "}, {"content": "yes"}), DONE), "so yes"),
        "a tool call": ("chat", stream(*chat(CALL, REST), DONE), 'now{"a": 1}'),
        "in one piece": ("completions-nostream", answer(WHOLE), "Hello"),
        "in one piece, usage": ("completions-nostream", answer(USED), None),
    },
)
def test_the_text_is_kept_only_where_tokens_are_unknown(
    name: str, reads: list[bytes], text: str | None
) -> None:
    assert decoded(name, reads).text == text
    assert decoded(name, reads, keep=False).text is None


def part(first: int, texts: list[str | None], messages: int = 4, **fields: Any) -> Records:
    """Requests from a plan index on, each so many messages a millisecond apart and no usage."""
    arrival_ns = np.arange(1, messages + 1, dtype=np.int64) * MS
    known = {"exact_tokens": False, "output_tokens": messages, "finish_reason": "stop", **fields}
    return Records.from_records(
        Record(
            i, 0, 1, 1, 9 * MS, arrival_ns=arrival_ns, tokens=np.ones(messages, np.int64),
            planned_output=PLANNED, text=text, **known,
        )
        for i, text in enumerate(texts, first)
    )  # fmt: skip


def revised(parts: list[Records], tokenizer: TextTokenizer | None, keep_text: bool = False) -> Records:
    revise, why = text_tokens.make_revision(parts, tokenizer, keep_text)
    assert why == ""
    return Records.join(map(revise, parts))


def test_counts_are_those_of_the_model_and_spread_over_messages(model: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(model)
    text = "def sort(values): return sorted(values, key=len)"
    as_vllm = len(theirs(text, add_special_tokens=False).input_ids)
    parts = [part(0, [text, None], usage=False), part(2, [text])]
    records = revised(parts, text_tokens.find_text_tokenizer([None, str(model)]))
    assert as_vllm > 8
    assert records.output_tokens.tolist() == [as_vllm, 4, as_vllm]
    assert records.text_tokens.tolist() == [as_vllm, UNKNOWN, as_vllm]
    assert records.sum_message_tokens().tolist() == [as_vllm, 4, as_vllm]
    assert np.ptp(records.tokens[:4]) <= 1
    assert records.texts == [None] * 3
    metrics = compute_metrics(records, MetricOptions())
    assert (metrics.counted_by_tokenizer, metrics.counted_by_messages, metrics.uncounted) == (2, 1, 1)
    assert metrics.total_output_tokens == 2 * as_vllm + 4
    assert metrics.itl.mean_ms == pytest.approx(1.0)
    assert metrics.tpot.mean_ms == pytest.approx((2 * 3 / (as_vllm - 1) + 1.0) / 3)


@pytest.mark.parametrize(
    ("keep_text", "texts"), [(True, ["one two", "three"]), (False, [None, None])], ids=["kept", "dropped"]
)
def test_texts_go_once_counted_unless_they_were_asked_for(
    model: Path, keep_text: bool, texts: list[str | None]
) -> None:
    parts = [part(0, ["one two"]), part(1, ["three"], failure=Failure(FailureKind.STALL, "late"))]
    records = revised(parts, TextTokenizer(model), keep_text)
    assert records.texts == texts
    assert records.text_tokens[1] == UNKNOWN


@loop_over(("reason", "planned", "tokens"), TABLES["settled"])
def test_an_answer_that_ended_by_length_has_the_length_requested(
    reason: str, planned: int, tokens: int
) -> None:
    assert text_tokens.settle_count(100, reason, planned) == tokens


@pytest.mark.parametrize("messages", [UNKNOWN, 0, 1, 64])
def test_messages_are_not_compared_with_a_length_that_is_not_known(messages: int) -> None:
    assert not text_tokens.has_one_token_each("length", messages, UNKNOWN)


def test_an_answer_in_one_piece_has_its_tokens(model: Path) -> None:
    records = revised([part(0, ["one two three"], messages=0, output_tokens=UNKNOWN)], TextTokenizer(model))
    count = TextTokenizer(model).count("one two three")
    assert compute_metrics(records, MetricOptions(streamed=False)).total_output_tokens == count > 1


def test_half_a_character_is_counted_too(model: Path) -> None:
    assert TextTokenizer(model).count("\ud83d") == TextTokenizer(model).count("?") == 1


def test_a_tokenizer_that_cannot_be_read_costs_the_counts_alone(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    parts = [part(0, ["text"])]
    revise, why = text_tokens.make_revision(parts, TextTokenizer(tmp_path))
    assert why.startswith(f"{tmp_path}/tokenizer.json: cannot be read (")
    assert "pass another --tokenizer" in why
    assert [revise(each).output_tokens.tolist() for each in parts] == [[4]]
    with pytest.raises(UsageError, match="cannot be read"):
        TextTokenizer(tmp_path).count("text")
