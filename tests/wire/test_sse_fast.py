"""What is read in a few passes says what the slower way says, or nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from builders import recorded
from builders.loops import loop_over
from loadgen.records.decode import Decoder
from loadgen.transport.capture import Capture, pack_int64s
from loadgen.wire import sse
from loadgen.wire.openai import DIALECTS
from records.test_decode import DONE, HEAD, LAST, USAGE, event, stream

TEXTS = ["a", "b", "data: ", "\\n\\ndata: x", "\r\n", "\N{HEDGEHOG}", "", "[DONE]", *"cdefghijklmnopqrs"]
LONG = ["x" * length for length in [*range(0, 300, 17), 4000]]
EVENTS = [event(text) for text in TEXTS]
PLAIN = stream(*EVENTS, LAST, USAGE, DONE)


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
    """A name, the reads of an answer, and whether they are of the form."""
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


def test_no_bytes_at_all_are_no_answer() -> None:
    empty = Capture(0, 0, 1, 2, 3, read_lengths=pack_int64s([]))
    assert not found(empty)
