"""A server of a Markov chain in vLLM's dialect: its distributions are known, and it can misreport them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from builders.markov_chain import MarkovModel
from fakes.scripted_server import Answer, Asked, whole
from loadgen.base.arrays import Float64

VERSION = "0.32.0"
_GREEDY = 1e-9  # temperatures below it


@dataclass
class MarkovServer:
    """A script of ScriptedServer: /v1/completions of token ids or texts, /tokenize, /v1/models, /version.

    A token of a text is a byte of it, modulo the size of the vocabulary. The answer to a prompt depends on
    `seed` and the prompt alone, whatever the order of requests.
    """

    model: MarkovModel
    name: str = "markov"
    seed: int = 0
    prompt_logprobs: bool = True  # else it scores no prompt
    posted: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, asked: Asked) -> Answer:
        """Answer a request."""
        method, path = asked.head.split(" ")[:2]
        if method == "GET":
            return self._describe(path)
        body = msgspec.json.decode(asked.body)
        if path == "/tokenize":
            tokens = self.tokenize(body["prompt"])
            return _answer({"count": len(tokens), "max_model_len": 4096, "tokens": tokens})
        if path != "/v1/completions":
            return _answer({"detail": "Not Found"}, "404 Not Found")
        self.posted.append(body)
        return self._complete(body)

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text."""
        return [byte % len(self.model.logprobs) for byte in text.encode()]

    def _describe(self, path: str) -> Answer:
        card = {
            "id": self.name,
            "object": "model",
            "owned_by": "vllm",
            "root": self.name,
            "max_model_len": 4096,
        }
        found = {
            "/v1/models": {"object": "list", "data": [card]},
            "/version": {"version": VERSION},
            "/health": {},
        }
        return _answer(found[path]) if path in found else _answer({"detail": "Not Found"}, "404 Not Found")

    def _complete(self, body: dict[str, Any]) -> Answer:
        """Answer each prompt of a request."""
        prompts = body["prompt"]
        if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]
        ids = [self.tokenize(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
        choices = [self._choose(number, prompt, body) for number, prompt in enumerate(ids)]
        made = sum(len(choice["token_ids"]) for choice in choices)
        for choice in choices if not body.get("return_token_ids") else ():
            choice["token_ids"] = choice["prompt_token_ids"] = None
        read = sum(map(len, ids))
        usage = {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}
        return _answer(
            {
                "id": "cmpl-1",
                "object": "text_completion",
                "model": self.name,
                "choices": choices,
                "usage": usage,
            }
        )

    def _choose(self, index: int, prompt: Sequence[int], body: dict[str, Any]) -> dict[str, Any]:
        """One answer: its tokens, and the log-probabilities that were asked for."""
        path = self._sample(prompt, body)
        logprobs: dict[str, Any] | None = None
        scored: list[dict[str, Any] | None] | None = None
        if (count := body.get("logprobs")) is not None:
            rows = _list_tops(self.model.reported, path, count)
            logprobs = {
                "token_logprobs": [row[0][1] for row in rows],
                "tokens": [_name(token) for token in path[1:]],
                "top_logprobs": [{_name(token): value for token, value, _ in row} for row in rows],
                "text_offset": [],
            }
        if (count := body.get("prompt_logprobs")) is not None and self.prompt_logprobs:
            scored = [None]
            for row in _list_tops(self.model.logprobs, prompt, count):
                scored.append({str(token): {"logprob": value, "rank": rank} for token, value, rank in row})
        return {
            "index": index,
            "text": "",
            "logprobs": logprobs,
            "finish_reason": "length",
            "token_ids": path[1:],
            "prompt_token_ids": list(prompt),
            "prompt_logprobs": scored,
        }

    def _sample(self, prompt: Sequence[int], body: dict[str, Any]) -> list[int]:
        """The last token of a prompt, and the tokens that follow it."""
        count = body.get("max_tokens", 16)
        if body.get("temperature", 1.0) < _GREEDY:
            path = [prompt[-1]]
            for _ in range(count):
                path.append(int(self.model.firsts[path[-1]]))
            return path
        rng = np.random.default_rng([self.seed, zlib.crc32(bytes(prompt)), len(prompt)])
        return [int(token) for token in self.model.walk(np.asarray([prompt[-1]]), count, rng)[0]]


def _name(token: int) -> str:
    return f"token_id:{token}"


def _list_tops(logprobs: Float64, path: Sequence[int], count: int) -> list[list[tuple[int, float, int]]]:
    """Of each token of a path but the first: itself and the `count` most probable ones, once each.

    Each as its id, log-probability (−9999 for −∞) and rank.
    """
    states = sorted(set(path[:-1]))
    orders = dict(zip(states, np.argsort(-logprobs[states], axis=1, kind="stable").tolist(), strict=True))
    rows = {state: np.maximum(logprobs[state], -9999.0).tolist() for state in states}
    found = []
    for state, token in pairwise(path):
        order, row = orders[state], rows[state]
        listed = [token, *(other for other in order[:count] if other != token)]
        found.append([(each, row[each], order.index(each) + 1) for each in listed])
    return found


def _answer(value: Any, status: str = "200 OK") -> Answer:
    return Answer([whole(msgspec.json.encode(value), status)])
