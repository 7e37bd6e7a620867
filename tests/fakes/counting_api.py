"""A server that counts prompts by a rule of its own, records every body, and refuses what it is made to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fakes.hosted_api import openai_error
from fakes.scripted_server import DONE, HEAD, LAST, Answer, Asked, chunk, whole

MODEL = "m"
PER_MESSAGE, PER_PROMPT = 4, 3  # tokens of a chat template
_PIECES = re.compile(r"[^\W\d_]{1,5}|\d|[^\w\s]|_")  # a long word is several tokens

Refusal = Callable[[Mapping[str, Any]], dict[str, Any] | None]


def count(body: Mapping[str, Any]) -> int:
    """Tokens of a prompt or of messages, by this server's rule."""
    if "messages" not in body:
        prompt = body["prompt"]
        return len(prompt) if isinstance(prompt, list) else len(_PIECES.findall(prompt))
    texts = [_text(message.get("content")) for message in body["messages"]]
    return sum(len(_PIECES.findall(text)) + PER_MESSAGE for text in texts) + PER_PROMPT


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(part.get("text", "") for part in content)
    return content or ""


def refuses(field: str, message: str) -> Refusal:
    """A refusal of every body that has a field."""
    return lambda body: openai_error(message, field) if field in body else None


def refuses_images(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The words of a vLLM whose model takes text alone."""
    contents = [message.get("content") for message in body.get("messages", ())]
    seen = any(
        isinstance(each, list) and any(part["type"] == "image_url" for part in each) for each in contents
    )
    return openai_error("At most 0 image(s) may be provided in one prompt.") if seen else None


def refuses_ids(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The words of `transformers serve`."""
    return openai_error("prompt must be a string.") if isinstance(body.get("prompt"), list) else None


@dataclass
class CountingApi:
    """Answers chat and completions with one token a message, and `usage` by its own count of the prompt."""

    tokenize: bool = False  # whether there is a /tokenize, as vLLM has one
    models: bool = True  # whether there is a list of models
    refusal: Refusal = lambda body: None
    gap_s: float = 0.0  # before each token
    owner: str = "someone"
    served: list[bytes] = field(default_factory=list)  # bodies that were accepted, as they came
    refused: list[bytes] = field(default_factory=list)

    def __call__(self, asked: Asked) -> Answer:
        """A script of ScriptedServer."""
        method, path = asked.head.split(" ")[:2]
        if method == "GET":
            if path == "/v1/models" and self.models:
                card = {"id": MODEL, "owned_by": self.owner, "max_model_len": 32768}
                return Answer([whole(msgspec.json.encode({"object": "list", "data": [card]}))])
            known = path == "/health"
            return Answer([whole(b"{}") if known else whole(b"{}", "404 Not Found")])
        if path == "/tokenize" and self.tokenize:
            tokens = count(msgspec.json.decode(asked.body))
            return Answer([whole(msgspec.json.encode({"count": tokens, "tokens": [0] * tokens}))])
        if path not in ("/v1/chat/completions", "/v1/completions"):
            return Answer([whole(b"{}", "404 Not Found")])
        body = msgspec.json.decode(asked.body)
        if (error := self.refusal(body)) is not None:
            self.refused.append(asked.body)
            return Answer([whole(msgspec.json.encode(error), "400 Bad Request")])
        self.served.append(asked.body)
        return self._answered(body, chat="chat" in path)

    def counts(self) -> list[int]:
        """The prompts' tokens of every body that was accepted."""
        return [count(msgspec.json.decode(body)) for body in self.served]

    def _answered(self, body: Mapping[str, Any], chat: bool) -> Answer:
        tokens = min(body.get("max_tokens", body.get("max_completion_tokens")) or 3, 3)
        usage = {"prompt_tokens": count(body), "completion_tokens": tokens}
        if not body.get("stream"):
            part = (
                {"message": {"role": "assistant", "content": " a" * tokens}}
                if chat
                else {"text": " a" * tokens}
            )
            choices = [{"index": 0, "finish_reason": "length", **part}]
            return Answer([whole(msgspec.json.encode({"choices": choices, "usage": usage}))])
        part = {"delta": {"content": " a"}} if chat else {"text": " a"}
        last = {"finish_reason": "length"}
        events: list[dict[str, Any]] = [
            {"choices": [{"index": 0, **part, **(last if i == tokens - 1 else {})}]} for i in range(tokens)
        ]
        events.append({"choices": [], "usage": usage})
        pieces: list[bytes | float] = [HEAD]
        for event in events:
            if self.gap_s:
                pieces.append(self.gap_s)
            pieces.append(chunk(b"data: %b\n\n" % msgspec.json.encode(event)))
        return Answer([*pieces, chunk(DONE), LAST])
