"""SSE: the events of a body, where each ends, and the messages of a stream that differ in little but text.

A response of the usual chunked form is read in a few passes; most of its messages are the same bytes around
a different text, so one of them is parsed, and those unlike it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache

import httptools
import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.arrays import Int64
from loadgen.base.untrusted import NOT_JSON
from loadgen.wire.http1 import HEAD_END, Headers, Response, explain_compression
from loadgen.wire.openai import Dialect, Message, TypicalMessages

_DONE = b"[DONE]"
_FIELD = b"data: "
_CLOSE = b"\n\n"
_NAME = b"event: "
_FAILED = re.compile(rb"event:\s*error\s*\n")
_LAST = _FIELD + _DONE + _CLOSE
_BLANK = ord(" ")  # the last of the bytes that are blank
_BRACKET = _DONE[0]
_NEWLINE = ord("\n")
_FIRST = np.zeros(1, np.int64)
_BOM = b"\xef\xbb\xbf"
_LINE_ENDS = b"\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_BEGIN = b"\r\n" + _FIELD  # of an event, with the end of its chunk's size
_END = b"\n\n\r\n"  # of an event, with the end of its chunk
_PLAIN_DONE = _BEGIN + b"[DONE]" + _END
_LASTS = b"\ne" + _PLAIN_DONE + _LAST_CHUNK, b"\nE" + _PLAIN_DONE + _LAST_CHUNK
_DONE_BYTES = len(_PLAIN_DONE) - 4  # without the line ends of the framing
_CONTROLS = len(b"\r\n" + _END)  # control bytes of an event
_BETWEEN = b" " * len(_END[1:] + b"ff" + _BEGIN)  # after a longer size the last byte of _BEGIN is a blank
_PLAIN_BLANK = ord(" ")  # the first byte that is not a control byte
_SMALLEST = 2048  # bytes of a response; below them the passes cost more than they save
_SHORTEST, _LONGEST = 16, 4095  # bytes of a chunk: a size of two or three digits
_OPENING_BYTES = 12  # the newline before a chunk, its size, _BEGIN, and where there is room an object's `{`
_FORMS = b"\n%x" + _BEGIN + b"{", b"\n%X" + _BEGIN + b"{"
_FEWEST = 64  # messages; below them to parse them all is as quick
_WORD = np.dtype(np.uint32).itemsize  # bytes compared at once
_NOWHERE = slice(0, 0)
_CREATED = re.compile(rb'"created": ?[0-9]{5}([0-9]{5})[,}]')  # which some servers take for each message
_ZERO, _DIGITS = np.uint8(ord("0")), 10
_QUOTE, _ESCAPE = b'"', b"\\"


class Events(msgspec.Struct, frozen=True):
    """The events of a stream, up to `[DONE]`.

    `ends` is int64[events]: how much of the body there must be for the event's data to be complete,
    which is its last data line with its line end, not the empty line after it.
    """

    lines: bytes | bytearray  # the data of each event in a line, if it is JSON; others are empty
    ends: Int64
    done: bool  # `[DONE]` was seen
    fault: bytes | None = None  # the data of an event that is an error by its name: the last one


def join_lines(data: bytes) -> bytes:
    """Put JSON on one line by replacing newlines, which cannot occur inside its strings, by blanks."""
    return data.replace(b"\n", b" ")


def read_events(body: bytes, whole: bool) -> Events:
    """Read the events of a body; an incomplete last line is dropped unless the body is `whole`.

    Where the data of some event is not JSON, use `split_events`: a body of a usual form is not split here.
    """
    if plain := _read_named(body) if body.startswith(_NAME) else _read_plain(body):
        return plain
    datas, ends, done, fault = split_events(body, whole)
    return Events(b"\n".join(map(join_lines, datas)), np.array(ends, np.int64), done, fault)


def _read_plain(body: bytes) -> Events | None:
    """Read events of the usual form alone (`data: …`, two newlines); None for any other."""
    ends = np.flatnonzero(np.frombuffer(body, np.uint8) == _NEWLINE)[1::2] + 1
    blanked = _blank_names(body, ends)
    if blanked is None:
        return None
    lines, done = blanked
    events = len(ends) - done
    firsts = np.frombuffer(body, np.uint8)[np.concatenate((_FIRST, ends[:-1]))[:events] + len(_FIELD)]
    if ((firsts <= _BLANK) | (firsts == _BRACKET)).any():  # blank data is no event, [DONE] not the last
        return None
    return Events(lines, ends[:events] - 1, done)  # a data line, and its own newline


def _read_named(body: bytes) -> Events | None:
    """Read events that all are `event: …`, `data: …` and an empty line, none an error; None for any other."""
    ends = np.flatnonzero(np.frombuffer(body, np.uint8) == _NEWLINE)
    count, over = divmod(len(ends), 3)
    if (
        over
        or not count
        or ends[-1] != len(body) - 1
        or b"\r" in body
        or _DONE in body
        or _FAILED.search(body)
    ):
        return None
    names, datas, closes = ends[0::3], ends[1::3], ends[2::3]
    begins = np.concatenate((_FIRST, closes[:-1] + 1))
    lines = bytearray(body)
    fields = names + 1
    is_usual = np.array_equal(closes, datas + 1) and (datas - fields > len(_FIELD)).all()
    if not is_usual or _slice_everywhere(lines, len(_NAME))[begins].tobytes() != _NAME * count:
        return None
    if _slice_everywhere(lines, len(_FIELD))[fields].tobytes() != _FIELD * count:
        return None
    text, firsts = np.frombuffer(lines, np.uint8), fields + len(_FIELD)
    if (text[firsts] <= _BLANK).any():
        return None
    lengths = firsts - begins
    until = lengths.cumsum()
    text[(begins - until + lengths).repeat(lengths) + np.arange(until[-1])] = _BLANK
    return Events(lines, datas + 1, False)


def _blank_names(body: bytes, ends: Int64) -> tuple[bytearray, bool] | None:
    """Turn events `data: …` into lines of JSON, the field's names blanked; also whether `[DONE]` closes them.

    `ends` is int64[events], where each event ends in the body, the last one with it. None where one is
    not that field and two newlines, or another line end is among them.
    """
    done = body.endswith(_LAST)
    ends = ends[: len(ends) - done]
    if not len(ends) or ends[-1] + done * len(_LAST) != len(body) or b"\r" in body:
        return None
    if ends[-1] < len(_FIELD):
        return None  # no event at all: shorter than the field's name
    lines = bytearray(memoryview(body)[: ends[-1]])
    begins = np.concatenate((_FIRST, ends[:-1]))
    fields, closes = _slice_everywhere(lines, len(_FIELD)), _slice_everywhere(lines, len(_CLOSE))
    if begins[-1] >= len(fields) or fields[begins].tobytes() != _FIELD * len(ends):
        return None
    newlines = np.count_nonzero(np.frombuffer(lines, np.uint8) == _NEWLINE)
    if newlines != len(_CLOSE) * len(ends) or closes[ends - len(_CLOSE)].tobytes() != _CLOSE * len(ends):
        return None
    fields[begins] = b" " * len(_FIELD)
    return lines, done


def _slice_everywhere(text: bytearray, length: int) -> NDArray[np.bytes_]:
    """View the `length` bytes at each position of `text`, writable, as one array without copying."""
    return np.ndarray(len(text) - length + 1, f"S{length}", text, strides=(1,))


def split_events(body: bytes, whole: bool) -> tuple[list[bytes], list[int], bool, bytes | None]:
    """Split a body into events: data of each, its end, whether `[DONE]` came, and an error event's data.

    Comments and the fields `id` and `retry` are ignored, and so are blank data and what follows `[DONE]` or
    an error. That is an event of the type `error`, or what has llama.cpp's field of that name.
    """
    datas: list[bytes] = []
    ends: list[int] = []
    pending: list[bytes] = []
    pending_end, failed = 0, False
    for line, end in (*_split_lines(body, whole), (b"", len(body))):  # the last may lack its empty line
        if line.startswith(b"data:"):
            pending.append(line[6:] if line.startswith(b"data: ") else line[5:])
            pending_end = end
        elif line.startswith(b"error:"):
            pending.append(line[6:])
            failed = True
        elif line.startswith(b"event:"):
            failed = failed or line[6:].strip() == b"error"
        elif not line and (pending or failed):
            data = b"\n".join(pending)
            if failed:
                return datas, ends, False, data.strip()
            if data.strip() == _DONE:
                return datas, ends, True, None
            if data.strip():
                datas.append(data)
                ends.append(pending_end)
            pending = []
    return datas, ends, False, None


def _split_lines(body: bytes, whole: bool) -> list[tuple[bytes, int]]:
    """List each line without its end, and the body's length with the first byte of that end.

    A last line without an end is listed only if the body is `whole`.
    """
    begin = len(_BOM) if body.startswith(_BOM) else 0
    lines = []
    for line in body[begin:].splitlines(keepends=True):
        text = line.rstrip(_LINE_ENDS)
        if len(text) < len(line):
            lines.append((text, begin + len(text) + 1))
        elif whole:
            lines.append((text, len(body)))
        begin += len(line)
    return lines


class PlainStream(msgspec.Struct, frozen=True):
    """A chunked streamed answer in the usual form; `begins`, `ends` are int64[events], positions in `raw`.

    They are where each event's data begins, and where its newline is; `[DONE]` is not one of the events. No
    data holds a control byte.
    """

    raw: bytes
    headers: Headers
    begins: Int64
    ends: Int64
    done: bool  # `[DONE]` was seen
    body_bytes: int

    def lines(self) -> bytearray:
        """Return each event's data on a line of its own, padded with blanks."""
        begin = int(self.begins[0])
        lines = bytearray(memoryview(self.raw)[begin : int(self.ends[-1])])
        places = len(lines) - len(_BETWEEN) + 1
        wherever = np.ndarray(places, _make_void_type(len(_BETWEEN)), lines, strides=(1,))
        wherever[self.ends[:-1] + 1 - begin] = np.void(_BETWEEN)
        return lines


