"""A hosted chat API: takes one key, refuses fields in a vendor's own words, streams text or reasoning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fakes.scripted_server import DONE, HEAD, LAST, Answer, Asked, chunk, whole

MODEL = "big-1"
KEY = "sk-good-0123456789"


def openai_error(message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's form."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


@dataclass
class HostedApi:
    """Answers as a hosted API does; `refused` maps fields (`a.b`: b inside a) to (status, JSON body)."""

    refused: Mapping[str, tuple[int, Any]] = field(default_factory=dict)
    key: str | None = KEY  # None: no key is needed
    guarded: Sequence[str] = ("/",)  # beginnings of the paths that need it
    models: bool = True  # whether there is a list of models
    names: Sequence[str] = (MODEL,)
    owner: str = "system"
    prefix: str = "/v1"  # of every path
    chat: bool = True  # whether it is a chat API; else completions
    text: Sequence[str] = ("Hello", " to", " you")
    reasoning: Sequence[str] = ()
    reasoning_name: str = "reasoning_content"
    hidden: int = 0  # tokens of reasoning that are counted and not streamed
    counts: Callable[[str], int] = lambda text: 9  # tokens of a prompt
    usage: bool = True
    limit: int | None = None  # of completion requests; after them each is a 429
    more: str = "x-request-id: req_1\r\n"
    served: list[dict[str, Any]] = field(default_factory=list)  # bodies that were accepted
    posted: int = 0

    def __call__(self, asked: Asked) -> Answer:
        """A script of ScriptedServer."""
        method, path = asked.head.split(" ")[:2]
        if (denied := self._denied(asked)) is not None:
            return denied
        if method == "GET":
            if path != f"{self.prefix}/models" or not self.models:
                return self._error(404, openai_error(f"Invalid URL (GET {path})"))
            cards = [{"id": name, "object": "model", "owned_by": self.owner} for name in self.names]
            return Answer([whole(msgspec.json.encode({"object": "list", "data": cards}), more=self.more)])
        wanted = "/chat/completions" if self.chat else "/completions"
        if path.partition("?")[0] != self.prefix + wanted:
            return self._error(404, openai_error(f"Invalid URL (POST {path})"))
        self.posted += 1
        if self.limit is not None and len(self.served) >= self.limit:
            error = openai_error("Rate limit reached for requests", code="rate_limit_exceeded")
            return self._error(429, error, "retry-after: 20\r\n")
        body = msgspec.json.decode(asked.body)
        for name, (status, error) in self.refused.items():
            outer, _, inner = name.partition(".")
            if outer in body and (not inner or inner in body[outer]):
                return self._error(status, error)
        self.served.append(body)
        return self._streamed(body)

    def _denied(self, asked: Asked) -> Answer | None:
        lines = dict(line.split(": ", 1) for line in asked.head.lower().splitlines()[1:])
        given = lines.get("authorization", "").removeprefix("bearer ")
        path = asked.head.split(" ")[1]
        if self.key is None or given == self.key.lower() or not path.startswith(tuple(self.guarded)):
            return None
        if not given:
            return self._error(401, openai_error("You didn't provide an API key."))
        return self._error(401, openai_error(f"Incorrect API key provided: {given}", code="invalid_api_key"))

    def _error(self, status: int, error: Any, more: str = "") -> Answer:
        return Answer([whole(msgspec.json.encode(error), f"{status} Refused", more=self.more + more)])

    def _streamed(self, body: Mapping[str, Any]) -> Answer:
        deltas: list[dict[str, Any]] = [{self.reasoning_name: text} for text in self.reasoning]
        deltas += [{"content": text} for text in self.text]
        if not self.chat:
            choices: list[dict[str, Any]] = [{"index": 0, "text": text} for text in self.text]
        else:
            choices = [{"index": 0, "delta": {"role": "assistant", "content": ""}}]
            choices += [{"index": 0, "delta": delta} for delta in deltas]
        ending: dict[str, Any] = {"index": 0, "delta": {}} if self.chat else {"index": 0, "text": ""}
        choices.append({**ending, "finish_reason": "length"})
        events: list[dict[str, Any]] = [{"choices": [choice]} for choice in choices]
        if self.usage and "stream_options" in body:
            tokens = self.hidden + (len(deltas) if self.chat else len(self.text))
            prompt = body["messages"][0]["content"] if self.chat else body["prompt"]
            counts: dict[str, Any] = {"prompt_tokens": self.counts(prompt), "completion_tokens": tokens}
            if self.hidden:
                counts["completion_tokens_details"] = {"reasoning_tokens": self.hidden}
            events.append({"choices": [], "usage": counts})
        pieces = [chunk(b"data: %b\n\n" % msgspec.json.encode(event)) for event in events]
        return Answer([HEAD, *pieces, chunk(DONE), LAST])
