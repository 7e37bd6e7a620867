from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest

from builders import recorded
from builders.loops import loop_over, loop_over_named, read_tables
from builders.required import require
from loadgen.records.decode import Decoder
from loadgen.transport.capture import Capture
from loadgen.wire import sse
from loadgen.wire.openai import DIALECTS
from records.test_decode import DONE, HEAD, LAST, USAGE, event, stream

TABLES = read_tables("sse")

TEXTS = ["a", "b", "data: ", "\\n\\ndata: x", "\r\n", "\N{HEDGEHOG}", "", "[DONE]", *"cdefghijklmnopqrs"]
LONG = ["x" * length for length in [*range(0, 300, 17), 4000]]
EVENTS = [event(text) for text in TEXTS]
PLAIN = stream(*EVENTS, LAST, USAGE, DONE)
Lines = Callable[..., bytes]
COUNT = 80


# A body, whether it is whole, the data of each event, the end of each, whether [DONE] came.
@loop_over_named(("text", "whole", "datas", "ends", "done"), TABLES["events"])
def test_events_are_found_and_end_with_their_last_data_line(
    text: str, whole: bool, datas: list[str], ends: list[str], done: bool
) -> None:
    body = text.encode()
    events = sse.read_events(body, whole)
    assert ([line.strip() for line in events.lines.decode().split("\n") if line.strip()], events.done) == (
        [data.replace("\n", " ").strip() for data in datas],
        done,
    )
    marks = [body[end - len(mark) : end].decode() for end, mark in zip(events.ends, ends, strict=True)]
    assert marks == ends
    found, places, *rest = sse.split_events(body, whole)
    assert ([data.decode() for data in found], places, *rest) == (datas, events.ends.tolist(), done, None)


NAMED = b"event: ping\ndata: {}\n\nevent: content_block_delta\ndata: [1]\n\n"


# @ stands for usual named events.
@loop_over(("text", "fast"), TABLES["named"])
def test_named_events_are_found_in_one_pass_as_one_by_one(text: str, fast: bool) -> None:
    body = text.encode().replace(b"@", NAMED)
    found = sse._read_named(body)
    assert (found is not None) is fast
    for whole in (True, False):
        events = sse.read_events(body, whole)
        datas, ends, done, fault = sse.split_events(body, whole)
        lines = [line.strip() for line in events.lines.split(b"\n") if line.strip()]
        assert lines == [data.replace(b"\n", b" ").strip() for data in datas]
        assert (events.ends.tolist(), events.done, events.fault) == (ends, done, fault)


@loop_over(("body", "datas", "fault"), TABLES["errors"])
def test_an_event_that_is_an_error_by_its_name_ends_the_others(
    body: str, datas: list[str], fault: str | None
) -> None:
    events = sse.read_events(body.encode(), True)
    assert (events.lines.decode().split(), len(events.ends)) == (datas, len(datas))
    assert (events.fault, events.done) == (None if fault is None else fault.encode(), False)


