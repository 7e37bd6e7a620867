"""A stream of which one message is parsed for many gives the Record of one whose messages all are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from builders import recorded
from builders.loops import loop_over
from loadgen.features.apis.generate_api import Generate
from loadgen.records.decode import Decoder
from loadgen.transport.capture import Capture
from loadgen.wire import sse
from loadgen.wire.openai import DIALECTS
from records.test_decode import DONE, USAGE, stream

Lines = Callable[..., bytes]
COUNT = 80


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


def decoded(dialect: str, capture: Capture) -> dict[str, Any]:
    return recorded.values(Decoder(DIALECTS[dialect], streamed=True).decode(capture))


def one_by_one(dialect: str, capture: Capture) -> dict[str, Any]:
    with patch.object(sse, "read_typical", lambda *_: None):
        return decoded(dialect, capture)


def parsed(dialect: str, capture: Capture) -> list[int] | None:
    """Which messages were parsed; None: all of them."""
    plain = sse.read_plain_stream(capture.raw)
    assert plain is not None
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
    assert decoded("completions", capture) == one_by_one("completions", capture)
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
    assert decoded(dialect, capture) == one_by_one(dialect, capture)


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
    assert decoded("completions", capture) == one_by_one("completions", capture)


def test_what_reasons_and_then_answers_is_counted_in_full() -> None:
    thoughts = [chat("@").replace(b'"content":"@"', b'"reasoning":"%d"' % i) for i in range(COUNT)]
    for begin in (thoughts, thoughts[: COUNT // 2], thoughts[:3]):
        capture = answer([*begin, *([chat()] * COUNT)], b"data: %b\n\n" % chat(reason="stop"))
        assert decoded("chat", capture) == one_by_one("chat", capture)
        assert decoded("chat", capture)["output_tokens"] == 2


def test_messages_that_repeat_those_before_are_all_parsed() -> None:
    lines = [b'{"text":"%b","meta_info":{"completion_tokens":%d}}' % (b"a" * i, i) for i in range(1, 60)]
    plain = sse.read_plain_stream(answer(lines).raw)
    assert plain is not None
    assert sse.read_typical(Generate(), plain) is None


def test_typical_messages_are_a_sequence() -> None:
    plain = sse.read_plain_stream(answer([chat()] * COUNT).raw)
    assert plain is not None
    messages = sse.read_typical(DIALECTS["chat"], plain)
    assert messages is not None
    every = DIALECTS["chat"].read_messages(plain.lines())
    assert list(messages) == list(messages[:]) == list(every)
    assert (len(messages), messages[-1], messages[3:5]) == (len(every), every[-1], every[3:5])
    assert [at for at, _ in sse.list_parsed(messages)] == [COUNT]
    assert list(sse.list_parsed(every)) == list(enumerate(every))
