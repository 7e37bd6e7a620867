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

USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 12,
}
SAID = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "abc"}]}]
K = FailureKind


def ended(status: str = "completed", **more: Any) -> dict[str, Any]:
    """The last event of a response of three tokens."""
    response = {"id": "resp_7", "object": "response", "status": status, "output": SAID, "usage": USAGE}
    return {"type": f"response.{status}", "response": {**response, **more}}


def delta(text: Any, of: str = "output_text") -> dict[str, Any]:
    return {"type": f"response.{of}.delta", "delta": text}


ABC = [delta("a"), delta("b"), delta("c")]


def decode(events: list[dict[str, Any]], named: bool = True) -> Record:
    """The Record of these events, each in a read of its own, with or without its name before it."""
    lines = [b"data: %b\n\n" % msgspec.json.encode(event) for event in events]
    if named:
        lines = [
            b"event: %b\n" % event["type"].encode() + line for event, line in zip(events, lines, strict=True)
        ]
    return recorded.decode_events("responses", lines)


@loop_over(("name", "prompt", "cached", "tokens", "thought", "text"), TABLES["streams"])
def test_a_stream_has_its_tokens_once(
    name: str, prompt: int, cached: int, tokens: list[int], thought: int, text: str
) -> None:
    record = recorded.decode(name, recorded.reads(name), keep_text=True)
    assert (record.failure, record.usage, record.tokens.tolist()) == (None, True, tokens)
    assert (record.input_tokens, record.cached_tokens, record.thought_tokens) == (prompt, cached, thought)
    # llama.cpp calls every answer complete.
    assert record.finish_reason == ("stop" if "stop" in name or "llama" in name else "length")
    assert (record.text or "").startswith(text)


@loop_over(("name", "prompt", "tokens", "text"), TABLES["whole"])
def test_a_whole_answer_has_the_same_counts(name: str, prompt: int, tokens: int, text: str) -> None:
    record = recorded.decode(name, recorded.reads(name), keep_text=True)
    assert recorded.outcome(record) == (None, "length", prompt, tokens, True)
    assert (record.usage, record.text, record.arrival_ns.tolist()) == (True, text, [])
    streamed = recorded.decode(name.replace("nostream", "asked for a stream"), recorded.reads(name))
    assert streamed.failure == Failure(K.NOT_STREAMED, "one JSON body where a stream was requested")


@loop_over(
    ("name", "kind", "words"),
    [
        ("vllm-0.32/responses_err_unknown_id", K.HTTP_STATUS, "404: Response with id 'resp_none' not found."),
        ("vllm-0.32/responses_err_toolong", K.CONTEXT_LIMIT, "400: This model's maximum context length is"),
        (
            "llama-server/responses_err_unknown_id",
            K.HTTP_STATUS,
            "400: llama.cpp does not support 'previous_",
        ),
        ("sglang-0.5.23/responses_err_toolong", K.CONTEXT_LIMIT, "server_error: The input (18010 tokens) is"),
        ("sglang-0.5.23/responses_err_unkept", K.HTTP_STATUS, "400: Response store is disabled. Stateful"),
        ("sglang-0.5.23/responses_err_no_harmony", K.HTTP_STATUS, "500: Internal Server Error"),
    ],
)
def test_a_recorded_failure_is_in_the_servers_words(name: str, kind: FailureKind, words: str) -> None:
    record = recorded.decode(name, recorded.reads(name))
    assert record.failure is not None
    assert (record.failure.kind, record.failure.detail[: len(words)]) == (kind, words)


def test_llamas_own_times_come_with_its_last_event() -> None:
    record = recorded.decode("responses", recorded.reads("llama-server/responses_stream"))
    assert (record.server_prompt_tokens, record.server_output_tokens) == (16, 8)
    assert (record.server_prefill_ns, record.server_decode_ns) == (899_000, 5_482_000)


def test_vllms_own_times_come_with_its_last_event() -> None:
    record = recorded.decode("responses", recorded.reads("vllm-0.32/responses_stream"))
    assert (record.server_ttft_ns, record.server_queue_ns) == (7_250_944, 36_634)


