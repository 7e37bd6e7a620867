"""What the null server writes: prebuilt messages with room for their send time, and shapes of an answer.

An answer is a list of writes, one per tick. By default it has one token per message and one message per
write; each Shape turns it into another list. The end of the stream is part of the last write.
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import msgspec

from loadgen_servers import http_server

# The placeholder of a send time: right-aligned in spaces, which JSON allows, so that lengths do not vary.
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
        """A message of some tokens, the last one with a finish reason."""
        choice = self.choice % (b" token" * tokens, b'"length"' if last else b"null")
        sized = self._event(b'[%s],"sent_ns":%s' % (choice, b"9" * _SENT_WIDTH))
        return Write(sized.replace(b"9" * _SENT_WIDTH, _SENT), 1)

    def usage(self, prompt_tokens: int, tokens: int) -> bytes:
        """A message with counts and no choice."""
        counts = b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}'
        return self._event(b'[],"usage":' + counts % (prompt_tokens, prompt_tokens + tokens, tokens))

    def closing(self, prompt_tokens: int, tokens: int) -> bytes:
        """Usage, `[DONE]` and the end of the body."""
        return self.usage(prompt_tokens, tokens) + http_server.event(b"[DONE]") + http_server.STREAM_END

    def role_alone(self) -> bytes:
        """A message that only has a role."""
        return self._event(self.role)

    def empty(self) -> bytes:
        """A message with an empty text, so without a token."""
        return self._event(b"[%s]" % (self.choice % (b"", b"null")))

    def answer(self, prompt_tokens: int, tokens: int, shapes: Sequence[Shape]) -> list[Write]:
        """Every write of an answer, head and end included."""
        writes = [self.single] * (tokens - 1) + [self.last]
        for shape in shapes:
            writes = shape.reshape(self, writes)
        first = writes[0]
        writes[0] = Write(http_server.STREAM_HEAD + first.data, first.messages, first.pause_ns)
        last = writes[-1]
        writes[-1] = Write(last.data + self.closing(prompt_tokens, tokens), last.messages)
        return writes

    def _event(self, choices: bytes) -> bytes:
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


class Shape(Protocol):
    """One way in which an answer differs from one token per message and one message per write."""

    def reshape(self, messages: Messages, writes: list[Write]) -> list[Write]:
        """A new list, never empty, whose last write has the last message."""
        ...


class TokensPerMessage(msgspec.Struct, frozen=True):
    """`count` tokens in each message, the rest in the last."""

    count: int

    def reshape(self, messages: Messages, writes: list[Write]) -> list[Write]:
        full, rest = divmod(len(writes) - 1, self.count)
        return [messages.token(self.count)] * full + [messages.token(rest + 1, last=True)]


class Extra(msgspec.Struct, frozen=True):
    """Before each message with a token, one without, in a write and thus a tick of its own."""

    kind: str

    def reshape(self, messages: Messages, writes: list[Write]) -> list[Write]:
        build = EXTRAS[self.kind]
        return [part for i, write in enumerate(writes) for part in (Write(build(messages, i)), write)]


EXTRAS: dict[str, Callable[[Messages, int], bytes]] = {
    "role": lambda messages, _: messages.role_alone(),
    "usage": lambda messages, before: messages.usage(1, before),
    "ping": lambda *_: http_server.chunk(b": ping\n\n"),
    "empty": lambda messages, _: messages.empty(),
}


@dataclass(frozen=True)
class MessagesPerWrite:
    """`count` messages in each write."""

    count: int

    def reshape(self, messages: Messages, writes: list[Write]) -> list[Write]:
        groups = [writes[i : i + self.count] for i in range(0, len(writes), self.count)]
        return [Write(b"".join(w.data for w in group), sum(w.messages for w in group)) for group in groups]


class Pieces(msgspec.Struct, frozen=True):
    """Each write with a token is cut into `count` pieces, a tick apart; the last has the send time."""

    count: int

    def reshape(self, messages: Messages, writes: list[Write]) -> list[Write]:
        return [piece for write in writes for piece in self._cut(write)]

    def _cut(self, write: Write) -> list[Write]:
        if not write.messages or self.count == 1:
            return [write]
        before, cuts = write.data.index(_SENT), self.count - 1
        edges = [before * i // cuts for i in range(cuts + 1)]
        pieces = [Write(write.data[a:b]) for a, b in pairwise(edges) if a < b]
        return [*pieces, Write(write.data[before:], write.messages)]


class Stall(msgspec.Struct, frozen=True):
    """A pause in the middle of each answer, milliseconds."""

    ms: float

    def reshape(self, messages: Messages, writes: list[Write]) -> list[Write]:
        if len(writes) < 2:
            return writes
        middle = (len(writes) - 1) // 2
        before = writes[middle]
        pause = Write(before.data, before.messages, int(self.ms * 1e6))
        return [*writes[:middle], pause, *writes[middle + 1 :]]


def _count(word: str) -> int:
    if not word.isdecimal() or not int(word):
        raise ArgumentTypeError(f"{word!r} is not a count: give 1 or more")
    return int(word)


def _extra(word: str) -> Extra:
    if word not in EXTRAS:
        raise ArgumentTypeError(f"{word!r} is not one of {', '.join(EXTRAS)}")
    return Extra(word)


def _stall(word: str) -> Stall:
    try:
        ms = float(word)
    except ValueError:
        ms = math.nan
    if not 0 <= ms < math.inf:
        raise ArgumentTypeError(f"{word!r} is not a time in milliseconds")
    return Stall(ms)


# By flag, in the order in which they are applied: the shape of the flag's value, the metavar, the help.
SHAPES: dict[str, tuple[Callable[[str], Shape], str, str]] = {
    "--tokens-per-message": (
        lambda word: TokensPerMessage(_count(word)),
        "K",
        "the rest in the last message",
    ),
    "--extra": (_extra, "KIND", f"a message without a token before each: {', '.join(EXTRAS)}"),
    "--messages-per-write": (lambda word: MessagesPerWrite(_count(word)), "M", "including extra ones"),
    "--pieces": (lambda word: Pieces(_count(word)), "P", "cut each message into P writes, a tick apart"),
    "--stall-ms": (_stall, "MS", "in the middle of each answer"),
}
