"""Faults of Anthropic's messages: errors in its events, ends, pings, and counts in two of them."""

from __future__ import annotations

from typing import Any

import msgspec

from fakes.faults import INPUT, OUTPUT, WHOLE, Ending, Fault, K, cut, events, fails, lasting, raw, succeeds
from fakes.faults_stream import CUT, EMPTY, NO_JSON, in_band
from fakes.scripted_server import DONE, HEAD, Answer, End, chunk, whole


def event(kind: str, **more: Any) -> bytes:
    """An event under its name."""
    data = msgspec.json.encode({"type": kind, **more})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def text(value: object = "a") -> bytes:
    """An event with a text."""
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": value})


def end(reason: str | None = "max_tokens", **usage: int) -> bytes:
    """The event with the end and its counts."""
    return event("message_delta", delta={"stop_reason": reason}, usage=usage or {"output_tokens": OUTPUT})


def error(**more: Any) -> bytes:
    """An event of an error."""
    return event("error", error=more)


def unnamed(data: bytes) -> bytes:
    """The event without its name."""
    return data.partition(b"\n")[2]


BEGIN = event("message_start", message={"usage": {"input_tokens": INPUT, "output_tokens": 1}})
OPEN = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
CLOSE, STOP, PING = event("content_block_stop", index=0), event("message_stop"), event("ping")
A, Z, OVER = text(), end(), error(type="overloaded_error", message="Overloaded")
BEGUN, ENDED = (BEGIN, OPEN), (CLOSE, Z, STOP)
MESSAGE = (*BEGUN, A, A, A, *ENDED)
STALLED = fails(K.STALL, r"\w{3}")


def broken(name: str, sent: Answer, ending: Ending, **more: Any) -> Fault:
    """A row of this API."""
    return Fault(name, sent, ending, api="messages", whole=MESSAGE, **more)


EVENTS = [
    broken("an event of error", events(*BEGUN, A, OVER), in_band("Overloaded")),
    broken("an event of error, then the end", events(*BEGUN, A, OVER, STOP), in_band("Overloaded")),
    broken("an event of error without its name", events(*BEGUN, A, unnamed(OVER)), in_band("Overloaded")),
    broken("an event of error first", events(BEGIN, OVER, STOP), in_band("Overloaded")),
    broken("an event of error after the end", events(*MESSAGE[:-1], OVER), in_band("Overloaded")),
    broken(
        "an event of error without words",
        events(*BEGUN, A, unnamed(error())),
        in_band("an error without a message"),
    ),
    broken("the names of events left out", events(*map(unnamed, MESSAGE)), succeeds()),
    broken("pings between texts", events(*BEGUN, A, PING, A, PING, PING, A, *ENDED), succeeds()),
    broken(
        "events of ping for ever",
        Answer([HEAD, *map(chunk, (*BEGUN, A)), *lasting(chunk(PING), 40, 0.05)], End.HANG),
        STALLED,
        requests=3,
    ),
    broken(
        "events of ping for ever before a text",
        Answer([HEAD, *lasting(chunk(PING), 40, 0.05)], End.HANG),
        STALLED,
        requests=3,
    ),
    broken("an unknown event", events(*BEGUN, event("news", delta={}), A, A, A, *ENDED), succeeds()),
    broken("no message_stop", events(*MESSAGE[:-1]), succeeds()),
    broken("no message_start", events(*MESSAGE[1:]), succeeds()),
    broken("no blocks' begins and ends", events(BEGIN, A, A, A, Z, STOP), succeeds()),
    broken("[DONE] after message_stop", events(*MESSAGE, DONE), succeeds()),
    broken("two of three, without message_delta", events(*BEGUN, A, A, CLOSE, STOP), CUT),
    broken("two of three, without message_delta but [DONE]", events(*BEGUN, A, A, CLOSE, STOP, DONE), CUT),
    broken(
        "two of three, the end without a reason", events(*BEGUN, A, A, end(None, output_tokens=2), STOP), CUT
    ),
    broken("two of three texts, then cut", cut(*BEGUN, A, A), CUT),
    broken("cut in an event", cut(*BEGUN, A, A, A[:40]), CUT),
    broken(
        "a message without its counts",
        events(*BEGUN, A, A, A, CLOSE, end(odd=1), STOP),
        succeeds(usage=False),
    ),
    broken("a message of zero tokens", events(*BEGUN, CLOSE, end("end_turn", output_tokens=0), STOP), EMPTY),
    broken(
        "zero counted next to texts",
        events(*BEGUN, A, A, A, CLOSE, end(output_tokens=0), STOP),
        succeeds(usage=False),
    ),
    broken("two counts, the last of all", events(*MESSAGE[:-2], end(output_tokens=2), Z, STOP), succeeds()),
    broken(
        "a count past all bytes",
        events(*BEGUN, A, A, A, CLOSE, end(output_tokens=2**30), STOP),
        fails(K.MALFORMED, "usage counts"),
    ),
    broken("a count of 2^31", events(*BEGUN, A, A, A, CLOSE, end(output_tokens=2**31), STOP), NO_JSON),
    broken(
        "a negative count",
        events(event("message_start", message={"usage": {"input_tokens": -1}}), A, Z),
        NO_JSON,
    ),
    broken("a text_delta that is a number", events(*BEGUN, A, text(5), A, *ENDED), NO_JSON),
    broken("a message that is text", events(event("message_start", message="a"), *MESSAGE[1:]), NO_JSON),
    broken(
        "a refusal",
        events(*BEGUN, A, A, A, CLOSE, end("refusal", output_tokens=3), STOP),
        fails(K.ABORTED, "finish_reason"),
    ),
    broken("messages of completions", events(*WHOLE), fails(K.MALFORMED, "is it another API")),
    broken(
        "a message in one piece",
        raw(whole(b'{"type":"message","content":[{"type":"text","text":"abc"}],"stop_reason":"end_turn"}')),
        fails(K.NOT_STREAMED, "one JSON body"),
    ),
]
