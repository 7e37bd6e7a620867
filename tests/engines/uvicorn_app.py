"""A server of one token after a while, on uvicorn as it comes: it closes idle connections after 5 seconds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

PREFILL_S = 0.2
_MODEL = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "someone"}]}
_CHOICE = {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}
_USAGE = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}


def _event(message: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(message).encode() + b"\n\n"


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The models, or a chat answer whose first byte comes after PREFILL_S."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    chat = scope["path"] == "/v1/chat/completions"
    if chat:
        await asyncio.sleep(PREFILL_S)
    kind = b"text/event-stream" if chat else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    body = json.dumps(_MODEL).encode()
    if chat:
        body = _event({"choices": [_CHOICE]}) + _event({"choices": [], "usage": _USAGE}) + b"data: [DONE]\n\n"
    await send({"type": "http.response.body", "body": body})
