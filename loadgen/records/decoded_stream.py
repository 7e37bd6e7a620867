"""Decoded stream: a streamed answer taken apart into messages, each with where it ends, and their tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from loadgen.base.arrays import Int64
from loadgen.base.untrusted import NOT_JSON, read_error_text
from loadgen.transport.capture import Capture
from loadgen.wire import sse
from loadgen.wire.http1 import Headers, HttpBody, unframe_response
from loadgen.wire.openai import (
    CLOSING,
    ENDING,
    MAYBE,
    NOTHING,
    TOKEN,
    Dialect,
    Message,
    StreamSummary,
    read_remark,
    summarize,
)
from loadgen.wire.sse import PlainStream

# Tokens that may leave no byte in an answer, a million: reasoning that is not shown, special tokens.
SILENT_TOKENS: Final = 1 << 20
_ONE: Final = np.ones(1, np.int64)
UNCOUNTED_TEXT: Final = 0.1  # of the messages with text, that a running count may go past


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
    """Decode a whole stream in the exact form that most servers send; None for any other or failed answer."""
    if not capture.framed or capture.failure is not None:
        return None
    found = sse.read_plain_messages(dialect, capture.raw, keep_text)
    if found is None:
        return None
    stream, messages, lines = found
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
    messages = sse.read_messages(dialect, events.lines, len(events.ends))
    if messages is None:
        events, malformed = _reread_to_malformed(dialect, answer)
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
        every = sse.read_messages(dialect, stream.plain.lines(), len(stream.messages))
    return None if every is None else every[:messages]


def unframe(capture: Capture) -> HttpBody:
    """Remove HTTP framing from a capture; a body that the transport cut short is never complete."""
    ends = capture.read_ends()
    if not capture.framed:
        return HttpBody(capture.status, {}, capture.raw, ends, capture.failure is None, None)
    answer = unframe_response(capture.raw, ends)
    return replace(answer, complete=answer.complete and capture.failure is None)


def read_content_type(headers: Headers) -> str:
    """Return a response's Content-Type, without parameters; text/event-stream if it names none."""
    return headers.get("content-type", "text/event-stream").partition(";")[0].strip()


def is_one_body(answer: HttpBody) -> bool:
    """Whether an answer came in one piece, not as events; some servers label a stream as JSON."""
    body, kind = answer.body.lstrip(), read_content_type(answer.headers)
    return body[:1] == b"{" or (kind == "application/json" and b"data:" not in body)


def has_many_objects(body: bytes) -> bool:
    """Whether a body is several JSON objects, a line each, by the first, as Ollama's own API streams."""
    first, _, others = body.strip().partition(b"\n")
    if not others:
        return False
    try:
        return isinstance(msgspec.json.decode(first), dict)
    except NOT_JSON:
        return False


def _reread_to_malformed(dialect: Dialect, answer: HttpBody) -> tuple[sse.Events, str]:
    """Read an answer again: the ends of all events, the lines of those before a malformed one, its error."""
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


def explain_excess(total: int, body_bytes: int) -> str:
    """Explain that an answer's bytes cannot carry `total` tokens; "" if they can.

    A token leaves a byte at least, but for those that are not shown.
    """
    if total <= body_bytes + SILENT_TOKENS:
        return ""
    return f"usage counts {total} tokens in a response of {body_bytes} bytes"


class TokenCounts(msgspec.Struct, frozen=True):
    """The tokens of one answer; `messages` and `tokens` are int64[messages that carried tokens]."""

    messages: Int64
    tokens: Int64
    total: int
    usage: bool  # the total is the server's
    exact: bool  # the tokens of each message are known


def count_stream(stream: DecodedStream) -> tuple[StreamSummary, TokenCounts, str]:
    """Summarize a stream and count its tokens; third, why its usage is impossible and left out, else ""."""
    summary = summarize(stream.messages, stream.lines)
    counted = count_tokens(stream.messages, summary)
    excess = explain_excess(counted.total, stream.body_bytes)
    if excess:
        summary = summary.drop_usage()
        counted = count_tokens(stream.messages, summary)
    return summary, counted, excess


def count_tokens(messages: Sequence[Message], summary: StreamSummary) -> TokenCounts:
    """Count the tokens of each message, from the best source that the server offers.

    In this order: its token ids, its running usage, one token a message where their number is the usage's,
    else the usage spread evenly. A count of zero next to text does not count, nor do counts of messages that
    go past those with text.
    """
    total = summary.usage.completion_tokens if summary.usage else None
    if total == 0 and TOKEN in summary.kinds:
        total = None
    per_message = _count_ids(messages, summary, total) if summary.ids else None
    if per_message is None and len(summary.usage_at) > 1:
        per_message, total = _count_running_usage(messages, summary, total)
    if per_message is not None:
        per_message = _move_to_text(per_message, np.frombuffer(summary.kinds, np.uint8))
    if per_message is not None:
        carrying = np.flatnonzero(per_message)
        tokens = per_message[carrying]
        return TokenCounts(carrying, tokens, int(tokens.sum()), total is not None, True)
    carrying, exact = _find_carrying(summary, total)
    if total is None:
        return TokenCounts(carrying, np.ones(len(carrying), np.int64), len(carrying), False, False)
    return TokenCounts(carrying, spread_tokens(total, len(carrying)), total, True, exact)


def spread_tokens(total: int, messages: int) -> Int64:
    """Divide `total` tokens over `messages` messages as evenly as integers allow, int64[messages].

    The first message carries one at least, unless `total` is 0: text cannot have come from none.
    """
    if messages in (0, total):
        return _ONE.repeat(messages)
    round_up = messages - 1 if total < messages else 0
    edges = (np.arange(messages + 1, dtype=np.int64) * total + round_up) // messages
    return edges[1:] - edges[:-1]