def read_plain_stream(raw: bytes) -> PlainStream | None:
    """Read a whole response of the usual chunked form; None for any other.

    Each event has six control bytes, and the places of these say where all the rest is: a chunk's size is
    compared with them, so that a parser would find the same.
    """
    if len(raw) < _SMALLEST or not raw.endswith(_LAST_CHUNK):
        return None
    head = _read_head(raw[: raw.find(HEAD_END) + len(HEAD_END)])
    if head is None:
        return None
    done = raw.endswith(_LASTS)
    after = len(_LASTS[0]) - 1 if done else len(_LAST_CHUNK)
    places = (np.frombuffer(raw, np.uint8) < _PLAIN_BLANK).nonzero()[0]
    places = places[head.controls - 1 : len(places) - len(HEAD_END) - done * _CONTROLS]
    count, over = divmod(len(places) - 1, _CONTROLS)
    if over or count < 1 or places[-1] != len(raw) - after - 1:
        return None
    # From the newline before an event, the third control byte ends its size, and the fourth its data.
    fields, ends = places[2::_CONTROLS], places[3::_CONTROLS]
    lengths = ends - fields
    if _cut_lines(raw, ends, len(_END)).tobytes() != _END * count:
        return None
    # Each chunk's hex size is its event's length plus framing; all digits in the same case.
    sizes = _cut_lines(raw, places[:-1:_CONTROLS], _OPENING_BYTES).tobytes()
    if all(_list_openings(form).take(lengths, mode="clip").tobytes() != sizes for form in _FORMS):
        return None
    body_bytes = int(np.add.reduce(lengths)) + count + done * _DONE_BYTES
    return PlainStream(raw, head.headers, fields + len(b"\n" + _FIELD), ends, done, body_bytes)