@loop_over(
    ("events", "tokens", "text", "reason"),
    [
        ([*ABC, ended()], [1, 1, 1], "abc", "stop"),
        (
            [*ABC, ended("incomplete", incomplete_details={"reason": "max_output_tokens"})],
            [1] * 3,
            "abc",
            "length",
        ),
        ([*ABC, ended("incomplete")], [1] * 3, "abc", "incomplete"),
        ([*ABC, {"type": "response.output_text.done", "text": "abc"}, ended()], [1] * 3, "abc", "stop"),
        ([*ABC, {"type": "response.output_item.done", "item": SAID[0]}, ended()], [1] * 3, "abc", "stop"),
        ([{"type": "keepalive"}, ABC[0], {"type": "ping"}, *ABC[1:], ended()], [1] * 3, "abc", "stop"),
        ([{"type": "response.of_next_year", "delta": "x"}, *ABC, ended()], [1] * 3, "abc", "stop"),
        ([delta("a", "reasoning_summary_text"), delta("bc"), ended()], [1, 2], "abc", "stop"),
        ([delta("a", "reasoning_text"), delta("b"), delta("c", "refusal"), ended()], [1] * 3, "abc", "stop"),
        ([*(delta(c, "function_call_arguments") for c in "abc"), ended()], [1] * 3, "abc", "stop"),
        ([*(delta(c, "custom_tool_call_input") for c in "abc"), ended()], [1] * 3, "abc", "stop"),
        ([delta("a"), delta(""), delta("bc"), ended()], [1] * 3, "abc", "stop"),
        ([ended()], [3], "abc", "stop"),
        ([*ABC, ended(usage=None)], [1] * 3, "abc", "stop"),
    ],
)
def test_each_event_counts_by_its_type(
    events: list[dict[str, Any]], tokens: list[int], text: str, reason: str
) -> None:
    for named in (True, False):
        record = decode(events, named)
        assert (record.failure, record.tokens.tolist()) == (None, tokens)
        assert (record.text, record.finish_reason) == (text, reason)


@loop_over(
    ("events", "failure"),
    [
        (
            [delta("a"), ended("failed", error={"code": "server_error", "message": "gone"})],
            "server_error: gone",
        ),
        ([delta("a"), ended("failed")], "the response failed"),
        ([delta("a"), {"type": "error", "code": "x", "message": "gone"}], "x: gone"),
        ([delta("a"), {"type": "error", "error": {"code": 5, "message": "gone"}}], "5: gone"),
        ([delta("a"), {"type": "error"}], "an error without a message"),
        ([delta("a"), {"type": "", "error": {"message": "gone"}}], "gone"),
    ],
)
def test_an_error_is_one_wherever_it_stands(events: list[dict[str, Any]], failure: str) -> None:
    record = decode(events, named=False)
    assert record.failure == Failure(K.IN_BAND, failure)


@loop_over(
    ("events", "kind"),
    [
        ([*ABC, ended("cancelled")], K.ABORTED),
        ([*ABC, ended("incomplete", incomplete_details={"reason": "content_filter"})], K.ABORTED),
        (ABC, K.TRUNCATED),
        ([{"type": "response.created"}, {"type": "response.in_progress"}], K.TRUNCATED),
        ([ended(output=[], usage=None)], K.EMPTY),
        ([{"type": "", "choices": [{"index": 0, "delta": {"content": "a"}}]}], K.MALFORMED),
        ([ABC[0], {"type": "response.completed"}], K.MALFORMED),
        ([ABC[0], ended(usage={"output_tokens": -1})], K.MALFORMED),
        ([ABC[0], ended(usage={"output_tokens": 2**40})], K.MALFORMED),
    ],
)
def test_what_is_no_whole_answer_fails(events: list[dict[str, Any]], kind: FailureKind) -> None:
    record = decode(events, named=False)
    assert record.failure is not None
    assert record.failure.kind is kind


def test_the_first_event_that_a_user_sees_follows_the_reasoning() -> None:
    record = decode([delta("a", "reasoning_text"), delta("b"), delta("c"), ended()])
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
    lines = b"\n".join(map(msgspec.json.encode, [*ABC, ended()]))
    state = kept.read_state(lines)
    assert state == {"id": "resp_7"}
    turn = {"model": "m", "instructions": "Be brief.", "input": [{"role": "assistant"}, {"role": "user"}]}
    assert kept.continue_request(turn, state) == {
        **turn,
        "input": [{"role": "user"}],
        "previous_response_id": "resp_7",
    }
    whole = msgspec.json.encode(ended()["response"])
    assert kept.read_state(whole) == {"id": "resp_7"}
    assert kept.read_state(msgspec.json.encode(delta("a"))) is None


USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
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
