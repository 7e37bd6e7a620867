"""Typical messages: a stream whose messages differ in little but their text, which are parsed once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Int64
from loadgen.base.untrusted import NOT_JSON
from loadgen.wire.openai import Dialect, Message
from loadgen.wire.sse import BEGIN, END, PlainStream, cut_lines

_FEWEST = 64  # messages; below them to parse them all is as quick
_WORD = np.dtype(np.uint32).itemsize  # bytes compared at once
_NOWHERE = slice(0, 0)
_CREATED = re.compile(rb'"created": ?[0-9]{5}([0-9]{5})[,}]')  # which some servers take for each message
_ZERO, _DIGITS = np.uint8(ord("0")), 10
_QUOTE, _ESCAPE = b'"', b"\\"


class TypicalMessages(Sequence[Message]):
    """The messages of a stream, of which only the `parsed` ones differ from `typical` in more than text."""

    __slots__ = ("_every", "parsed", "typical")

    def __init__(self, typical: Message, parsed: dict[int, Message], count: int) -> None:
        self.typical, self.parsed = typical, parsed
        self._every = range(count)

    def __len__(self) -> int:
        return len(self._every)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in self._every[at]]
        return self.parsed.get(self._every[at], self.typical)


def list_parsed(messages: Sequence[Message]) -> Iterable[tuple[int, Message]]:
    """List (position, message) of those that carry more than text, and perhaps of others."""
    return messages.parsed.items() if isinstance(messages, TypicalMessages) else enumerate(messages)


class _Template(msgspec.Struct, frozen=True):
    """The bytes before and after a message's text; `seconds` is the slice of its time among those before."""

    message: Message
    before: bytes
    after: bytes
    seconds: slice  # digits of a time that mean nothing here; empty where there is none


def read_typical(dialect: Dialect, stream: PlainStream) -> TypicalMessages | None:
    """Read a stream as typical messages if most are alike, without texts; None: parse each of them."""
    count = len(stream.begins)
    if dialect.cumulative or count < _FEWEST:
        return None
    for at in (count // 2, count // 3, 1):
        template = _make_template(dialect, _read_data(stream, at))
        if template is not None:
            break
    else:
        return None
    try:
        odd = _find_odd(stream, template, _find_loose(stream, template))
        if 2 * len(odd) > count:
            return None
        messages = dialect.read_messages(b"\n".join([_read_data(stream, at) for at in odd]))
    except (*NOT_JSON, IndexError):  # UnicodeDecodeError of a text; IndexError: something short at the end
        return None
    # One without choices may be an error's remark, which is read from its line.
    if len(messages) != len(odd) or None in [message.choices for message in messages]:
        return None
    return TypicalMessages(template.message, dict(zip(odd, messages, strict=True)), count)


def _read_data(stream: PlainStream, at: int) -> bytes:
    return stream.raw[stream.begins[at] : stream.ends[at]]


def _make_template(dialect: Dialect, line: bytes) -> _Template | None:
    """Make the template of a message that carries a text and nothing else; None for any other.

    That the text stands where it seems to is not guessed: with a letter more there, the message's text must
    have that letter too. So these bytes are the inside of a string and its value is the text: whatever else
    is put there, if it neither ends a string nor escapes in it, the message is the same but for its text.
    """
    try:
        (message,) = dialect.read_messages(line)
        text = _read_only_text(message)
        written = text.encode()
        begin = line.rfind(b'"%b"' % written) + 1
        if not begin or not text or _QUOTE in written or _ESCAPE in written:
            return None
        before, after = line[:begin], line[begin + len(written) :]
        match = _CREATED.search(before)  # the last digits of its time, which no dialect reads
        seconds = slice(*match.span(1)) if match else _NOWHERE
        zeros = b"0" * (seconds.stop - seconds.start)
        later = before[: seconds.start] + zeros + before[seconds.stop :]
        (longer,) = dialect.read_messages(b"%b%bx%b" % (later, written, after))
    except (*NOT_JSON, ValueError):  # ValueError: half a character, or no message at all
        return None
    if _read_only_text(longer) != f"{text}x":
        return None
    return _Template(message, before, after, seconds)


def _find_loose(stream: PlainStream, template: _Template) -> slice:
    """Return the slice of the time's digits if second and last but one message differ there, else empty."""
    same = template.before[: template.seconds.stop]
    if _read_data(stream, 1).startswith(same) and _read_data(stream, len(stream.ends) - 2).startswith(same):
        return _NOWHERE
    return template.seconds


def _read_only_text(message: Message) -> str:
    """Return the text of a message that carries nothing else; "" for any other."""
    if message.error is not None or message.usage is not None or len(message.choices or ()) != 1:
        return ""
    (choice,) = message.choices or ()
    if choice.finish_reason is not None or choice.token_ids is not None:
        return ""
    return choice.read_content()


def _find_odd(stream: PlainStream, template: _Template, loose: slice) -> list[int]:
    """List the indices of events unlike a template, and of the last one; digits at `loose` may differ.

    Raises UnicodeDecodeError where a text may be no UTF-8, IndexError where an event can be of no template.
    """
    begins, ends = stream.begins[:-1] + len(template.before), stream.ends[:-1] - len(template.after)
    # A few bytes more, which are the same around every line, make whole words of both.
    more = -len(template.before) % _WORD
    before = BEGIN[len(BEGIN) - more :] + template.before
    after = template.after + END[: -len(template.after) % _WORD]
    if loose.stop:
        loose = slice(loose.start + more, loose.stop + more)
    alike = begins < ends
    alike[_find_different(stream.raw, begins - len(before), before, loose)] = False
    alike[_find_different(stream.raw, ends, after, _NOWHERE)] = False
    at = alike.nonzero()[0]
    begins = begins[at]
    alike[at[_find_escaped(stream.raw, begins, ends[at] - begins)]] = False
    return [*(~alike).nonzero()[0].tolist(), len(alike)]


def _find_escaped(raw: bytes, begins: Int64, lengths: Int64) -> list[int]:
    """List the indices of texts with a quote or escape; raises UnicodeDecodeError if one may not be UTF-8."""
    until = lengths.cumsum()
    inside = (begins - until + lengths).repeat(lengths) + np.arange(until[-1])
    texts = np.frombuffer(raw, np.uint8)[inside].tobytes()
    if not texts.isascii():
        raw.decode()  # where all of it is UTF-8, each text between two quotes is
    escaped: list[int] = []
    for mark in (_QUOTE, _ESCAPE):
        if mark in texts:
            places = (np.frombuffer(texts, np.uint8) == ord(mark)).nonzero()[0]
            escaped += until.searchsorted(places, "right").tolist()
    return escaped


def _find_different(raw: bytes, places: Int64, wanted: bytes, loose: slice) -> Int64:
    """Find the places at which the bytes differ from `wanted`, int64 positions; digits may in `loose`."""
    cut = cut_lines(raw, places, len(wanted))
    if loose.stop:
        rows = cut.view(np.uint8).reshape(len(places), -1)
        numbers = (rows[:, loose] - _ZERO < _DIGITS).all(1)  # what is less than a zero becomes much more
        rows[numbers, loose] = np.frombuffer(wanted[loose], np.uint8)
    different: Int64 = (cut.view(np.uint32) != np.frombuffer(wanted * len(places), np.uint32)).nonzero()[0]
    return different // (len(wanted) // _WORD)
