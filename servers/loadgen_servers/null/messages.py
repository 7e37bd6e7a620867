"""What the null server writes: prebuilt messages with room for their send time, and shapes of an answer.

An answer is a list of writes, one per tick. By default it has one token per message and one message per
write; each Shape turns it into another list. The end of the stream is part of the last write.
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen_servers import http_server

# The placeholder of a send time, right-aligned in spaces so that lengths do not vary.
_SENT = b"%19d"
_SENT_WIDTH = 19


class Write(msgspec.Struct, frozen=True):
    """One write of an answer: its bytes are `data % ((sent_ns,) * messages)`."""

    data: bytes
    messages: int = 0  # messages with a token that it completes; each holds its send time
    pause_ns: int = 0  # before the next write


@dataclass(frozen=True)
class Messages:
    """The messages of one dialect; in `choice` the text and the finish reason are `%s`."""

    kind: bytes
    choice: bytes
    role: bytes  # the choices of a message that only has a role; empty if the API has no roles
    single: Write = field(init=False)
    last: Write = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "single", self.token(1))
        object.__setattr__(self, "last", self.token(1, last=True))

    def token(self, tokens: int, last: bool = False) -> Write:
        """A message of some tokens, the last one with a finish reason; its text ends in its send time."""
        text = b" token" * (tokens - 1) + b" " + b"9" * _SENT_WIDTH
        sized = self.event(b"[%s]" % (self.choice % (text, b'"length"' if last else b"null")))
        return Write(sized.replace(b"9" * _SENT_WIDTH, _SENT), 1)

    def usage(self, prompt_tokens: int, tokens: int) -> bytes:
        """A message with counts and no choice."""
        counts = b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}'
        return self.event(b'[],"usage":' + counts % (prompt_tokens, prompt_tokens + tokens, tokens))

    def closing(self, prompt_tokens: int, tokens: int) -> bytes:
        """Usage, `[DONE]` and the end of the body."""
        return self.usage(prompt_tokens, tokens) + http_server.event(b"[DONE]") + http_server.STREAM_END

    def answer(self, prompt_tokens: int, tokens: int, shapes: Sequence[Shape]) -> list[Write]:
        """Every write of an answer, head and end included."""
        writes = [self.single] * (tokens - 1) + [self.last]
        for shape in shapes:
            writes = shape(self, writes)
        first = writes[0]
        writes[0] = Write(http_server.STREAM_HEAD + first.data, first.messages, first.pause_ns)
        last = writes[-1]
        writes[-1] = Write(last.data + self.closing(prompt_tokens, tokens), last.messages)
        return writes

    def event(self, choices: bytes) -> bytes:
        """A message with these choices, and whatever follows them."""
        head = b'{"id":"cmpl-null","object":"%s","created":0,"model":"null","choices":%s}'
        return http_server.event(head % (self.kind, choices))


DIALECTS = {
    "/v1/completions": Messages(
        b"text_completion",
        b'{"index":0,"text":"%s","logprobs":null,"finish_reason":%s,'
        b'"stop_reason":null,"prompt_token_ids":null,"token_ids":null}',
        b"[]",
    ),
    "/v1/chat/completions": Messages(
        b"chat.completion.chunk",
        b'{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":%s,"token_ids":null}',
        b'[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]',
    ),
}


# One way in which an answer differs from one token per message and one message per write: makes a new list,
# never empty, whose last write has the last message.
Shape = Callable[[Messages, list[Write]], list[Write]]
EXTRAS: dict[str, Callable[[Messages, int], bytes]] = {
    "role": lambda messages, _: messages.event(messages.role),
    "usage": lambda messages, before: messages.usage(1, before),
    "ping": lambda *_: http_server.chunk(b": ping\n\n"),
    "empty": lambda messages, _: messages.event(b"[%s]" % (messages.choice % (b"", b"null"))),
}


def _tokens_per_message(count: int, messages: Messages, writes: list[Write]) -> list[Write]:
    full, rest = divmod(len(writes) - 1, count)
    return [messages.token(count)] * full + [messages.token(rest + 1, last=True)]


def _extra(kind: str, messages: Messages, writes: list[Write]) -> list[Write]:
    """Before each message with a token, one without, in a write and thus a tick of its own."""
    build = EXTRAS[kind]
    return [part for i, write in enumerate(writes) for part in (Write(build(messages, i)), write)]


def _messages_per_write(count: int, messages: Messages, writes: list[Write]) -> list[Write]:
    groups = [writes[i : i + count] for i in range(0, len(writes), count)]
    return [Write(b"".join(w.data for w in group), sum(w.messages for w in group)) for group in groups]


def _pieces(count: int, messages: Messages, writes: list[Write]) -> list[Write]:
    """Each write with a token is cut into `count` pieces, a tick apart; the last has the send time."""
    pieces: list[Write] = []
    for write in writes:
        sent_at = 0
        if write.messages and count > 1:
            sent_at = write.data.index(_SENT)
            edges = [sent_at * i // (count - 1) for i in range(count)]
            pieces += [Write(write.data[a:b]) for a, b in pairwise(edges) if a < b]
        pieces.append(replace(write, data=write.data[sent_at:]))
    return pieces


def _stall(ms: float, messages: Messages, writes: list[Write]) -> list[Write]:
    if len(writes) < 2:
        return writes
    middle = (len(writes) - 1) // 2
    return [*writes[:middle], replace(writes[middle], pause_ns=int(ms * 1e6)), *writes[middle + 1 :]]


def _count(word: str) -> int:
    if not word.isdecimal() or not int(word):
        raise ArgumentTypeError(f"{word!r} is not a count: give 1 or more")
    return int(word)


def _kind(word: str) -> str:
    if word not in EXTRAS:
        raise ArgumentTypeError(f"{word!r} is not one of {', '.join(EXTRAS)}")
    return word


def _milliseconds(word: str) -> float:
    try:
        ms = float(word)
    except ValueError:
        ms = math.nan
    if not 0 <= ms < math.inf:
        raise ArgumentTypeError(f"{word!r} is not a time in milliseconds")
    return ms


def _shape(
    reshape: Callable[[Any, Messages, list[Write]], list[Write]], convert: Callable[[str], Any]
) -> Callable[[str], Shape]:
    return lambda word: partial(reshape, convert(word))


# Shapes by flag, in the order in which they are applied: the value's shape, the metavar, the help.
SHAPES: dict[str, tuple[Callable[[str], Shape], str, str]] = {
    "--tokens-per-message": (_shape(_tokens_per_message, _count), "K", "the rest in the last chunk"),
    "--extra": (_shape(_extra, _kind), "KIND", f"a chunk without a token before each: {', '.join(EXTRAS)}"),
    "--messages-per-write": (_shape(_messages_per_write, _count), "M", "including extra ones"),
    "--pieces": (_shape(_pieces, _count), "P", "cut each chunk into P writes, a tick apart"),
    "--stall-ms": (_shape(_stall, _milliseconds), "MS", "in the middle of each response"),
}
