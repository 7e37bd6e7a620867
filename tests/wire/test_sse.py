from __future__ import annotations

import time

from builders.loops import loop_over
from loadgen.wire import sse

# (body, whole, the data of each event, which bytes end each event's data, whether [DONE] came)
CASES: dict[str, tuple[bytes, bool, list[bytes], list[bytes], bool]] = {
    "as servers send": (
        b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n",
        True,
        [b"1", b"2"],
        [b"1\n", b"2\n"],
        True,
    ),
    "without [DONE]": (b"data: 1\n\ndata: 2\n\n", True, [b"1", b"2"], [b"1\n", b"2\n"], False),
    "only [DONE]": (b"data: [DONE]\n\n", True, [], [], True),
    "no space": (b"data:1\n\ndata:[DONE]\n\n", True, [b"1"], [b"1\n"], True),
    "CRLF": (b"data: 1\r\n\r\ndata: [DONE]\r\n\r\n", True, [b"1"], [b"1\r"], True),
    "CR": (b"data: 1\r\rdata: 2\r\r", True, [b"1", b"2"], [b"1\r", b"2\r"], False),
    "comments": (b": ping - 12\n\ndata: 1\n\n: ping\n\n", True, [b"1"], [b"1\n"], False),
    "only comments": (b": ping\n\n: ping\n\n", False, [], [], False),
    "other fields": (b"event: x\nid: 1\nretry: 5\ndata: 1\nfoo\n\n", True, [b"1"], [b"1\n"], False),
    "several lines": (b"data: [1,\ndata: 2]\n\n", True, [b"[1,\n2]"], [b"2]\n"], False),
    "a byte order mark": (b"\xef\xbb\xbfdata: 1\n\n", True, [b"1"], [b"1\n"], False),
    "more empty lines": (b"\n\ndata: 1\n\n\n\ndata: 2\n\n", True, [b"1", b"2"], [b"1\n", b"2\n"], False),
    "data after [DONE]": (b"data: 1\n\ndata: [DONE]\n\ndata: 2\n\n", True, [b"1"], [b"1\n"], True),
    "no empty line at the end": (b"data: 1\n\ndata: [DONE]\n", False, [b"1"], [b"1\n"], True),
    "no line end at the end": (b"data: 1\n\ndata: 2", True, [b"1", b"2"], [b"1\n", b": 2"], False),
    "cut inside a line": (b'data: 1\n\ndata: {"a', False, [b"1"], [b"1\n"], False),
    "cut after a line": (b"data: 1\n\ndata: 2\n", False, [b"1", b"2"], [b"1\n", b"2\n"], False),
    "blank data": (
        b"data:\n\ndata: 1\n\ndata: \n\ndata\n\ndata: 2\n\ndata:  \ndata:\n\n",
        True,
        [b"1", b"2"],
        [b"1\n", b"2\n"],
        False,
    ),
    "blank data beside other": (b"data:\ndata: 1\ndata: 2\n\n", True, [b"\n1\n2"], [b"2\n"], False),
    "[DONE] between blanks": (b"data:  [DONE] \n\ndata: 1\n\n", True, [], [], True),
    "nothing": (b"", True, [], [], False),
    "two newlines alone": (b"\n\n", True, [], [], False),
    "less than a field": (b"a\n\n", True, [], [], False),
    "a field without data": (b"data:\n\n", True, [], [], False),
}


@loop_over("name", CASES)
def test_events_are_found_and_end_with_their_last_data_line(name: str) -> None:
    body, whole, datas, ends, done = CASES[name]
    events = sse.read_events(body, whole)
    assert ([line.strip() for line in events.lines.split(b"\n") if line.strip()], events.done) == (
        [data.replace(b"\n", b" ").strip() for data in datas],
        done,
    )
    assert [body[end - len(mark) : end] for end, mark in zip(events.ends, ends, strict=True)] == ends
    assert sse.split_events(body, whole) == (datas, events.ends.tolist(), done, None)


NAMED = b"event: ping\ndata: {}\n\nevent: content_block_delta\ndata: [1]\n\n"


@loop_over(
    ("body", "fast"),
    [
        (NAMED, True),
        (NAMED * 9, True),
        (b"event: \ndata: 1\n\n", True),
        (b"event: errors\ndata: 1\n\n", True),
        ("event: a\ndata: \u20ac\n\n".encode() + NAMED, True),
        (b"event: error\ndata: 1\n\n" + NAMED, False),
        (NAMED + b"event:  error \ndata: 1\n\n", False),
        (NAMED + b"event: error\n", False),
        (NAMED + b"data: [DONE]\n\n", False),
        (NAMED + b"event: done\ndata: [DONE]\n\n", False),
        (NAMED + b"data: 1\n\n\n", False),
        (NAMED + b"event: a\ndata:1\n\n", False),
        (NAMED + b"event: a\ndata: \n\n", False),
        (NAMED + b"event: a\ndata:  1\n\n", False),
        (NAMED + b"event: a\ndata: 1\ndata: 2\n\n\n", False),
        (NAMED + b"event: a\n\ndata: 1\n", False),
        (NAMED + b"event: a\ndata: 1\nevent: b", False),
        (NAMED[:-1], False),
        (NAMED.replace(b"\n", b"\r\n"), False),
        (b"event: a\n", False),
        (b"event: a", False),
    ],
)
def test_named_events_are_found_in_one_pass_as_one_by_one(body: bytes, fast: bool) -> None:
    found = sse._read_named(body)
    assert (found is not None) is fast
    for whole in (True, False):
        events = sse.read_events(body, whole)
        datas, ends, done, fault = sse.split_events(body, whole)
        lines = [line.strip() for line in events.lines.split(b"\n") if line.strip()]
        assert lines == [data.replace(b"\n", b" ").strip() for data in datas]
        assert (events.ends.tolist(), events.done, events.fault) == (ends, done, fault)


@loop_over(
    ("body", "datas", "fault"),
    [
        (b"data: 1\n\nevent: error\ndata: no\n\ndata: [DONE]\n\n", [b"1"], b"no"),
        (b"data: 1\n\ndata: no\nevent: error\n\n", [b"1"], b"no"),
        (b"event:error\rdata:a\rdata:b\r\r", [], b"a\nb"),
        (b"event: error\n\n", [], b""),
        (b"event: error", [], b""),
        (b"data: 1\n\nerror: no\n\ndata: 2\n\n", [b"1"], b"no"),
        (b"data: 1\n\nerror: no", [b"1"], b"no"),
        (b"event: errors\ndata: 1\n\n: error: no\n\n", [b"1"], None),
        (b"event: message\ndata: 1\n\nevent: error\r\nevent: error\r\n", [b"1"], b""),
    ],
)
def test_an_event_that_is_an_error_by_its_name_ends_the_others(
    body: bytes, datas: list[bytes], fault: bytes | None
) -> None:
    events = sse.read_events(body, True)
    assert (events.lines.split(), len(events.ends), events.fault) == (datas, len(datas), fault)
    assert not events.done


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
