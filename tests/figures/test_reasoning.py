"""The first token that a user sees: where reasoning ends, in every API and form of stream."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from builders import recorded
from builders.loops import loop_over
from loadgen.records.decode import Decoder
from loadgen.records.record import UNKNOWN
from loadgen.wire import sse
from loadgen.wire.openai import DIALECTS

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def delta(reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": more, "logprobs": None, "finish_reason": reason}
    message = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1763900000, "model": "m"}
    return b"data: %b\n\n" % msgspec.json.encode({**message, "choices": [choice]})


def tool(**function: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": function}]}


def at(*events: bytes) -> int | None:
    """Which token message came first of those with visible text, counted from 0; None: there is none."""
    reads = [HEAD, *map(recorded.chunk, events), recorded.chunk(DONE), b"0\r\n\r\n"]
    decoder = Decoder(DIALECTS["chat"], streamed=True)
    record = decoder.decode(recorded.capture(reads))
    assert record.failure is None
    arrived = record.arrival_ns.tolist()
    return None if record.visible_ns == UNKNOWN else arrived.index(record.visible_ns)


ROLE, END = delta(role="assistant", content=""), delta("stop")
THINKS, OTHER = delta(reasoning="let me see"), delta(reasoning_content="hm")
SAYS, BLANK = delta(content="yes"), delta(content="")


@loop_over(
    ("events", "place"),
    [
        pytest.param([ROLE, SAYS, SAYS], 0, id="nothing reasons"),
        pytest.param([ROLE, BLANK, SAYS], 0, id="an empty text first, nothing reasons"),
        pytest.param([ROLE, THINKS, THINKS, SAYS], 2, id="reasoning of vLLM, then text"),
        pytest.param([ROLE, OTHER, SAYS, SAYS], 1, id="reasoning of SGLang, then text"),
        pytest.param([ROLE, BLANK, THINKS, SAYS], 2, id="an empty text, reasoning, then text"),
        pytest.param([ROLE, THINKS, BLANK, SAYS], 2, id="reasoning, an empty text, then text"),
        pytest.param([ROLE, delta(reasoning="so", content="yes"), SAYS], 0, id="both in one chunk"),
        pytest.param([ROLE, THINKS, delta(**tool(name="f")), delta(**tool(arguments="{}"))], 1, id="a tool"),
        pytest.param([ROLE, delta(**tool(name="f", arguments="")), SAYS], 0, id="a tool at once"),
        pytest.param([ROLE, THINKS, delta(**tool(name="")), SAYS], 1, id="a tool call without text"),
        pytest.param([ROLE, THINKS, THINKS], None, id="it ended within its reasoning"),
    ],
)
def test_the_first_visible_token_is_the_first_that_is_not_reasoning(
    events: list[bytes], place: int | None
) -> None:
    assert at(*events, END) == place


@loop_over(
    ("before", "after", "place"),
    [(0, 90, 0), (5, 90, 5), (90, 5, 90), (70, 70, 70), (90, 0, None), (1, 200, 1)],
)
@loop_over("kind", ["reasoning", "reasoning_content"])
def test_in_a_long_stream_too_of_which_few_messages_are_parsed(
    before: int, after: int, place: int | None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    thinks = [delta(**{kind: f" thought{i}"}) for i in range(before)]
    says = [delta(content=f" word{i}") for i in range(after)]
    assert at(ROLE, *thinks, *says, END) == place
    monkeypatch.setattr(sse, "read_typical", lambda dialect, stream: None)
    assert at(ROLE, *thinks, *says, END) == place


def test_reasoning_that_is_shown_and_reasoning_that_is_hidden_are_counted() -> None:
    decoder = Decoder(DIALECTS["chat"], streamed=True)
    usage = {"prompt_tokens": 1, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 8}}
    counted = b"data: %b\n\n" % msgspec.json.encode({"choices": [], "usage": usage})
    for events in (
        [ROLE, THINKS, SAYS, END],
        [ROLE, BLANK, THINKS, END],
        [ROLE, SAYS, END, counted],
        [SAYS, END],
    ):
        reads = [HEAD, *map(recorded.chunk, events), recorded.chunk(DONE), b"0\r\n\r\n"]
        decoder.decode(recorded.capture(reads))
    assert (decoder.reasoning.shown, decoder.reasoning.hidden) == (2, 1)