@loop_over(
    ("piece", "size", "limit_s"),
    [
        (b"x", 64_000, 0.1),
        (b"x", 10_000_000, 0.2),
        (b"data:", 10_000_000, 0.2),
        (b"<p>data: [DONE] ", 10_000_000, 0.2),
        (b"data: 1\n", 640_000, 0.5),
        (b"\r\n\rx", 320_000, 0.5),
        (b"error\n", 640_000, 0.5),
    ],
)
def test_no_body_takes_longer_than_its_length_explains(piece: bytes, size: int, limit_s: float) -> None:
    body = b"data: {}\n\n" + piece * (size // len(piece))
    begin_s = time.process_time()
    sse.split_events(body, False)
    assert time.process_time() - begin_s < limit_s


def found(capture: Capture) -> bool:
    return sse.read_plain_stream(capture.raw) is not None


def decoded(capture: Capture, monkeypatch: pytest.MonkeyPatch | None = None) -> list[dict[str, Any]]:
    """All of the record, with and without its text; the slow way where there is something to patch."""
    if monkeypatch is not None:
        monkeypatch.setattr(sse, "read_plain_stream", lambda raw: None)
    kept = (Decoder(DIALECTS["completions"], True, keep_text).decode(capture) for keep_text in (True, False))
    records = [recorded.values(record) for record in kept]
    if monkeypatch is not None:
        monkeypatch.undo()
    return records


def recut(raw: bytes, ends: list[int]) -> Capture:
    """The same bytes in other reads."""
    edges = [0, *sorted({min(end, len(raw)) for end in ends}), len(raw)]
    return recorded.capture([raw[a:b] for a, b in itertools.pairwise(edges) if a < b])


def size_in_capitals(chunk: bytes) -> bytes:
    size, line_end, rest = chunk.partition(b"\r\n")
    return size.upper() + line_end + rest


def shrunk(chunk: bytes) -> bytes:
    """A chunk whose size is said to be less than it is."""
    size, line_end, rest = chunk.partition(b"\r\n")
    return b"%x" % ((int(size, 16) - 1) % 4095) + line_end + rest


def forms() -> Iterator[tuple[str, list[bytes], bool]]:
    """A name, the reads of a response, and whether they are of the form."""
    yield "as servers send", PLAIN, True
    yield "without [DONE]", stream(*EVENTS, LAST, USAGE), True
    yield "without an end", PLAIN[:-1], False
    yield "two events in a chunk", stream(EVENTS[0] + EVENTS[1], *EVENTS, LAST, USAGE, DONE), False
    yield "an event in two chunks", stream(EVENTS[0][:9], EVENTS[0][9:], *EVENTS, LAST, USAGE, DONE), False
    yield "a ping", stream(b": ping\n\n", *EVENTS, LAST, USAGE, DONE), False
    yield "no space", stream(*(e.replace(b"data: ", b"data:") for e in EVENTS), LAST, USAGE, DONE), False
    yield "CRLF events", stream(*(e.replace(b"\n", b"\r\n") for e in EVENTS), LAST, DONE), False
    yield "trailers", [*PLAIN[:-1], b"0\r\ndigest: 7\r\n\r\n"], False
    yield "an extension", [PLAIN[0], PLAIN[1].replace(b"\r\n", b";q=1\r\n", 1), *PLAIN[2:]], False
    yield "a size with zeros", [PLAIN[0], b"00" + PLAIN[1], *PLAIN[2:]], False
    yield "sizes in capitals", [PLAIN[0], *(size_in_capitals(read) for read in PLAIN[1:])], True
    long = stream(*map(event, LONG), LAST, USAGE, DONE)
    yield "long sizes in capitals", [long[0], *(size_in_capitals(read) for read in long[1:])], True
    yield "sizes in both cases", [*long[:9], *(size_in_capitals(read) for read in long[9:])], False
    yield "sizes of two and three digits", long, True
    yield "a size of one digit", stream(b"data: {}\n\n", *EVENTS, LAST, USAGE, DONE), False
    yield (
        "a chunk of 4095 bytes",
        stream(*EVENTS, event("x" * (4095 - len(event()))), LAST, USAGE, DONE),
        True,
    )
    yield (
        "a chunk of 4096 bytes",
        stream(*EVENTS, event("x" * (4096 - len(event()))), LAST, USAGE, DONE),
        False,
    )
    yield "a blank before an object", stream(*(e.replace(b" {", b"  {") for e in EVENTS), LAST, DONE), False
    yield "a size of four digits", stream(*EVENTS, event("x" * 4096), LAST, USAGE, DONE), False
    yield "a size that is too small", [*PLAIN[:5], shrunk(PLAIN[5]), *PLAIN[6:]], False
    yield (
        "a size that is too small by 4096",
        [*PLAIN[:5], shrunk(recorded.chunk(event("x" * 4096))), *PLAIN[5:]],
        False,
    )
    yield "a size without a chunk", [*PLAIN[:5], b"9\r\n", *PLAIN[5:]], False
    yield "a second last chunk", [*PLAIN, b"0\r\n\r\n"], False
    yield "a last chunk in two digits", [*PLAIN[:-1], b"00\r\n\r\n"], False
    yield "a tab", stream(*EVENTS, EVENTS[0].replace(b"{", b"{\t", 1), LAST, USAGE, DONE), False
    yield "another status", [PLAIN[0].replace(b"200 OK", b"503 No"), *PLAIN[1:]], False
    yield (
        "a length",
        [PLAIN[0].replace(b"transfer-encoding: chunked", b"content-length: 5"), *PLAIN[1:]],
        False,
    )
    yield "until the end", [PLAIN[0].replace(b"transfer-encoding: chunked", b"x: y"), *PLAIN[1:]], False
    yield "a head that ends in bare newlines", [PLAIN[0].replace(b"\r\n", b"\n"), *PLAIN[1:]], False
    yield "JSON, it says", [PLAIN[0].replace(b"text/event-stream", b"application/json"), *PLAIN[1:]], True
    yield "[DONE] before the end", stream(*EVENTS, DONE, LAST, USAGE, DONE), False
    yield "a byte order mark", stream(b"\xef\xbb\xbf" + EVENTS[0], *EVENTS, LAST, USAGE, DONE), False
    yield "compressed, it says", [PLAIN[0].replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n"),
        *PLAIN[1:]], False  # fmt: skip
    yield "after a 100", [b"HTTP/1.1 100 Continue\r\n\r\n", *PLAIN], False
    yield "another response behind it", [*PLAIN, HEAD], False


FORMS = {name: (reads, expected) for name, reads, expected in forms()}


@loop_over("name", FORMS)
def test_both_ways_read_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, expected = FORMS[name]
    capture = recorded.capture(reads)
    assert found(capture) is expected
    assert decoded(capture) == decoded(capture, monkeypatch)


@pytest.mark.parametrize("size", [7, 40, 90, 150])
def test_the_reads_may_be_cut_anywhere(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b"".join(PLAIN)
    for begin in range(0, size, 3):
        capture = recut(raw, list(range(begin or size, len(raw), size)))
        assert decoded(capture) == decoded(capture, monkeypatch)


@pytest.mark.long
@loop_over("put", [b"", b"\n", b"\r", b"d", b" ", b"0", b"9", b"{", b"\n\n", b"data: "])
def test_one_spot_changed_is_seen_by_both_or_by_neither(put: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for spot in range(0, len(raw := b"".join(PLAIN)), 2):
        changed = raw[:spot] + put + raw[spot + 1 :]
        capture = recut(changed, list(np.cumsum([len(read) for read in PLAIN])))
        assert decoded(capture) == decoded(capture, monkeypatch)


def test_an_answer_of_few_reads_is_of_the_form_too() -> None:
    assert found(recorded.capture([b"".join(PLAIN)]))


def test_a_short_answer_is_left_to_the_other_way() -> None:
    assert not found(recorded.capture(stream(*EVENTS[:9], LAST, USAGE, DONE)))


def completion(text: str = " word", reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, **more}
    return msgspec.json.encode(
        {"id": "cmpl-1", "object": "text_completion", "created": 1795202909, "choices": [choice]}
    )


def chat(text: str = " word", reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text, **more}, "logprobs": None, "finish_reason": reason}
    return msgspec.json.encode({"id": "chatcmpl-1", "created": 1795202909, "choices": [choice]})


def answer(lines: list[bytes], *last: bytes) -> Capture:
    return recorded.capture(stream(*(b"data: %b\n\n" % line for line in lines), *last, USAGE, DONE))


def values_of(dialect: str, capture: Capture) -> dict[str, Any]:
    return recorded.values(Decoder(DIALECTS[dialect], streamed=True).decode(capture))


def one_by_one(dialect: str, capture: Capture) -> dict[str, Any]:
    with patch.object(sse, "read_typical", lambda *_: None):
        return values_of(dialect, capture)


def parsed(dialect: str, capture: Capture) -> list[int] | None:
    """Which messages were parsed; None: all of them."""
    plain = require(sse.read_plain_stream(capture.raw))
    messages = sse.read_typical(DIALECTS[dialect], plain)
    return None if messages is None else list(messages.parsed)


WORDS = [" word", " a", ".", "{}", "}]}", "'", "text", ":", "[DONE]", "x" * 99, "\x7f", "data: ", "-"]
# What an event is instead of a typical one, and whether it can be taken for one.
LINES: dict[str, tuple[bytes, bool]] = {
    "another text": (completion(" another"), True),
    "JSON's signs in a text": (completion("}],:{[null"), True),
    "a letter of two bytes": (completion("é"), True),
    "a letter of four bytes": (completion("\N{HEDGEHOG}"), True),
    "no text": (completion(""), False),
    "an escaped newline": (completion("\n"), False),
    "an escaped quote": (completion('"'), False),
    "an escaped backslash": (completion("\\"), False),
    "an escaped letter": (completion("@").replace(b"@", rb"\u00e9"), False),
    "a text that closes the choice": (
        completion("@").replace(b"@", b'a","finish_reason":"stop","x":"'),
        False,
    ),
    "a text twice, the last empty": (completion("@").replace(b'"@"', b'"a","text":""'), False),
    "a text that is another's end": (completion('"text":"a'), False),
    "a finish reason in a text": (completion('"finish_reason":"stop"'), False),
    "a finish reason": (completion(reason="stop"), False),
    "a failed end": (completion(reason="abort"), False),
    "token ids": (completion(token_ids=[1, 2]), False),
    "another index": (completion(index=1), False),
    "another id": (completion().replace(b"cmpl-1", b"cmpl-2"), False),
    "a usage": (completion()[:-1] + b',"usage":{"completion_tokens":7}}', False),
    "an error": (b'{"error":{"message":"no"}}', False),
    "a remark": (b'{"detail":"no luck"}', False),
    "no choices": (b'{"choices":[]}', False),
    "two choices": (completion().replace(b"]}", b',{"index":1,"text":"b"}]}'), False),
    "a blank after it": (completion() + b" ", False),
    "a chat's message": (chat(), False),
    "no JSON": (completion()[:-1], False),
    "something after it": (completion() + b"x", False),
    "half a letter": (completion("@").replace(b"@", b"\xc3"), False),
    "a surrogate": (completion("@").replace(b"@", b"\xed\xa0\x80"), False),
}


@loop_over("at", [0, 1, COUNT // 3, COUNT // 2, COUNT - 1])
@loop_over("name", LINES)
def test_an_odd_event_is_counted_as_it_is(name: str, at: int) -> None:
    line, like_others = LINES[name]
    lines = [completion(WORDS[i % len(WORDS)]) for i in range(COUNT)]
    lines[at] = line
    capture = answer(lines, b"data: %b\n\n" % completion(reason="length"))
    assert values_of("completions", capture) == one_by_one("completions", capture)
    found = parsed("completions", capture)
    assert found is None or (at in found) is not like_others


def test_a_time_that_is_taken_for_each_message_makes_none_of_them_odd() -> None:
    lines = [completion(WORDS[i % 12]).replace(b"2909", b"%d" % (2909 + i // 5)) for i in range(COUNT)]
    assert parsed("completions", answer(lines)) == [COUNT]
    lines[7] = lines[7].replace(b"1795202910", b"17952029:0").replace(b"17952029:0", b"1795202e10")
    assert parsed("completions", answer(lines)) == [7, COUNT]


@pytest.mark.parametrize("dialect", ["completions", "chat"])
def test_only_the_ends_of_a_usual_stream_are_parsed(dialect: str) -> None:
    line: Lines = completion if dialect == "completions" else chat
    role = [] if dialect == "completions" else [chat("", role="assistant")]
    capture = answer([*role, *(line(word) for word in WORDS * 6)], b"data: %b\n\n" % line(reason="stop"))
    count = len(role) + 6 * len(WORDS)
    assert parsed(dialect, capture) == [*range(len(role)), count, count + 1]
    assert values_of(dialect, capture) == one_by_one(dialect, capture)


@loop_over(
    "lines",
    [
        [completion("a\n") for _ in range(COUNT)],
        [completion().replace(b"2909", b"%d" % (2909 + i)) for i in range(COUNT)],
        [completion().replace(b"2909", b"%04x" % (6 * i)) for i in range(COUNT)],
        [completion().replace(b"02909", b"0290e" if i % 3 else b"12909") for i in range(COUNT)],
        [completion().replace(b"02909", b"0.%03d" % i) for i in range(COUNT)],
        [completion(str(i)).replace(b"1795202909", b"%010d" % (i % 3)) for i in range(COUNT)],
        [
            completion().replace(b"created", b"index").replace(b"2909", b"%d" % (2909 + i))
            for i in range(COUNT)
        ],
        [
            completion().replace(b'"id":"cmpl-1"', rb'"id":"\"created\":1795202909,%d"' % i)
            for i in range(COUNT)
        ],
        [completion("") for _ in range(COUNT)],
        [completion(token_ids=[i]) for i in range(COUNT)],
        [completion(logprobs={"token_logprobs": [-i / 7]}) for i in range(COUNT)],
        [completion(index=i % 4) for i in range(COUNT)],
        [completion("cmpl-1") for _ in range(COUNT)],
        [completion("text_completion").replace(b"cmpl-1", b"text_completion") for _ in range(COUNT)],
        [completion().replace(b'"text":" word"', b'"text":" word","text":"%d"' % i) for i in range(COUNT)],
        [completion().replace(b'"text":" word"', b'"text":"%d","text":" word"' % i) for i in range(COUNT)],
        [completion().replace(b'"text":" word"', b'"text":"%d","text":""' % i) for i in range(COUNT)],
        [completion().replace(b"word", rb"\u0061%d" % i) for i in range(COUNT)],
        [completion().replace(b"word", rb"\"%d" % i) for i in range(COUNT)],
        [completion().replace(b'"text"', b'"te%dt"' % i) for i in range(COUNT)],
        [completion()[:-1] + b',"usage":{"completion_tokens":%d}}' % (i + 1) for i in range(COUNT)],
        [completion()[:-1] + b',"usage":{"completion_tokens":7}}' for _ in range(COUNT)],
        [completion()[:-1] + b',"error":"no"}' for _ in range(COUNT)],
        [b"{}"] * 300,
        [b"[1]"] * 300,
        [b'"word"'] * 300,
    ],
)
def test_other_streams_are_what_their_messages_are(lines: list[bytes]) -> None:
    capture = answer(lines, b"data: %b\n\n" % completion(reason="length"))
    assert values_of("completions", capture) == one_by_one("completions", capture)


def test_typical_messages_are_a_sequence() -> None:
    plain = require(sse.read_plain_stream(answer([chat()] * COUNT).raw))
    messages = require(sse.read_typical(DIALECTS["chat"], plain))
    every = DIALECTS["chat"].read_messages(plain.lines())
    assert list(messages) == list(messages[:]) == list(every)
    assert (len(messages), messages[-1], messages[3:5]) == (len(every), every[-1], every[3:5])
    assert list(messages.parsed) == [COUNT]