def _cut_lines(raw: bytes, places: Int64, length: int) -> NDArray[np.void]:
    """Copy the `length` bytes at each place, void[places]; raises IndexError if there are fewer."""
    wherever = np.ndarray(len(raw) - length + 1, _make_void_type(length), raw, strides=(1,))
    return wherever[places]


@lru_cache(maxsize=1024)  # to make one takes longer than to use it
def _make_void_type(length: int) -> np.dtype[np.void]:
    return np.dtype((np.void, length))


@cache
def _list_openings(form: bytes) -> NDArray[np.void]:
    """List the bytes that precede a chunk's data for each data length, void[lengths], zeros if impossible."""
    begins = [(form % length)[:_OPENING_BYTES] for length in range(_SHORTEST, _LONGEST + 1)]
    none = bytes(_OPENING_BYTES)
    return np.frombuffer(b"".join((none * (_SHORTEST - 1), *begins, none)), _make_void_type(_OPENING_BYTES))


class _Head(msgspec.Struct, frozen=True):
    """Fields of the head of a chunked, uncompressed response with status 200."""

    headers: Headers
    controls: int  # control bytes


@lru_cache(maxsize=16)  # a server's heads are the same but for the second
def _read_head(head: bytes) -> _Head | None:
    """Read the head of a chunked, uncompressed response with status 200; None for any other."""
    response = Response()
    try:
        response.parser.feed_data(head)
        over = response.complete
        response.parser.feed_data(_LAST_CHUNK)
    except (httptools.HttpParserUpgrade, httptools.HttpParserError):
        return None
    finally:
        del response.parser
    chunked = response.complete and not over and not response.pieces
    if not chunked or response.status != 200 or explain_compression(response.headers):
        return None
    return _Head(response.headers, sum(byte < _PLAIN_BLANK for byte in head))


