from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from builders import recorded
from builders.loops import loop_over, loop_over_named, read_tables
from loadgen.records.decoded_stream import count_prompt, count_tokens, find_fault
from loadgen.transport.failure import Failure, FailureKind
from loadgen.wire.openai import FAILED_ENDS, Chat, Completions, summarize
from records.test_decode import DONE, fixed, list_events, stream

TABLES = read_tables("decoded_stream")

K = FailureKind


# Messages, the tokens of each that has some, their total, whether it is the server's, whether each is known.
@loop_over_named(("sent", "tokens", "total", "has_usage", "exact"), TABLES["tokens"])
def test_tokens_are_laid_to_the_messages_that_carried_them(
    sent: list[Any], tokens: list[list[int]], total: int, has_usage: bool, exact: bool
) -> None:
    messages = Completions().read_messages(b"\n".join(map(msgspec.json.encode, sent)))
    counted = count_tokens(messages, summarize(messages))
    assert np.stack([counted.messages, counted.tokens], axis=1).tolist() == tokens
    assert (counted.total, counted.usage, counted.exact) == (total, has_usage, exact)


@loop_over("indent", [None, 1])
def test_a_prompts_count_is_read_of_an_event_over_several_lines(indent: int | None) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}
    lines = json.dumps(usage, indent=indent).split("\n")
    body = "".join(f"data: {line}\n" for line in lines) + "\ndata: [DONE]\n\n"
    assert count_prompt(Chat(), body.encode()) == 7


def test_a_token_over_several_lines_is_one() -> None:
    text = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
    event = "".join(f"data: {line}\n" for line in json.dumps(text, indent=1).split("\n")) + "\n"
    assert Chat().has_token(event.encode())
    assert Chat().count_token_messages(event.encode() * 3) == 3
    pair = f"data: {json.dumps(text)}\n" * 2
    assert Chat().count_token_messages(f"{pair}\n".encode()) == 2


@loop_over(
    ("body", "fault"),
    [
        (b'{"error": {"message": "pull it first", "code": 404}}', "pull it first"),
        (b'data: {"error": {"message": "pull it first"}}\n\ndata: [DONE]\n\n', "pull it first"),
        (b'event: error\ndata: {"message": "pull it first"}\n\n', "pull it first"),
        (b'{"object": "error", "message": "pull it first", "code": 400}', "pull it first"),
        (b'{"detail": "pull it first"}', "pull it first"),
        (b'{"choices": [{"index": 0, "message": {"content": "a"}}], "message": "no"}', ""),
        (b"text", ""),
    ],
)
def test_an_error_with_status_200_is_found(body: bytes, fault: str) -> None:
    found = find_fault(Chat(), body)
    assert (fault in found, bool(found)) == (True, bool(fault))


def data(fields: Any) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(fields)


DIED = Failure(K.IN_BAND, "worker died")


# Events, and why they are no answer: 2 of the tokens asked for came, and no usage.
@loop_over_named(("row", "kind", "detail", "tokens"), TABLES["cut_short"])
def test_an_answer_that_was_cut_is_a_failure_that_says_how(
    row: list[Any], kind: str, detail: str, tokens: int
) -> None:
    events, failure = list_events(row), Failure(K(kind), detail)
    record = recorded.decode("completions", stream(*events))
    assert (record.failure, record.tokens.tolist()) == (failure, [1] * tokens)
    crlf = [event.replace(b"\n", b"\r\n") for event in events]
    assert recorded.decode("completions", stream(*crlf)).failure == failure
    assert recorded.decode("completions", [b"".join(events)], status=200).failure == failure


@loop_over("error", ["", 0, [], {}, {"message": " "}, {"code": 0, "message": ""}, {"type": ""}])
def test_an_error_that_holds_nothing_beside_choices_is_none(error: object) -> None:
    choices = [{"text": "a"}], [{"text": "b"}], [{"text": "", "finish_reason": "length"}]
    events = [*(data({"choices": each, "error": error}) for each in choices), DONE]
    record = recorded.decode("completions", stream(*events))
    assert (record.failure, record.tokens.tolist()) == (None, [1, 1])


@loop_over("row", TABLES["odd_but_whole"])
def test_what_is_odd_but_whole_is_a_success(row: list[Any]) -> None:
    record = recorded.decode("completions", stream(*list_events(row)))
    assert (record.failure, record.tokens.tolist()) == (None, [1, 1])


@loop_over("reason", FAILED_ENDS)
@loop_over("api", ["completions", "chat", "generate"])
@loop_over("streamed", [True, False])
def test_a_finish_reason_that_is_a_failure_is_one(reason: str, api: str, streamed: bool) -> None:
    choice = {"index": 0, "text": "b", "delta": {"content": "b"}, "finish_reason": reason}
    last: dict[str, Any] = {"choices": [choice]}
    why = FAILED_ENDS[reason]
    if api == "generate":
        why = "no room"
        finish = {"type": reason, "message": why}
        last = {"text": "b", "meta_info": {"completion_tokens": 1, "finish_reason": finish}}
    reads = stream(data(last), DONE) if streamed else fixed(b"200 OK", msgspec.json.encode(last))
    record = recorded.decode(api if streamed else f"{api}-nostream", reads)
    assert record.failure == Failure(K.ABORTED, f"finish_reason {reason}: {why}")
    assert record.finish_reason == reason


@pytest.mark.parametrize("streamed", [True, False])
def test_a_whole_answer_that_is_a_detail_is_an_error(streamed: bool) -> None:
    name = "completions" if streamed else "nostream"
    body = b'{\n "detail": "worker died"\n}'
    assert recorded.decode(name, fixed(b"200 OK", body)).failure == DIED
