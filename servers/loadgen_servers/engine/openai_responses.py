"""OpenAI's responses as vLLM writes them, less the events that repeat a text, and their numbers."""

from __future__ import annotations

from typing import Any

import msgspec

from loadgen_servers import http_server
from loadgen_servers.engine.messages import Choice, Dialect, ResponseOptions, text_of
from loadgen_servers.engine.request import ChatMessage, Refusal

PATH = "/v1/responses"
CHOICE = Choice(prefix=b"resp", kind=b"", whole_kind=b"", tokens=b"", whole=b"", after_whole=b"")
_ITEM = {"id": "msg-loadgen", "type": "message", "role": "assistant"}
_STATUS = {"stop": "completed", "length": "incomplete"}


class Item(ChatMessage):
    """An item of the input; of what is no message, as the result of a tool, no text counts."""

    role: str = ""


class Body(msgspec.Struct):
    """The members the engine uses; it keeps no answers."""

    model: str | None = None
    input: str | list[Item] = ""
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = False
    ignore_eos: bool = False
    previous_response_id: str | None = None


def write_chat(raw: bytes) -> bytes:
    """Write a request as one of chat; raises Refusal for an invalid one, or one after an earlier answer."""
    try:
        body = msgspec.json.decode(raw, type=Body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal("400 Bad Request", f"1 validation error: {error}") from None
    if body.previous_response_id is not None:
        why = f"Response with id '{body.previous_response_id}' not found."
        raise Refusal("404 Not Found", why, "invalid_request_error", "response_id")
    items = [Item("user", body.input)] if isinstance(body.input, str) else body.input
    messages = [*([Item("system", body.instructions)] if body.instructions else ()), *items]
    chat = {"model": body.model, "messages": messages, "max_completion_tokens": body.max_output_tokens}
    return msgspec.json.encode({**chat, "stream": body.stream, "ignore_eos": body.ignore_eos})


class ResponsesDialect(Dialect):
    """The messages of `/v1/responses` for one model; all of its choice is a prefix of ids."""

    def role(self, wanted: ResponseOptions) -> bytes:
        """The events before the first token: the answer's begin, and its item's."""
        item = {"output_index": 0, "item": {**_ITEM, "status": "in_progress", "content": []}}
        begun = _event("created", {"response": self._answer("in_progress", [])})
        return begun + _event("output_item.added", item)

    def tokens(self, wanted: ResponseOptions, first: int, end: int, reason: str | None = None) -> bytes:
        """One event with tokens first, …, end - 1."""
        at = {"item_id": _ITEM["id"], "output_index": 0, "content_index": 0}
        return _event("output_text.delta", {**at, "delta": text_of(first, end - first), "logprobs": []})

    def end(
        self,
        wanted: ResponseOptions,
        produced: int,
        cached: int | None = None,
        reason: str = "length",
        metrics: bytes = b"",
    ) -> bytes:
        """The last event, with the whole answer; `cached` prompt tokens if not None."""
        answer = {"response": self._finish(wanted, produced, reason, cached)}
        return _event("completed", answer) + http_server.STREAM_END

    def whole(self, wanted: ResponseOptions, produced: int, reason: str, cached: int | None = None) -> bytes:
        """An answer that is not streamed, HTTP head included."""
        return http_server.response(msgspec.json.encode(self._finish(wanted, produced, reason, cached)))

    def _finish(self, wanted: ResponseOptions, made: int, reason: str, cached: int | None) -> dict[str, Any]:
        hidden = min(wanted.hidden, made)
        text = {"type": "output_text", "text": text_of(hidden, made - hidden), "annotations": []}
        answer = self._answer(
            _STATUS.get(reason, "cancelled"), [{**_ITEM, "status": "completed", "content": [text]}]
        )
        prompt = wanted.prompt_tokens
        usage = {"input_tokens": prompt, "output_tokens": made, "total_tokens": prompt + made}
        details = {} if cached is None else {"input_tokens_details": {"cached_tokens": cached}}
        hid = {"output_tokens_details": {"reasoning_tokens": hidden}} if hidden else {}
        return {**answer, "usage": {**usage, **details, **hid}}

    def _answer(self, status: str, output: list[Any]) -> dict[str, Any]:
        why = {"reason": "max_output_tokens"} if status == "incomplete" else None
        own = {"id": f"{self.choice.prefix.decode()}-loadgen", "object": "response", "model": self.model}
        return {
            **own,
            "created_at": self.created_s,
            "status": status,
            "incomplete_details": why,
            "output": output,
        }


def _event(kind: str, members: dict[str, Any]) -> bytes:
    name = f"response.{kind}"
    data = msgspec.json.encode({"type": name, **members})
    return http_server.chunk(b"event: %b\ndata: %b\n\n" % (name.encode(), data))
