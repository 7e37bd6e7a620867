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
from records.test_decode import DONE, USAGE, A, B, event, fixed, stream

TABLES = read_tables("decoded_stream")

K = FailureKind
CUT = Failure(K.TRUNCATED, "[DONE] without a finish reason or usage, after 2 chunks")


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


STOPPED = event("c", "stop")
DETAIL = data({"detail": "worker died"})
DIED = Failure(K.IN_BAND, "worker died")

# Events, and why they are no answer: 2 of the tokens asked for came, and no usage.
CUT_SHORT: dict[str, tuple[list[bytes], Failure, int]] = {
    "silent_short": ([A, B, DONE], CUT, 2),
    "silent_short, by an empty reason": ([event("a", ""), event("b", ""), DONE], CUT, 2),
    "inband_detail": ([A, B, DETAIL, DONE], DIED, 2),
    "inband_detail_1": ([DETAIL, DONE], DIED, 0),
    "inband_detail, then more": ([A, DETAIL, B, STOPPED, USAGE, DONE], DIED, 1),
    "inband_detail, a list": (
        [A, data({"detail": [{"msg": "no"}]}), DONE],
        Failure(K.IN_BAND, '[{"msg":"no"}]'),
        1,
    ),
    "inband_message": ([A, data({"message": "no", "code": 7}), DONE], Failure(K.IN_BAND, "7: no"), 1),
    "inband_errors": (
        [data({"errors": [{"message": "no"}]}), DONE],
        Failure(K.IN_BAND, '[{"message":"no"}]'),
        0,
    ),
    "inband_msg": ([data({"status": 9, "msg": "no"}), DONE], Failure(K.IN_BAND, "no"), 0),
    "another API": (
        [data({"message": {"role": "assistant", "content": "a"}, "done": False}), data({"done": True}), DONE],
        Failure(
            K.MALFORMED,
            "no chunk has choices: is it another API? the first: "
            '{"message":{"role":"assistant","content":"a"},"done":false}',
        ),
        0,
    ),
    "inband, blank": ([A, data({"detail": " "}), DONE], Failure(K.IN_BAND, "an error without a message"), 1),
    "event_error_only": (
        [A, B, b"event: error\n\n", DONE],
        Failure(K.IN_BAND, "an error event without data"),
        2,
    ),
    "event_error, detail": ([A, B, b"event: error\n" + DETAIL, DONE], DIED, 2),
    "event_error, words": ([A, B, b"event: error\ndata: worker died\n\n", DONE], DIED, 2),
    "event_error, a choice": ([A, b"event:error\n" + B, DONE], Failure(K.IN_BAND, B[6:].decode().strip()), 1),
    "event_error, after the end": ([A, STOPPED, USAGE, b"event: error\n" + DETAIL, DONE], DIED, 2),
    "error_null": (
        [A, B, data({"error": None}), DONE],
        Failure(K.TRUNCATED, CUT.detail.replace("2", "3")),
        2,
    ),
    "error_false": (
        [A, B, data({"error": False}), DONE],
        Failure(K.TRUNCATED, CUT.detail.replace("2", "3")),
        2,
    ),
    "error_empty": ([A, B, data({"error": ""}), DONE], Failure(K.IN_BAND, "an error without a message"), 2),
    "error_zero": ([A, B, data({"error": 0}), DONE], Failure(K.IN_BAND, "0"), 2),
    "error_number": ([A, data({"error": 503, "choices": []}), DONE], Failure(K.IN_BAND, "503"), 1),
    "error_list": ([A, data({"error": [{"message": "worker died"}]}), DONE], DIED, 1),
    "error_no_list": ([A, data({"error": []}), DONE], Failure(K.IN_BAND, "an error without a message"), 1),
    "error_beside_a_token": (
        [A, data({"choices": [{"text": "b"}], "error": {"code": 5}}), DONE],
        Failure(K.IN_BAND, "5"),
        1,
    ),
    "error_true": ([A, B, data({"error": True}), DONE], Failure(K.IN_BAND, "an error without a message"), 2),
    "field_error": ([A, B, b'error: {"code":500,"message":"worker died"}\n\n', DONE], DIED, 2),
    "field_error, bare": ([A, B, b"error: worker died\n\n", DONE], DIED, 2),
    "field_error, at the end": ([A, B, b"error: worker died"], DIED, 2),
    "usage runs along": (
        [data({"choices": [{"text": "a"}], "usage": {"completion_tokens": n}}) for n in (1, 2)] + [DONE],
        CUT,
        2,
    ),
}


@loop_over("name", CUT_SHORT)
def test_an_answer_that_was_cut_is_a_failure_that_says_how(name: str) -> None:
    events, failure, tokens = CUT_SHORT[name]
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


@loop_over(
    "events",
    [
        [A, STOPPED, DONE],
        [A, B, USAGE, DONE],
        [A, data({"error": None}), STOPPED, DONE],
        [A, data({"error": False, "choices": []}), STOPPED, DONE],
        [A, data({}), STOPPED, DONE],
        [A, data({"status": "alive"}), STOPPED, DONE],
        [b"event: message\n" + A, b"event: ping\ndata: {}\n\n", STOPPED, DONE],
        [A, data({"detail": None, "message": None}), STOPPED, DONE],
        [A, b"data:\n\n", b"data: \n\n", STOPPED, b"data\n\n", DONE],
        [b"data: \n\n" * 20, A, STOPPED, DONE],
    ],
)
def test_what_is_odd_but_whole_is_a_success(events: list[bytes]) -> None:
    record = recorded.decode("completions", stream(*events))
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
