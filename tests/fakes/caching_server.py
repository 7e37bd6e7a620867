"""A server with a prefix cache, in virtual time: vLLM, SGLang or an unknown one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fakes.scripted_server import DONE, HEAD, LAST, Answer, Asked, chunk, whole

BYTES_PER_TOKEN, BLOCK = 4, 16
FIXED_S, EACH_S, STEP_S = 0.005, 0.0002, 0.005  # of TTFT, of a computed prompt token in it, of TPOT
_TEXTS = ("tools", "system", "messages", "prompt")
_IMAGE = re.compile(rb"data:image/png;base64,(\d{4})\d*")
_RESETS = ("/reset_prefix_cache", "/flush_cache")


@dataclass
class CachingServer:
    """Answers completions and chat; a prompt's whole blocks are found again, but never its last token."""

    owner: str = "vllm"  # "": unknown
    version: str = "0.12.0"
    reports: str = ""  # cached tokens: in "usage", in "counters"; "": nowhere
    salted: bool = True  # requests with another cache_salt find nothing
    reset: bool = False  # it can be emptied
    caching: bool = True
    template: int = 0  # tokens that begin every prompt of chat
    refuses_salt: bool = False
    warm_up_s: float = 0.0  # more TTFT of its first four requests
    asked: list[dict[str, Any]] = field(default_factory=list)  # the bodies of requests
    emptied: int = 0
    counted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("prompt", "hits", "made"), 0))
    _kept: set[tuple[str, bytes]] = field(default_factory=set)

    def __call__(self, asked: Asked) -> Answer:
        """Answer a request: a script of a virtual server."""
        method, path = asked.head.split(" ")[:2]
        if method == "POST" and path in _RESETS:
            return self._empty()
        if method == "POST" and path.endswith("/completions"):
            return self._generate(json.loads(asked.body), chat="/chat/" in path)
        known: dict[str, Callable[[], bytes]] = {
            "/health": lambda: b"",
            "/v1/models": self._list_models,
            "/version": lambda: json.dumps({"version": self.version}).encode(),
        }
        if self.reports == "counters":
            known["/metrics"] = self._expose
        made = known.get(path)
        return Answer([whole(b"{}", "404 Not Found") if made is None else whole(made())])

    def _list_models(self) -> bytes:
        card = {"id": "m", "owned_by": self.owner or "someone", "max_model_len": 32768}
        return json.dumps({"data": [card]}).encode()

    def _empty(self) -> Answer:
        if not self.reset:
            return Answer([whole(b"{}", "404 Not Found")])
        self.emptied += 1
        self._kept.clear()
        return Answer([whole(b"{}")])

    def _generate(self, body: dict[str, Any], chat: bool) -> Answer:
        if self.refuses_salt and "cache_salt" in body:
            return Answer(
                [whole(b'{"error":{"message":"Unknown parameter: \'cache_salt\'."}}', "400 Bad Request")]
            )
        self.asked.append(body)
        text = json.dumps([body[name] for name in _TEXTS if name in body], ensure_ascii=False).encode()
        text = _IMAGE.sub(rb"\1" * 64, text)  # an image has few tokens for its bytes
        data = b"t" * (self.template * BYTES_PER_TOKEN if chat else 0) + text
        tokens = max(len(data) // BYTES_PER_TOKEN, 1)
        cached = self._find(data, tokens, body.get("cache_salt", "") if self.salted else "")
        output = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        self.counted["prompt"] += tokens
        self.counted["hits"] += cached
        self.counted["made"] += output
        late_s = self.warm_up_s if len(self.asked) <= 4 else 0.0
        pieces: list[bytes | float] = [HEAD, FIXED_S + late_s + EACH_S * (tokens - cached)]
        for i in range(output):
            reason = "length" if i == output - 1 else None
            text_of = {"delta": {"content": "a"}} if chat else {"text": "a"}
            event = {"choices": [{"index": 0, **text_of, "finish_reason": reason}]}
            pieces += [chunk(b"data: %b\n\n" % json.dumps(event).encode()), STEP_S]
        usage: dict[str, Any] = {"prompt_tokens": tokens, "completion_tokens": output}
        if self.reports == "usage":
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        pieces.append(chunk(b"data: %b\n\n" % json.dumps({"choices": [], "usage": usage}).encode()))
        return Answer([*pieces, chunk(DONE), LAST])

    def _find(self, data: bytes, tokens: int, salt: str) -> int:
        """How many of a prompt's tokens the cache has; it has all of them from now on."""
        if not self.caching:
            return 0
        size = BLOCK * BYTES_PER_TOKEN
        ends = range(size, len(data) + 1, size)
        found = 0
        while found < len(ends) and (salt, data[: ends[found]]) in self._kept:
            found += 1
        self._kept.update((salt, data[:end]) for end in ends)
        return min(found * BLOCK, (tokens - 1) // BLOCK * BLOCK)

    def _expose(self) -> bytes:
        """Its /metrics, with vLLM's names or SGLang's."""
        vllm = {
            "request_success_total": len(self.asked),
            "prompt_tokens_total": self.counted["prompt"],
            "generation_tokens_total": self.counted["made"],
            "prefix_cache_queries_total": self.counted["prompt"],
            "prefix_cache_hits_total": self.counted["hits"],
            "num_requests_running": 0,
            "num_requests_waiting": 0,
        }
        sglang = {
            "num_requests_total": len(self.asked),
            "prompt_tokens_total": self.counted["prompt"],
            "generation_tokens_total": self.counted["made"],
            "cached_tokens_total": self.counted["hits"],
            "num_running_reqs": 0,
            "num_queue_reqs": 0,
        }
        names = sglang if self.owner == "sglang" else vllm
        prefix = "sglang" if self.owner == "sglang" else "vllm"
        more = 'finished_reason="length",'
        lines = (
            f'{prefix}:{name}{{{more if name == "request_success_total" else ""}model_name="m"}} {value}\n'
            for name, value in names.items()
        )
        return "".join(lines).encode()
