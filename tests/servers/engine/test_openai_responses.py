"""The engine's `/v1/responses`: events that vLLM's were recorded with, and requests as those of chat."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from builders.loops import loop_over
from loadgen_servers.engine.messages import ResponseOptions, reply_for
from loadgen_servers.engine.openai_responses import PATH, write_chat
from loadgen_servers.engine.request import Refusal
from servers.engine.test_messages import RESPONSES, dialect, unchunk, written


def keys_of(body: bytes) -> dict[bytes, set[str]]:
    """The members of each kind of event, of what is in them too, as `response.id`."""
    found: dict[bytes, set[str]] = {}
    for part in filter(None, body.split(b"\n\n")):
        name, _, data = part.partition(b"\ndata: ")
        event: dict[str, Any] = msgspec.json.decode(data)
        inside = [f"{key}.{own}" for key, value in event.items() if isinstance(value, dict) for own in value]
        found[name] = {*event, *inside}
    return found


def test_its_events_and_their_members_are_among_the_recorded_ones() -> None:
    own = keys_of(unchunk(written(reply_for(dialect(PATH), ResponseOptions(16)), 8, cached=0)))
    theirs = keys_of((RESPONSES / "responses_stream.txt").read_bytes())
    assert {name: keys - theirs[name] for name, keys in own.items()} == {name: set() for name in own}
    assert len(own) == 4


@loop_over(("body", "messages"), [
    ({"input": "Hi"}, [("user", "Hi")]),
    ({"instructions": "Be", "input": "Hi"}, [("system", "Be"), ("user", "Hi")]),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
     [("user", [{"text": "Hi"}])]),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "sun"}]}, [("", None)]),
])  # fmt: skip
def test_a_request_is_that_of_chat(body: dict[str, Any], messages: list[tuple[str, Any]]) -> None:
    chat = msgspec.json.decode(write_chat(msgspec.json.encode({**body, "max_output_tokens": 5})))
    assert [(each["role"], each["content"]) for each in chat["messages"]] == messages
    assert chat["max_completion_tokens"] == 5


@loop_over(("body", "status", "why"), [
    (b'{"input": 5}', "400 Bad Request", "1 validation error: Expected `str | array`"),
    (b'{"input":', "400 Bad Request", "1 validation error: Input data was truncated"),
    (b'{"previous_response_id": "resp_1"}', "404 Not Found", "Response with id 'resp_1' not found."),
])  # fmt: skip
def test_what_it_does_not_serve_is_refused(body: bytes, status: str, why: str) -> None:
    with pytest.raises(Refusal) as caught:
        write_chat(body)
    assert caught.value.status == status
    assert caught.value.message.startswith(why)
