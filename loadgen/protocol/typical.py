"""Typical: a stream's messages of which most are one and the same but for their text, parsed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from loadgen.arrays import Bool, Int64
from loadgen.protocol.openai import TOKEN, Dialect, Message
from loadgen.protocol.sse_fast import BEGIN, END, PlainStream, cut
from loadgen.protocol.untrusted import NOT_JSON

_FEWEST = 8  # messages; below them there is nothing to save
_WORD = np.dtype(np.uint32).itemsize  # bytes compared at once
_MARKS = b'"\\'  # bytes that may stand in a string, but not for themselves


class TypicalMessages(Sequence[Message]):
    """Messages of which all but the `parsed` ones, by their positions, carry text as `typical` does."""

    def __init__(self, typical: Message, parsed: dict[int, Message], count: int) -> None:
        self.typical, self.parsed = typical, parsed
        self._every = range(count)

    def __len__(self) -> int:
        return len(self._every)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in self._every[at]]
        return self.parsed.get(self._every[at], self.typical)


def parsed(messages: Sequence[Message]) -> Iterable[tuple[int, Message]]:
    """Those messages, by their positions, that do not merely carry text, and maybe others."""
    return messages.parsed.items() if isinstance(messages, TypicalMessages) else enumerate(messages)


class _Template(msgspec.Struct, frozen=True):
    """What is before and after the text of a message."""

    message: Message
    before: bytes
    after: bytes


def read(dialect: Dialect, stream: PlainStream) -> TypicalMessages | None:
    """One message an event, if many are alike; texts are not kept. None where all are to be parsed."""
    count = len(stream.begins)
    if dialect.cumulative or count < _FEWEST:
        return None
    found = (_template(dialect, _data(stream, at)) for at in (count // 2, count // 3, 1))
    template = next(filter(None, found), None)
    if template is None or not _utf8(stream.raw):
        return None
    odd: list[int] = (~_alike(stream, template)).nonzero()[0].tolist()
    if 2 * len(odd) > count:
        return None
    try:
        messages = dialect.messages(b"\n".join([_data(stream, at) for at in odd]))
    except NOT_JSON:
        return None
    # One without choices may be an error's remark, which is read from its line.
    if len(messages) != len(odd) or any(message.choices is None for message in messages):
        return None
    return TypicalMessages(template.message, dict(zip(odd, messages, strict=True)), count)


def _data(stream: PlainStream, at: int) -> bytes:
    return stream.raw[stream.begins[at] : stream.ends[at]]


def _utf8(raw: bytes) -> bool:
    """Whether all of it is; then each text between two quotes is."""
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _template(dialect: Dialect, line: bytes) -> _Template | None:
    """The template of a message that carries a text and nothing else; None of any other.

    That the text stands where it seems to is not guessed: with a letter more there, the message's text must
    have that letter too. So these bytes are the inside of a string and its value is the text: whatever else
    is put there, if it neither ends a string nor escapes in it, the message is the same but for its text.
    """
    try:
        (message,) = dialect.messages(line)
        text = _only_text(message)
        written = text.encode()
        begin = line.rfind(b'"%b"' % written) + 1
        before, after = line[:begin], line[begin + len(written) :]
        (longer,) = dialect.messages(b"%b%bx%b" % (before, written, after))
    except (*NOT_JSON, ValueError):  # ValueError: half a character, or no message at all
        return None
    if not text or not begin or any(mark in written for mark in _MARKS) or _only_text(longer) != f"{text}x":
        return None
    return _Template(message, before, after)


def _only_text(message: Message) -> str:
    """The text of a message that carries nothing else; "" of any other."""
    if message.error is not None or message.usage is not None or len(message.choices or ()) != 1:
        return ""
    (choice,) = message.choices or ()
    if choice.carries() != TOKEN or choice.finish_reason is not None or choice.token_ids is not None:
        return ""
    return choice.content()


def _alike(stream: PlainStream, template: _Template) -> Bool:
    """Which events are of a template, bool[events]; the last never is."""
    begins, ends = stream.begins + len(template.before), stream.ends - len(template.after)
    alike = begins < ends
    alike[-1] = False
    at = alike.nonzero()[0]
    # A few bytes more, which are the same around every line, make whole words of both.
    before = BEGIN[len(BEGIN) - -len(template.before) % _WORD :] + template.before
    after = template.after + END[: -len(template.after) % _WORD]
    alike[at[_different(stream.raw, begins[at] - len(before), before)]] = False
    alike[at[_different(stream.raw, ends[at], after)]] = False
    at = alike.nonzero()[0]
    begins, lengths = begins[at], ends[at] - begins[at]
    until = lengths.cumsum()
    inside = (begins - until + lengths).repeat(lengths) + np.arange(until[-1])
    texts = np.frombuffer(stream.raw, np.uint8)[inside].tobytes()
    for mark in _MARKS:
        if mark in texts:
            marked = np.frombuffer(texts, np.uint8) == mark
            alike[at[until.searchsorted(marked.nonzero()[0], "right")]] = False
    return alike


def _different(raw: bytes, places: Int64, wanted: bytes) -> Int64:
    """From which places on the bytes are not the wanted ones, which are whole words; int64 positions."""
    words = cut(raw, places, len(wanted)).view(np.uint32).reshape(len(places), -1)
    different: Int64 = (words != np.frombuffer(wanted, np.uint32)).ravel().nonzero()[0]
    return different // words.shape[1]
