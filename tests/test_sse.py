from __future__ import annotations

import pytest

from loadgen import sse

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
    "nothing": (b"", True, [], [], False),
}


@pytest.mark.parametrize("name", CASES)
def test_events_are_found_and_end_with_their_last_data_line(name: str) -> None:
    body, whole, datas, ends, done = CASES[name]
    events = sse.read(body, whole)
    assert ([line.strip() for line in events.lines.split(b"\n") if line.strip()], events.done) == (
        [data.replace(b"\n", b" ") for data in datas],
        done,
    )
    assert [body[end - len(mark) : end] for end, mark in zip(events.ends, ends, strict=True)] == ends
    assert sse.split(body, whole) == (datas, events.ends.tolist(), done)
