"""Streams of many alike messages, a few spoilt: whichever way they are decoded, the Record is the same."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import recorded
from fuzzing.fuzz_targets_decode import APIS, captured
from loadgen.records.decode import Decoder
from loadgen.transport.capture import Capture
from loadgen.wire import sse
from records.test_decode import DONE, HEAD

pytestmark = pytest.mark.long

TEXTS = st.one_of(
    st.sampled_from(
        [" word", "a", "", "\n", '"', "\\", "é", "\N{HEDGEHOG}", '"text":"', "}]}", "\ufffd", "\0"]
    ),
    st.text(max_size=4),
)
# What is put into an event, or in place of a piece of it.
SPOILT = [
    *(b'"', b"\\", b'\\"', b"\\u0041", b"\\ud800", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xe2\x80", b"\x7f"),
    *(b" ", b",", b":", b"}", b"]", b"{", b"null", b"0", b"x", b'"text":"b",', b'"text":"",'),
    *(b'"content":"b",', b'"finish_reason":"stop",', b'"finish_reason":"error",', b'"token_ids":[1],'),
    *(b'"index":1,', b'"error":"no",', b'"usage":{"completion_tokens":3},', b'"choices":[],'),
    *(b'"detail":"no",', b"[DONE]", b"data: ", b"\n", b"\r", b"\t", b"\0", b"\n\n"),
    *(b"\r\n", b"\n\ndata: {}", b"0\r\n\r\n"),
]  # fmt: skip


@st.composite
def events(draw: st.DrawFn, api: int) -> list[bytes]:
    """The JSON of each event of a response, with a few of its bytes changed."""
    count = draw(st.integers(8, 40))
    texts = [*draw(st.lists(TEXTS, max_size=4)), *[" word", "a"] * draw(st.integers(0, 4)), "b"]
    lines = []
    for i in range(count):
        text, reason = texts[i % len(texts)], "length" if i == count - 1 else None
        said = {"text": text} if api == 0 else {"delta": {"content": text}}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        lines.append(msgspec.json.encode({"id": "x" * 40, "created": 1795202909, "choices": [choice]}))
    lines.append(
        msgspec.json.encode({"choices": [], "usage": {"completion_tokens": draw(st.integers(0, 50))}})
    )
    for _ in range(draw(st.integers(0, 3))):
        first = draw(st.integers(0, count))
        last = draw(st.sampled_from([first, first, count]))  # one event, or all from one on
        begin = draw(st.integers(0, len(lines[first])))
        end = begin + draw(st.sampled_from([0, 0, 1, 2, 7, 30]))
        piece = draw(st.sampled_from([b"", *SPOILT]))
        lines[first : last + 1] = [line[:begin] + piece + line[end:] for line in lines[first : last + 1]]
    return lines


def same(api: int, capture: Capture) -> bool:
    """Check that all ways give the same Record; whether the quickest was gone."""
    decoder = Decoder(APIS[api], streamed=True)
    quick = recorded.values(decoder.decode(capture))
    with patch.object(sse, "read_typical", lambda *_: None):
        assert recorded.values(decoder.decode(capture)) == quick
    with patch.object(sse, "read_plain_stream", lambda *_: None):
        assert recorded.values(decoder.decode(capture)) == quick
    plain = sse.read_plain_stream(capture.raw)
    return plain is not None and sse.read_typical(decoder.dialect, plain) is not None


def few() -> AbstractContextManager[object]:
    """Have few messages be enough for the quickest way."""
    return patch.object(sse, "_FEWEST", 8)


def raw_of(lines: list[bytes], done: bool) -> list[bytes]:
    datas = [b"data: %b\n\n" % line for line in lines] + [DONE] * done
    return [HEAD, *map(recorded.chunk, datas), b"0\r\n\r\n"]


@given(st.data(), st.integers(0, 1), st.booleans())
def test_a_spoilt_event_is_counted_the_same_either_way(data: st.DataObject, api: int, done: bool) -> None:
    with few():
        same(api, captured(raw_of(data.draw(events(api)), done), 0))


@given(
    st.data(),
    st.integers(0, 1),
    st.lists(st.tuples(st.integers(0, 2**20), st.sampled_from(SPOILT)), max_size=2),
)
def test_a_spoilt_answer_is_counted_the_same_either_way(
    data: st.DataObject, api: int, spots: list[tuple[int, bytes]]
) -> None:
    raw = b"".join(raw_of(data.draw(events(api)), True))
    for spot, piece in spots:
        at = spot % len(raw)
        raw = raw[:at] + piece + raw[at + len(piece) :]
    cuts = [0, *range(100, len(raw), 150), len(raw)]
    with few():
        same(api, captured([raw[a:b] for a, b in itertools.pairwise(cuts)], 0))


def test_the_quickest_way_is_among_those_compared() -> None:
    line = b'{"id":"%b","choices":[{"text":"a"}]}' % (b"x" * 40)
    with few():
        assert same(0, captured(raw_of([line] * 40, True), 0))