def _count_ids(messages: Sequence[Message], summary: StreamSummary, total: int | None) -> Int64 | None:
    """Count tokens by `return_token_ids`, int64[messages]; None unless they sum to `total`.

    Where that is unknown, None unless each message with text has some.
    """
    listed = [
        sum(len(choice.token_ids or ()) for choice in message.choices or ())
        for message, _ in zip(messages, summary.kinds, strict=False)
    ]
    if total is None:
        complete = all(n or kind != TOKEN for n, kind in zip(listed, summary.kinds, strict=True))
    else:
        complete = sum(listed) == total
    return np.array(listed, np.int64) if complete else None


def _count_running_usage(
    messages: Sequence[Message], summary: StreamSummary, total: int | None
) -> tuple[Int64 | None, int | None]:
    """Count tokens by `continuous_usage_stats`, and the total; (None, total) if it does not add up.

    vLLM and SGLang count per choice on the way, and all choices in the usage message at the end.
    """
    seen: dict[int, int] = {}
    added = np.zeros(len(summary.kinds), np.int64)
    for at in summary.usage_at:
        usage, choices = messages[at].usage, messages[at].choices
        if usage is not None and usage.completion_tokens is not None and choices:
            index = choices[0].index
            added[at] = usage.completion_tokens - seen.get(index, 0)
            seen[index] = usage.completion_tokens
    if not summary.own_usage and total is not None:  # the last usage was of one choice only
        total = sum(seen.values())
    if total is None or added.min(initial=0) < 0 or added.sum() != total:
        return None, total
    return added, total


def _move_to_text(tokens: Int64, kinds: NDArray[np.uint8]) -> Int64 | None:
    """Move token counts to the messages with their text; None if most cannot be tokens of these messages.

    What is counted on a message without a place for text (a role, at admission) is of the next text, and so
    is what comes before the first text and is reached again by it. Text cannot have come from no token: where
    the first one would, or more than UNCOUNTED_TEXT of them, the counts are of something else (of the whole
    answer, of each chunk alone, of every tenth). A parser may share a token between two messages.
    """
    texts = (kinds == TOKEN).nonzero()[0]
    if not len(texts) or (tokens[texts].all() and not tokens[kinds == NOTHING].any()):
        return tokens
    moved, first = tokens.copy(), texts[0]
    for at in ((kinds == NOTHING) & (tokens > 0)).nonzero()[0].tolist():
        place = texts.searchsorted(at)
        if place < len(texts):
            moved[texts[place]] += moved[at]
            moved[at] = 0
    if not moved[first]:
        moved[first] = moved[:first].sum()
        moved[:first] = 0
    without = np.count_nonzero(moved[texts] == 0)
    return moved if moved[first] and without <= UNCOUNTED_TEXT * len(texts) else None


def _find_carrying(summary: StreamSummary, total: int | None) -> tuple[Int64, bool]:
    """Find the positions of messages with tokens, int64[…], and whether the total confirms them.

    An empty text may be a token (incomplete UTF-8, a special one), so of TOKEN, then MAYBE, then ENDING as
    many are taken as make the total. An empty end that brings the only usage with it is not one:
    `transformers serve` closes every stream so. A bare finish reason is one only where the usage counts a
    token and nothing else can have carried it (an eos at once).
    """
    if summary.kinds.count(TOKEN) == total:
        begin, end = summary.kinds.find(TOKEN), summary.kinds.rfind(TOKEN) + 1
        if end - begin == total:  # nearly always, and no array to search
            return np.arange(begin, end), True
        return (np.frombuffer(summary.kinds, np.uint8) == TOKEN).nonzero()[0], True
    kinds = np.frombuffer(summary.kinds, np.uint8).copy()
    if len(summary.usage_at) == 1 and not summary.own_usage and kinds[summary.usage_at[0]] == ENDING:
        kinds[summary.usage_at[0]] = CLOSING
    likely = (kinds >= MAYBE).nonzero()[0]
    if total is None or len(likely) == total:
        return likely, total is not None
    most = (kinds >= ENDING).nonzero()[0]
    if len(most) <= total:
        most = most if len(most) else np.flatnonzero(kinds == CLOSING)[-1:]
        return most, len(most) in (1, total)
    sure = (kinds == TOKEN).nonzero()[0]
    return sure if len(sure) else most[len(most) - total :], False


def find_fault(dialect: Dialect, body: bytes) -> str:
    """Find the first error that a body with status 200 reports, streamed or whole; "" if it reports none."""
    datas, _, _, fault = sse.split_events(body, whole=True)
    for data in map(sse.join_lines, datas or [body]):
        messages = list(_list_messages(dialect, [data]))
        remark = None if any(message.choices for message in messages) else read_remark(data)
        if found := next(filter(None, (message.read_fault() for message in messages)), remark):
            return found
    return "" if fault is None else read_error_text(fault).strip()


def _list_messages(dialect: Dialect, datas: Iterable[bytes]) -> Iterator[Message]:
    """Yield the messages of events; those that cannot be read are skipped."""
    for data in map(sse.join_lines, datas):
        with contextlib.suppress(*NOT_JSON, ValueError):
            yield from dialect.read_messages(data)


def count_prompt(dialect: Dialect, body: bytes) -> int | None:
    """Return the last count of a prompt above 0 in an answer's body, streamed or whole.

    0 if all are 0, None if it has none. Events that cannot be read are skipped.
    """
    tokens = None
    for message in _list_messages(dialect, sse.split_events(body, whole=True)[0] or [body]):
        if message.usage is not None and message.usage.prompt_tokens is not None:
            tokens = message.usage.prompt_tokens or tokens or 0  # some report zeros before the end
    return tokens
