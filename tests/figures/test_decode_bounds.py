"""Whatever numbers, strings and sizes a server writes, its response has a record, and figures are right."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from builders import recorded
from builders.loops import loop_over, loop_over_named, read_tables
from loadgen.figures.metrics import compute_metrics
from loadgen.figures.per_request import MetricOptions
from loadgen.records.decode import Decoder
from loadgen.records.decoded_stream import SILENT_TOKENS
from loadgen.records.record import UNKNOWN, Record, Records
from loadgen.transport.failure import Failure, FailureKind
from loadgen.wire.openai import DIALECTS, MOST
from records.test_decode import DONE, NAMED, fixed, list_events, stream

TABLES = read_tables("decode_bounds")

K = FailureKind
DEEP = b"[" * 20_000


def message(text: str = "a", reason: str | None = None, **more: Any) -> bytes:
    """An event of `/v1/completions`; a value that is bytes is taken as JSON."""
    fields = {"choices": [{"index": 0, "text": text, "finish_reason": reason}], **more}
    raw = {name: msgspec.Raw(value) if isinstance(value, bytes) else value for name, value in fields.items()}
    return b"data: %b\n\n" % msgspec.json.encode(raw)


def usage(**counts: Any) -> bytes:
    return message_of({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, **counts}})


def message_of(fields: Any) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(fields)


A, LAST = message(), message("b", "length")
OWN = NAMED | {"LAST": LAST}
MOST_SAID = "Expected `int` <= 2147483647 - at `$[0].usage"
LEAST_SAID = "Expected `int` >= 0 - at `$[0].usage"
TOO_DEEP = "maximum recursion depth exceeded while deserializing an object"


def summed(*records: Record) -> tuple[int, int, int]:
    """Successes, and their tokens in and out, by the metrics of a run of these."""
    found = compute_metrics(Records.from_records(records), MetricOptions())
    return found.completed, found.total_input_tokens, found.total_output_tokens


# Events of a response, what its failure's detail begins with, and the tokens of its messages.
LONG: dict[str, tuple[list[bytes], str, list[int]]] = {
    "usage_digits": (
        [A, b'data: {"usage":{"prompt_tokens":%b}}\n\n' % (b"9" * 5000)],
        "event 2: Integer value out of range",
        [1],
    ),
    "deep_json": (
        [A, b"data: %b\n\n" % DEEP],
        "event 2: Expected `object`, got `array` - at `$[0]`: [[[",
        [1],
    ),
    "deep_field": ([A, b'data: {"x":%b\n\n' % DEEP], f'event 2: {TOO_DEEP}: {{"x":[[[', [1]),
    "deep_metrics": ([A, b'data: {"metrics":%b\n\n' % DEEP], f"event 2: {TOO_DEEP}: ", [1]),
}
MALFORMED = LONG | {
    name: (list_events(row, OWN), begins, tokens)
    for name, (row, begins, tokens) in TABLES["malformed"].items()
}


@loop_over("name", MALFORMED)
def test_a_number_that_cannot_be_makes_that_answer_malformed_and_no_other(name: str) -> None:
    events, begins, tokens = MALFORMED[name]
    odd = recorded.decode("completions", stream(*events, DONE))
    assert odd.failure is not None
    assert (odd.failure.kind, odd.failure.detail[: len(begins)]) == (K.MALFORMED, begins)
    assert len(odd.failure.detail) <= 300
    assert (odd.tokens.tolist(), odd.output_tokens) == (tokens, len(tokens))
    good = recorded.decode("completions", stream(A, LAST, usage(), DONE))
    assert summed(odd, good, odd) == (1, 5, 2)


@pytest.mark.parametrize("keep_text", [False, True])
@pytest.mark.parametrize(
    ("place", "begin", "end"),
    [
        ("content", b'{"content":', b"}"),
        ("content", b"[", b"]"),
        ("reasoning", b'{"thinking":', b"}"),
        ("tool_calls", b'[{"function":', b"}]"),
        ("tool_calls", b'{"arguments":', b"}"),
    ],
)
def test_text_at_any_depth_is_read_or_makes_that_answer_malformed(
    place: str, begin: bytes, end: bytes, keep_text: bool
) -> None:
    # The parser's own limit is of the stack: what it lets pass may be too deep for what reads the text.
    failures = []
    for depth in (1, 100, 300, *range(400, 510, 2), 700, *range(900, 1000, 5), 20_000):
        text = b'{"%b":%b"a"%b}' % (place.encode(), begin * depth, end * depth)
        event = b'data: {"choices":[{"index":0,"delta":%b}]}\n\n' % text
        record = recorded.decode("chat", stream(event, LAST, DONE), keep_text=keep_text)
        failures.append(record.failure and record.failure.kind)
        assert DIALECTS["chat"].count_token_messages(event) in (0, 1)
    first = failures.index(K.MALFORMED)
    assert failures[:first] == [None] * first
    assert set(failures[first:]) == {K.MALFORMED}


@loop_over(
    ("body", "begins"),
    [
        (b'{"x":%b' % DEEP, TOO_DEEP),
        (b'{"usage":{"completion_tokens":-1}}', LEAST_SAID),
        (b'{"choices":[{"text":"a"}],"usage":{"completion_tokens":2000000000}}',
         "usage counts 2000000000 tokens in a response of 67 bytes"),
    ],
)  # fmt: skip
def test_an_answer_in_one_piece_is_bounded_too(body: bytes, begins: str) -> None:
    record = recorded.decode("nostream", fixed(b"200 OK", body))
    assert record.failure is not None
    assert (record.failure.kind, record.failure.detail[: len(begins)]) == (K.MALFORMED, begins)
    assert (record.output_tokens, record.usage) == (UNKNOWN, False)


@loop_over(
    ("body", "begins"),
    [
        (DEEP, "500: [[["),
        (b'{"detail":' + DEEP, '500: {"detail":[[['),
        (b'{"detail":' + b'{"a":' * 700 + b"1" + b"}" * 701, '500: {"a":{"a":'),
        (b'{"detail":%b}' % (b"9" * 5000), '500: {"detail":999'),
        (b'{"detail":%b}' % (b"9" * 4000), "500: 999"),
        (b'{"detail":1e999}', '500: {"detail":1e999}'),
        (rb'{"detail":"\ud800"}', '500: {"detail":"\\ud800"}'),
        (b'{"detail":"a\\u0000\\u001b[2Jb\\u202ec\\n\\td"}', "500: a\ufffd\ufffd[2Jb\ufffdc d"),
        (b"\xff\x00 <h1>", "500: \ufffd\ufffd <h1>"),
        (b'{"detail":" "}', "500"),
        (b" \n ", "500"),
        (b"x" * 10_000_000, "500: xxx"),
    ],
)
def test_an_errors_body_may_be_anything(body: bytes, begins: str) -> None:
    failure = recorded.decode("completions", fixed(b"500 Oops", body)).failure
    assert failure is not None
    assert (failure.kind, failure.detail[: len(begins)]) == (K.HTTP_STATUS, begins)
    assert len(failure.detail) <= 300
    assert failure.detail.isprintable()


def generated(count: Any, **meta: Any) -> bytes:
    finish = {"type": "length"}
    fields = {"prompt_tokens": 5, "completion_tokens": count, "finish_reason": finish, **meta}
    return message_of({"text": "abc", "meta_info": fields})


@loop_over(
    ("event", "begins"),
    [
        (generated(10**30), "event 1: Expected `int` <= 2147483647 - at `$[0].meta_info.completion_tokens`"),
        (generated(-1), "event 1: Expected `int` >= 0 - at `$[0].meta_info.completion_tokens`"),
        (generated(2, prompt_tokens=2**40), "event 1: Expected `int` <= 2147483647 - at `$[0].meta_info.pro"),
        (generated(2, cached_tokens=2**40), "event 1: Expected `int` <= 2147483647 - at `$[0].meta_info.cac"),
        (generated(MOST), "usage counts 2147483647 tokens in a response of "),
        (b'data: {"output_ids":%b\n\n' % DEEP, f"event 1: {TOO_DEEP}"),
        (b'data: {"meta_info":{"x":%b\n\n' % DEEP, f"event 1: {TOO_DEEP}"),
    ],
)
def test_the_api_of_sglang_is_bounded_too(event: bytes, begins: str) -> None:
    record = recorded.decode("generate", stream(event, DONE))
    assert record.failure is not None
    assert (record.failure.kind, record.failure.detail[: len(begins)]) == (K.MALFORMED, begins)
    assert summed(record)[0] == 0


# What a server says, and what is known then: tokens in, cached; its queue and time to the first token, ns.
@loop_over_named(("said", "known"), TABLES["partly_known"])
def test_what_is_optional_and_cannot_be_is_not_known(said: Any, known: list[int]) -> None:
    record = recorded.decode("completions", stream(A, LAST, *list_events([said], OWN), DONE))
    assert record.failure is None
    assert [record.input_tokens, record.cached_tokens, record.server_queue_ns, record.server_ttft_ns] == known
    assert (record.output_tokens, record.tokens.tolist()) == (2, [1, 1])


@pytest.mark.parametrize("more", [0, 1])
def test_tokens_that_are_not_shown_are_believed_up_to_a_million(more: int) -> None:
    body = [A, LAST, usage(completion_tokens=9_999_999)]
    most = sum(map(len, (*body, DONE))) + SILENT_TOKENS
    body[-1] = usage(completion_tokens=most + more)
    record = recorded.decode("completions", stream(*body, DONE))
    assert (record.failure is None) == (more == 0)
    assert (record.output_tokens, record.usage) == ((2, False) if more else (most, True))


@loop_over(
    ("reason", "kept"),
    [
        ("length", "length"),
        ("insufficient_context_and_so_on_x", "insufficient_context_and_so_on_x"),
        ("x" * 10_000_000, "x" * 31 + "…"),
        ("a\0b\x1b[2J\u202e", "a\ufffdb\ufffd[2J\ufffd"),
        (" a \n b ", "a b"),
        ("\0", "\ufffd"),
        ("\U0001f994" * 40, "\U0001f994" * 31 + "…"),
    ],
)
@loop_over("streamed", [True, False])
def test_a_finish_reason_is_kept_short_and_printable(reason: str, kept: str, streamed: bool) -> None:
    event = message("b", reason, usage={"completion_tokens": 2, "prompt_tokens": 5})
    if streamed:
        record = recorded.decode("completions", stream(A, event, DONE))
    else:
        record = recorded.decode("nostream", fixed(b"200 OK", event.removeprefix(b"data: ")))
    assert (record.failure, record.finish_reason) == (None, kept)


SECRET = "sk-abcdefghijklmnopqrstuvwxyz"


def hidden(text: str) -> str:
    return text.replace(SECRET, "***")


def whole(**fields: Any) -> list[bytes]:
    return fixed(b"200 OK", msgspec.json.encode(fields))


@loop_over(
    "data",
    [
        fixed(b"401 No", msgspec.json.encode({"error": {"message": f"no key {SECRET}"}})),
        fixed(b"500 No", b" " * 1200 + f"{'x' * 285} {SECRET} {SECRET}".encode()),
        fixed(b"500 No", b"x" * 100 + b" " * 1090 + SECRET.encode()),  # where it was cut before it was read
        stream(A, message_of({"error": {"message": "x" * 290 + SECRET}}), DONE),
        stream(A, message_of({"error": {"code": SECRET}}), DONE),
        stream(A, message_of({"detail": SECRET}), DONE),
        stream(A, b"error: %b\n\n" % SECRET.encode(), DONE),
        stream(A, message("b", "x" * 20 + SECRET), DONE),
        stream(A, message("b", SECRET), DONE),
        stream(A, b"data: {%b\n\n" % SECRET.encode(), DONE),
        stream(message(f"the key {SECRET}", "stop"), DONE),
        whole(choices=[{"text": SECRET, "finish_reason": SECRET}], usage={"completion_tokens": 1}),
        [b"HTTP/1.1 200 OK\r\ncontent-encoding: %b\r\ncontent-length: 1\r\n\r\nx" % SECRET.encode()],
    ],
)
@loop_over("streamed", [True, False])
def test_a_repeated_secret_is_hidden_before_texts_are_shortened(data: list[bytes], streamed: bool) -> None:
    decoder = Decoder(DIALECTS["completions"], streamed, keep_text=True, hide=hidden)
    record = decoder.decode(recorded.capture(data, failure=Failure(K.CONNECT, f"Illegal header {SECRET}")))
    plain = decoder.decode(recorded.capture(data))
    for found in (record, plain):
        said = f"{found.failure} {found.finish_reason} {found.text}"
        assert "sk-a" not in said
    assert "***" in f"{record.failure} {plain.failure} {plain.finish_reason} {plain.text}"


@pytest.mark.parametrize(
    ("transport", "detail"),
    [("", "stall: unknown cause"), (" \n", "stall: unknown cause"), ("no\x1b token", "no\ufffd token")],
)
def test_a_failure_is_never_without_words(transport: str, detail: str) -> None:
    record = recorded.decode("completions", stream(A, end=b""), failure=Failure(K.STALL, transport))
    assert record.failure == Failure(K.STALL, detail)
    assert record.end_ns == 10**15
