"""/v1/responses: as vLLM and SGLang were recorded, in OpenAI's other forms, and what is sent."""

from __future__ import annotations

from typing import Any

import msgspec

from builders import recorded
from builders.loops import loop_over, read_tables
from loadgen.features.apis.responses_api import Responses, convert_body, select_new_items
from loadgen.records.record import Record
from loadgen.transport.failure import Failure, FailureKind

TABLES = read_tables("responses_api")


def decode(events: list[dict[str, Any]], named: bool = True) -> Record:
    """The Record of these events, each in a read of its own, with or without its name before it."""
    lines = [b"data: %b\n\n" % msgspec.json.encode(event) for event in events]
    if named:
        lines = [
            b"event: %b\n" % event["type"].encode() + line for event, line in zip(events, lines, strict=True)
        ]
    return recorded.decode_events("responses", lines)


@loop_over(("events", "tokens", "text", "reason"), TABLES["counts"])
def test_each_event_counts_by_its_type(
    events: list[dict[str, Any]], tokens: list[int], text: str, reason: str
) -> None:
    for named in (True, False):
        record = decode(events, named)
        assert (record.failure, record.tokens.tolist()) == (None, tokens)
        assert (record.text, record.finish_reason) == (text, reason)


@loop_over(("events", "failure"), TABLES["errors"])
def test_an_error_is_one_wherever_it_stands(events: list[dict[str, Any]], failure: str) -> None:
    record = decode(events, named=False)
    assert record.failure == Failure(FailureKind.IN_BAND, failure)


@loop_over(("events", "kind"), TABLES["failures"])
def test_what_is_no_whole_answer_fails(events: list[dict[str, Any]], kind: str) -> None:
    record = decode(events, named=False)
    assert record.failure is not None
    assert record.failure.kind.value == kind


def test_the_first_event_that_a_user_sees_follows_the_reasoning() -> None:
    record = decode(TABLES["thought first"])
    assert record.visible_ns == record.arrival_ns[1]


@loop_over(
    ("sampling", "stream", "fields"),
    [
        ({"temperature": 0.0, "ignore_eos": True}, True, {"temperature": 0.0, "ignore_eos": True}),
        ({"logprobs": 2}, False, {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}),
    ],
)
def test_shared_fields_have_this_apis_names(
    sampling: dict[str, Any], stream: bool, fields: dict[str, Any]
) -> None:
    assert Responses().make_fields(sampling, stream, False) == {**fields, "stream": stream, "store": False}


def test_sglang_is_asked_for_the_two_tokens_that_it_leaves_out() -> None:
    fitted = Responses().fit_engine("SGLang")
    assert fitted.make_request("m", "hi", 9) == {"model": "m", "input": "hi", "max_output_tokens": 11}
    assert fitted.convert_chat({"messages": [], "max_tokens": 9})["max_output_tokens"] == 11
    assert "ignore_eos" in fitted.lacks
    (note,) = fitted.list_notes()
    assert note.startswith("max_output_tokens is the planned length and 2: SGLang generates")
    assert list(Responses().fit_engine("vLLM").list_notes()) == []


def test_a_turn_names_the_answer_before_it_and_sends_what_is_new() -> None:
    kept = Responses().keep_history()
    assert kept.make_fields({}, True, False)["store"] is True
    lines = b"\n".join(map(msgspec.json.encode, TABLES["abc"]))
    state = kept.read_state(lines)
    assert state == {"id": "resp_7"}
    turn = {"model": "m", "instructions": "Be brief.", "input": [{"role": "assistant"}, {"role": "user"}]}
    assert kept.continue_request(turn, state) == {
        **turn,
        "input": [{"role": "user"}],
        "previous_response_id": "resp_7",
    }
    whole = msgspec.json.encode(TABLES["abc"][-1]["response"])
    assert kept.read_state(whole) == {"id": "resp_7"}
    assert kept.read_state(msgspec.json.encode(TABLES["abc"][0])) is None


USER = {"role": "user", "content": "hi"}
CALLED = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sun"}


@loop_over(("messages", "given", "instructions"), TABLES["items"])
def test_messages_become_items(messages: list[Any], given: Any, instructions: str | None) -> None:
    request = convert_body({"model": "m", "messages": messages})
    assert request["input"] == given
    assert request.get("instructions") == instructions
    assert "messages" not in request


@loop_over(("chat", "own"), TABLES["fields"])
def test_fields_have_their_other_names(chat: dict[str, Any], own: dict[str, Any]) -> None:
    assert convert_body({"messages": [USER], **chat}) == {"input": "hi", **own}


def test_values_that_are_json_already_are_read() -> None:
    raw = msgspec.Raw(msgspec.json.encode([USER]))
    assert convert_body({"messages": raw, "tools": msgspec.Raw(b"null")}) == {"input": "hi"}


@loop_over(
    ("given", "new"),
    [
        ("hi", "hi"),
        ([USER], [USER]),
        ([USER, {"role": "assistant", "content": "a"}, USER], [USER]),
        ([USER, CALLED, RESULT, USER], [RESULT, USER]),
    ],
)
def test_new_is_what_follows_the_last_answer(given: Any, new: Any) -> None:
    assert select_new_items(given) == new
