"""Decoded stream: the bytes of a streamed answer taken apart into messages, each with where it ends."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.base.arrays import Int64
from loadgen.base.untrusted import NOT_JSON
from loadgen.transport.capture import Capture
from loadgen.wire import sse, typical
from loadgen.wire.http1 import Headers, HttpBody, unframe_response
from loadgen.wire.openai import Dialect, Message
from loadgen.wire.sse import PlainStream


class DecodedStream(msgspec.Struct, frozen=True):
    """A streamed answer as messages; `read_ends` is int64[reads], `ends` int64[events].

    `read_ends` is how many bytes had come after each read, `ends` how many must have come for each event's
    data to be complete: bytes of the body, or of the whole response.
    """

    read_ends: Int64
    ends: Int64
    messages: Sequence[Message]  # of the events, up to the first malformed one
    body_bytes: int
    headers: Headers
    complete: bool  # the framing's end was seen
    done: bool  # `[DONE]` was seen
    lines: bytes | bytearray = b""  # of JSON; not kept where no message has a remark
    plain: PlainStream | None = None  # where the texts of `messages` are in this alone
    malformed: str = ""
    fault: bytes | None = None  # as of `sse.Events`
    unread: bytes = b""  # the body, where no event is in it


def read_plain(dialect: Dialect, capture: Capture, keep_text: bool) -> DecodedStream | None:
    """Decode a stream in the exact form that most servers send; None for any other answer."""
    if not capture.framed or capture.failure is not None:
        return None
    stream = sse.read_plain_stream(capture.raw)
    if stream is None:
        return None
    messages: Sequence[Message] | None = None if keep_text else typical.read_typical(dialect, stream)
    lines = bytearray()
    if messages is None:
        lines = stream.lines()
        messages = _read_messages(dialect, lines, len(stream.ends))
    if messages is None:
        return None
    return DecodedStream(
        read_ends=capture.read_ends(),
        ends=stream.ends + 1,
        messages=messages,
        body_bytes=stream.body_bytes,
        headers=stream.headers,
        complete=True,
        done=stream.done,
        lines=lines,
        plain=None if lines else stream,
    )


def take_apart(dialect: Dialect, answer: HttpBody) -> DecodedStream:
    """Decode a stream of any form into messages, up to the first malformed one."""
    events, malformed = sse.read_events(answer.body, answer.complete), ""
    messages = _read_messages(dialect, events.lines, len(events.ends))
    if messages is None:
        events, malformed = _split_at_malformed(dialect, answer)
        messages = dialect.read_messages(events.lines)
    return DecodedStream(
        read_ends=answer.body_ends,
        ends=events.ends,
        messages=messages,
        body_bytes=len(answer.body),
        headers=answer.headers,
        complete=answer.complete,
        done=events.done,
        lines=events.lines,
        malformed=answer.malformed or malformed,
        fault=events.fault,
        unread=b"" if len(events.ends) or events.done or b":" in answer.body[:1] else answer.body.strip(),
    )


def read_texts(dialect: Dialect, stream: DecodedStream, messages: int) -> Sequence[Message] | None:
    """Decode a stream's first messages again, with their texts; None if they cannot be parsed one by one."""
    every: Sequence[Message] | None = stream.messages
    if stream.plain is not None:
        every = _read_messages(dialect, stream.plain.lines(), len(stream.messages))
    return None if every is None else every[:messages]


def unframe(capture: Capture) -> HttpBody:
    """Remove HTTP framing from a capture; a body that the transport cut short is never complete."""
    ends = capture.read_ends()
    if not capture.framed:
        return HttpBody(capture.status, {}, capture.raw, ends, capture.failure is None, None)
    answer = unframe_response(capture.raw, ends)
    return replace(answer, complete=answer.complete and capture.failure is None)


def content_type(headers: Headers) -> str:
    """Return a response's Content-Type, without parameters; text/event-stream if it names none."""
    return headers.get("content-type", "text/event-stream").partition(";")[0].strip()


def is_one_body(answer: HttpBody) -> bool:
    """Whether an answer came in one piece, not as events; some servers label a stream as JSON."""
    body = answer.body.lstrip()
    return body[:1] == b"{" or (content_type(answer.headers) == "application/json" and b"data:" not in body)


def has_many_objects(body: bytes) -> bool:
    """Whether a body is several JSON objects, a line each, by the first, as Ollama's own API streams."""
    first, _, others = body.strip().partition(b"\n")
    if not others:
        return False
    try:
        return isinstance(msgspec.json.decode(first), dict)
    except NOT_JSON:
        return False


def _read_messages(dialect: Dialect, lines: bytes | bytearray, events: int) -> Sequence[Message] | None:
    """Parse one message per line; None if some event is not JSON."""
    try:
        messages = dialect.read_messages(lines)
    except NOT_JSON:
        return None
    return messages if len(messages) == events else None


def _split_at_malformed(dialect: Dialect, answer: HttpBody) -> tuple[sse.Events, str]:
    """Return all events, with the lines of those before the first malformed one, and what is wrong."""
    datas, ends, done, fault = sse.split_events(answer.body, answer.complete)
    good: list[bytes] = []
    malformed = ""
    for data in map(sse.join_lines, datas):
        try:
            (_,) = dialect.read_messages(data)
        except (*NOT_JSON, ValueError) as error:
            malformed = f"event {len(good) + 1}: {error}: {data.decode('utf-8', 'replace')}"
            break
        good.append(data)
    return sse.Events(b"\n".join(good), np.array(ends, np.int64), done, fault), malformed