class _Template(msgspec.Struct, frozen=True):
    """The bytes before and after a message's text; `seconds` is the slice of its time among those before."""

    message: Message
    before: bytes
    after: bytes
    seconds: slice  # digits of a time that mean nothing here; empty where there is none


def read_typical(dialect: Dialect, stream: PlainStream) -> TypicalMessages | None:
    """Read a stream of 64 or more messages, half of them alike, without their texts; None: parse each.

    Also None where messages are cumulative, or one may be an error or no message.
    """
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
        same, last = template.before[: template.seconds.stop], len(stream.ends) - 2
        timeless = _read_data(stream, 1).startswith(same) and _read_data(stream, last).startswith(same)
        odd = _find_odd(stream, template, _NOWHERE if timeless else template.seconds)
        if 2 * len(odd) > count:
            return None
        messages = dialect.read_messages(b"\n".join([_read_data(stream, at) for at in odd]))
    except (*NOT_JSON, IndexError):  # UnicodeDecodeError of a text; IndexError: something short at the end
        return None
    # One without choices may be an error's remark, which is read from its line.
    if len(messages) != len(odd) or None in [message.choices for message in messages]:
        return None
    return TypicalMessages(template.message, dict(zip(odd, messages, strict=True)), count)


def read_plain_messages(
    dialect: Dialect, raw: bytes, keep_text: bool
) -> tuple[PlainStream, Sequence[Message], bytearray] | None:
    """Read a response of the usual form, its messages and their lines; None for any other.

    There are no lines where the texts of typical messages were not read.
    """
    stream = read_plain_stream(raw)
    if stream is None:
        return None
    if not keep_text and (typical := read_typical(dialect, stream)) is not None:
        return stream, typical, bytearray()
    lines = stream.lines()
    messages = read_messages(dialect, lines, len(stream.ends))
    return None if messages is None else (stream, messages, lines)


def read_messages(dialect: Dialect, lines: bytes | bytearray, events: int) -> Sequence[Message] | None:
    """Parse one message per line; None if a line is not JSON, or they are not as many as `events`."""
    try:
        messages = dialect.read_messages(lines)
    except NOT_JSON:
        return None
    return messages if len(messages) == events else None


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
    before = _BEGIN[len(_BEGIN) - more :] + template.before
    after = template.after + _END[: -len(template.after) % _WORD]
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
    cut = _cut_lines(raw, places, len(wanted))
    if loose.stop:
        rows = cut.view(np.uint8).reshape(len(places), -1)
        numbers = (rows[:, loose] - _ZERO < _DIGITS).all(1)  # what is less than a zero becomes much more
        rows[numbers, loose] = np.frombuffer(wanted[loose], np.uint8)
    different: Int64 = (cut.view(np.uint32) != np.frombuffer(wanted * len(places), np.uint32)).nonzero()[0]
    return different // (len(wanted) // _WORD)
