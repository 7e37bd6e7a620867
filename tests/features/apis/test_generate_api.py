"""SGLang's /generate: as recorded, and, where nobody recorded it, made of what was in the shapes it sends."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from builders import recorded
from builders.loops import loop_over, read_tables
from loadgen.features.apis.generate_api import Generate
from loadgen.records.record import Record


def sent(name: str) -> list[dict[str, Any]]:
    """The messages of a recorded stream."""
    body = (recorded.RESPONSES / f"{name}.txt").read_bytes()
    return [msgspec.json.decode(data) for data in re.findall(rb"data: (\{.*)", body)]


TABLES = read_tables("generate_api")
TEXT = ".decimalserteneric.skipTestETHODON"
SENT = sent("sglang-0.5.23/generate_stream")
DONE = b"data: [DONE]\n\n"


def decode(messages: list[dict[str, Any]], *more: bytes) -> Record:
    datas = [b"data: %b\n\n" % msgspec.json.encode(message) for message in messages]
    return recorded.decode_events("generate", (*datas, *more, DONE))


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """As from servers of before 2025."""
    return {key: value for key, value in message.items() if key != "output_ids"}


def ended(message: dict[str, Any], reason: dict[str, Any] | None) -> dict[str, Any]:
    return {**message, "meta_info": {**message["meta_info"], "finish_reason": reason}}


@pytest.mark.parametrize(
    ("messages", "tokens", "text"),
    [
        ([SENT[5]], [6], TEXT),
        ([*SENT[:5], ended(SENT[4], {"type": "stop", "matched": 7})], [1] * 5, TEXT[:-2]),
        ([without_ids(message) for message in SENT], [1] * 6, TEXT),
    ],
)
def test_a_messages_tokens_are_how_much_the_running_count_grew(
    messages: list[dict[str, Any]], tokens: list[int], text: str
) -> None:
    record = decode(messages)
    assert (record.failure, record.tokens.tolist(), record.text) == (None, tokens, text)
    assert record.arrival_ns.tolist() == [2000 + 1000 * i for i in range(len(tokens))]
    assert (record.usage, record.exact_tokens, record.output_tokens) == (True, True, sum(tokens))
    assert (record.input_tokens, record.cached_tokens) == (5, 4)
    assert record.finish_reason == messages[-1]["meta_info"]["finish_reason"]["type"]


@pytest.mark.parametrize(("prompt", "key"), [([1, 2], "input_ids"), ("hi", "text")])
def test_ids_and_text_have_a_name_of_their_own(prompt: list[int] | str, key: str) -> None:
    assert Generate().make_request("m", prompt, 9) == {key: prompt, "sampling_params": {"max_new_tokens": 9}}


@pytest.mark.parametrize(
    ("sampling", "fields"),
    [
        ({"temperature": 0.0, "top_k": 3}, {"sampling_params": {"temperature": 0.0, "top_k": 3}}),
        ({"logprobs": 2}, {"sampling_params": {}, "return_logprob": True, "top_logprobs_num": 2}),
        ({"min_tokens": 2}, {"sampling_params": {"min_new_tokens": 2}}),
    ],
)
def test_sampling_is_a_table_and_logprobs_are_not_part_of_it(
    sampling: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert Generate().make_fields(sampling, stream=True, running_usage=True) == {**fields, "stream": True}


# No CPU build of SGLang's kernels is published, and its cache of a server that drafts needs them; the keys
# are those of `_calculate_spec_decoding_metrics` in 0.5.23's tokenizer_manager.py, on every message.


@loop_over(("drafted", "counts"), TABLES["drafts"])
def test_the_steps_and_accepted_drafts_of_a_request_are_read(
    drafted: dict[str, Any], counts: list[int]
) -> None:
    record = decode([{**each, "meta_info": {**each["meta_info"], **drafted}} for each in SENT])
    assert record.failure is None
    assert [record.server_drafts, record.server_accepted_tokens] == counts


@loop_over(("reported", "times_ns"), TABLES["times"])
def test_a_requests_own_times_are_read(reported: dict[str, Any], times_ns: list[int]) -> None:
    record = decode([{**each, "meta_info": {**each["meta_info"], **reported}} for each in SENT])
    assert record.failure is None
    parts = (record.server_queue_ns, record.server_prefill_ns, record.server_decode_ns)
    found = [*parts, record.server_first_token_ns]
    assert found == pytest.approx(times_ns, abs=500)  # the wall clock's times have 0.24 us
    assert record.server_ttft_ns == record.server_prefill_ns


@loop_over(("written", "counts"), TABLES["before usage"])
def test_so_are_they_of_openais_api_before_the_usage(written: str, counts: list[int]) -> None:
    text = b'{"choices":[{"index":0,"text":"a b","finish_reason":"length"}]}'
    usage = b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":12}}'
    messages = [text, b'{"choices":[],"usage":null,"sglext":%b}' % written.encode(), usage]
    events = b"".join(b"data: %b\n\n" % message for message in messages) + DONE
    record = recorded.decode_events("completions", [events])
    assert (record.failure, record.output_tokens) == (None, 12)
    assert [record.server_drafts, record.server_accepted_tokens] == counts
