"""Faults of /v1/responses: errors and ends in its events, texts that they repeat, and counts at the end."""

from __future__ import annotations

from typing import Any

import msgspec

from fakes.faults import INPUT, OUTPUT, WHOLE, Ending, Fault, K, cut, events, fails, raw, succeeds
from fakes.faults_messages import event, unnamed
from fakes.faults_stream import CUT, EMPTY, NO_JSON, in_band
from fakes.scripted_server import DONE, Answer, whole


def text(value: object = "a") -> bytes:
    """An event with a text."""
    return event("response.output_text.delta", delta=value)


def counts(tokens: int = OUTPUT) -> dict[str, int]:
    """The usage of a response."""
    return {"input_tokens": INPUT, "output_tokens": tokens, "total_tokens": INPUT + tokens}


def answer(status: str = "incomplete", **more: Any) -> dict[str, Any]:
    """An answer of three tokens that ended at its length."""
    part = {"type": "output_text", "text": "aaa", "annotations": []}
    output = [{"type": "message", "role": "assistant", "content": [part]}]
    why = {"incomplete_details": {"reason": "max_output_tokens"}} if status == "incomplete" else {}
    return {
        "id": "r",
        "object": "response",
        "status": status,
        "output": output,
        "usage": counts(),
        **why,
        **more,
    }


def end(status: str = "incomplete", **more: Any) -> bytes:
    """The last event."""
    return event(f"response.{status}", response=answer(status, **more))


BEGUN = tuple(
    event(f"response.{kind}", response=answer(kind, output=[])) for kind in ("created", "in_progress")
)
OPEN = event("response.output_item.added", item={"type": "message", "content": []})
DONE_TEXT = event("response.output_text.done", text="aaa")
CLOSE = event("response.output_item.done", item=answer()["output"][0])
A, Z = text(), end()
ANSWER = (*BEGUN, OPEN, A, A, A, DONE_TEXT, CLOSE, Z)
GONE = {"code": "server_error", "message": "gone"}


def broken(name: str, sent: Answer, ending: Ending, **more: Any) -> Fault:
    """A row of this API."""
    return Fault(name, sent, ending, api="responses", whole=ANSWER, **more)


def ended(name: str, last: bytes, ending: Ending, **more: Any) -> Fault:
    """A row of three texts and this last event."""
    return broken(name, events(*ANSWER[:-1], last), ending, **more)


EVENTS = [
    broken("response.failed", events(*BEGUN, A, end("failed", error=GONE)), in_band("server_error: gone")),
    broken("response.failed without words", events(*BEGUN, A, end("failed")), in_band("the response failed")),
    broken(
        "response.failed first", events(BEGUN[0], end("failed", error=GONE)), in_band("server_error: gone")
    ),
    broken("an event of the type error", events(*BEGUN, A, event("error", **GONE)), in_band("gone")),
    broken("the same without its name", events(*BEGUN, A, unnamed(event("error", **GONE))), in_band("gone")),
    broken(
        "an error without a type",
        events(*BEGUN, A, b'data: {"error":{"message":"gone"}}\n\n'),
        in_band("gone"),
    ),
    broken("no names of events", events(*map(unnamed, ANSWER)), succeeds()),
    broken("[DONE] after the last event", events(*ANSWER, DONE), succeeds()),
    broken(
        "an event of an unknown type",
        events(*BEGUN, event("response.news", delta="a"), A, A, A, Z),
        succeeds(),
    ),
    broken("keepalives", events(*BEGUN, event("keepalive"), A, event("keepalive"), A, A, Z), succeeds()),
    broken("no begins and ends of items", events(A, A, A, Z), succeeds()),
    broken("no text but in the last event", events(*BEGUN, Z), succeeds()),
    broken("two of three, no last event", events(*BEGUN, OPEN, A, A, DONE_TEXT, CLOSE), CUT),
    broken("two of three, no last event but [DONE]", events(*BEGUN, OPEN, A, A, CLOSE, DONE), CUT),
    broken("two of three deltas, then cut", cut(*BEGUN, A, A), CUT),
    broken("cut in the last event", cut(*BEGUN, A, A, Z[:80]), CUT),
    ended(
        "response.completed of an incomplete one", event("response.completed", response=answer()), succeeds()
    ),
    ended("response.cancelled", end("cancelled"), fails(K.ABORTED, "finish_reason cancelled")),
    ended(
        "incomplete by a filter",
        end(incomplete_details={"reason": "content_filter"}),
        fails(K.ABORTED, "finish_reason content_filter"),
    ),
    ended("incomplete without a reason", end(incomplete_details=None), succeeds(reason="incomplete")),
    ended("a last event without counts", end(usage=None), succeeds(usage=False)),
    ended("counts of zero", end(usage=counts(0)), succeeds(usage=False)),
    ended("an output_tokens past all bytes", end(usage=counts(2**30)), fails(K.MALFORMED, "usage counts")),
    ended("an output_tokens of 2^31", end(usage=counts(2**31)), NO_JSON),
    ended("a negative output_tokens", end(usage=counts(-1)), NO_JSON),
    ended("a last event without its answer", event("response.completed"), NO_JSON),
    broken("a delta that is a number", events(*BEGUN, A, text(5), A, Z), NO_JSON),
    broken("a response of zero tokens", events(*BEGUN, end("completed", output=[], usage=counts(0))), EMPTY),
    broken("responses of completions", events(*WHOLE), fails(K.MALFORMED, "is it another API")),
    broken(
        "a response in one piece",
        raw(whole(msgspec.json.encode(answer()))),
        fails(K.NOT_STREAMED, "one JSON body"),
    ),
]
