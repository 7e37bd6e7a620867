from __future__ import annotations

import gc
from typing import Any

import msgspec
import pytest

from builders import recorded
from builders.loops import loop_over, read_tables
from loadgen.records.decode import Decoder
from loadgen.transport.failure import Failure, FailureKind
from loadgen.wire.openai import DIALECTS

TABLES = read_tables("decode")

K = FailureKind
DONE = b"data: [DONE]\n\n"
USED = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(text: str = "", reason: str | None = None, **more: Any) -> bytes:
    return encode({"choices": [{"index": 0, "text": text, "finish_reason": reason}], **more})


def encode(message: Any) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(message)


def fixed(status: bytes, body: bytes) -> list[bytes]:
    return [b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)]


def stream(*events: bytes, end: bytes = b"0\r\n\r\n") -> list[bytes]:
    return [HEAD, *(recorded.chunk(event) for event in events), *([end] if end else [])]


A, B, LAST = event("a"), event("b"), event("c", "length")
USAGE = b"data: %b\n\n" % msgspec.json.encode({"choices": [], "usage": USED})
STOPPED = event("c", "stop")
NAMED = {"A": A, "B": B, "LAST": LAST, "STOPPED": STOPPED, "USAGE": USAGE, "DONE": DONE}


def list_events(row: list[Any], named: dict[str, bytes] = NAMED) -> list[bytes]:
    """The events of a row of a table: an object is an event's data, a word names one, another text is one."""
    return [encode(each) if isinstance(each, dict) else named.get(each, each.encode()) for each in row]


@loop_over(("events", "ends", "kind", "detail", "tokens"), TABLES["ends"])
def test_how_a_stream_can_end(
    events: list[Any], ends: bool, kind: str | None, detail: str, tokens: int
) -> None:
    record = recorded.decode("completions", stream(*list_events(events), end=b"0\r\n\r\n" if ends else b""))
    assert record.failure == (kind and Failure(K(kind), detail))
    assert record.tokens.tolist() == [1] * tokens


@loop_over(
    ("data", "kind", "detail"),
    [
        ([HEAD[:20]], K.TRUNCATED, "the connection ended before the response's head"),
        ([], K.TRUNCATED, "the connection ended before the response's head"),
        (fixed(b"502 Bad Gateway", b"<h1>\n502\n</h1>"), K.HTTP_STATUS, "502: <h1> 502 </h1>"),
        (fixed(b"503 Busy", b""), K.HTTP_STATUS, "503"),
        (
            fixed(b"422 No", b'{"detail":[{"msg":"bad field"}]}'),
            K.HTTP_STATUS,
            '422: [{"msg":"bad field"}]',
        ),
        (
            [b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>"],
            K.EMPTY,
            "no events in a body of text/html",
        ),
        (fixed(b"200 OK", b'{"error":{"message":"full","code":503}}'), K.IN_BAND, "503: full"),
        (
            fixed(b"200 OK", b'{"message":{"content":"a"},"done":false}\n{"done":true,"eval_count":1}\n'),
            K.NOT_STREAMED,
            "JSON objects in lines, not server-sent events: is it another API?",
        ),
        (fixed(b"200 OK", b"<html>"), K.EMPTY, "no events in the body: <html>"),
    ],
)
def test_what_is_no_stream_has_no_token(data: list[bytes], kind: FailureKind, detail: str) -> None:
    record = recorded.decode("completions", data)
    assert (record.failure, record.tokens.tolist()) == (Failure(kind, detail), [])


@loop_over(
    ("data", "begins", "ends", "tokens"),
    [
        (stream(A, b'data: {"choices"\n\n', LAST, DONE), "event 2: ", ': {"choices"', 1),
        (stream(A, B, b'data: {"choices":7}\n\n', LAST), "event 3: Expected ", ': {"choices":7}', 2),
        (stream(A, b"data: {},{}\n\n", LAST, DONE), "event 2: ", ": {},{}", 1),
        (stream(A, A.replace(b'"a"', b'"\xff"'), DONE), "event 2: ", "}", 1),
        ([*stream(A, end=b""), b"zz\r\n"], "", "", 1),
        ([b"\x16\x03\x03\x00"], "", "", 0),
    ],
)
def test_malformed_bytes_are_shown_and_end_the_answer(
    data: list[bytes], begins: str, ends: str, tokens: int
) -> None:
    record = recorded.decode("completions", data)
    assert record.failure is not None
    assert record.failure.kind is K.MALFORMED
    assert record.failure.detail.startswith(begins)
    assert record.failure.detail.endswith(ends)
    assert record.tokens.tolist() == [1] * tokens


REFUSED = fixed(b"503 Busy", b"busy")
FAILED = stream(A, b'data: {"error":"out"}\n\n', end=b"")


@loop_over(
    ("transport", "data", "kind", "given_up"),
    [
        (K.STALL, stream(A, b": ping\n\n", end=b""), K.STALL, True),
        (K.TIMEOUT, stream(A, end=b""), K.TIMEOUT, True),
        (K.CANCELLED, FAILED, K.CANCELLED, True),
        (K.TRUNCATED, stream(A, end=b""), K.TRUNCATED, True),
        (K.CONNECT, [], K.CONNECT, True),
        (K.TRUNCATED, FAILED, K.IN_BAND, False),
        (K.TRUNCATED, REFUSED, K.HTTP_STATUS, False),
        (K.CONNECT, REFUSED, K.HTTP_STATUS, False),
        (K.STALL, FAILED, K.STALL, True),
        (K.TRUNCATED, stream(A, event("", "abort"), end=b""), K.ABORTED, False),
        (K.TRUNCATED, stream(A, LAST, USAGE, DONE, end=b""), None, False),
        (K.TRUNCATED, stream(A, LAST, USAGE, end=b""), None, False),
        (K.TRUNCATED, stream(A, LAST, end=b""), K.TRUNCATED, True),
        (K.TRUNCATED, [b"HTTP/1.1 200 OK\r\n\r\n" + A + LAST], K.TRUNCATED, True),
    ],
)
def test_of_what_the_transport_and_the_bytes_say_the_more_telling_counts(
    transport: FailureKind, data: list[bytes], kind: FailureKind | None, given_up: bool
) -> None:
    record = recorded.decode("completions", data, failure=Failure(transport, "transport"))
    assert (record.failure.kind if record.failure else None) is kind
    assert record.end_ns == (10**15 if given_up else 1000 * len(data))


@loop_over(
    "data",
    [
        stream(A + LAST, USAGE + DONE),
        stream(A[:30], A[30:], LAST + USAGE + DONE),
        stream(b": ping\n\n", A.replace(b"\n", b"\r\n"), LAST, USAGE, DONE),
        stream(A.replace(b"data: ", b"data:"), b"event: x\nid: 1\n" + LAST, USAGE, DONE),
        [HEAD.replace(b"transfer-encoding: chunked", b"connection: close"), A + LAST, USAGE, DONE],
        [b"HTTP/1.1 100 Continue\r\n\r\n", *stream(A, LAST, USAGE, DONE)],
    ],
)
def test_whatever_the_framing_the_answer_is_the_same(data: list[bytes]) -> None:
    record = recorded.decode("completions", data, keep_text=True)
    assert recorded.outcome(record) == (None, "length", 5, 2, True)
    assert (record.cached_tokens, record.text) == (4, "ac")


# vLLM's, SGLang's, and what says none or cannot be.
@loop_over(("details", "tokens"), TABLES["image_tokens"])
def test_tokens_of_images_are_those_of_the_details(details: Any, tokens: int) -> None:
    usage = msgspec.json.encode({"choices": [], "usage": {**USED, "prompt_tokens_details": details}})
    record = recorded.decode("chat", stream(A, LAST, b"data: %b\n\n" % usage, DONE))
    assert (record.image_tokens, record.input_tokens) == (tokens, 5)


def test_only_the_rest_of_the_empty_line_in_a_later_read_delays_no_token() -> None:
    body = A + LAST + USAGE + DONE
    record = recorded.decode("completions", [body[: len(A) - 1], body[len(A) - 1 :]], status=200)
    assert record.arrival_ns.tolist() == [1000, 2000]


@loop_over(
    ("body", "complete", "failure"),
    [
        (b'{"choices":[{"text":"a","finish_reason":"length"}]}', True, None),
        (b'{"choices":[{"text":"a"', False, Failure(K.TRUNCATED, "the connection ended inside the response")),
        (b'{"error":{"message":"full","code":503}}', True, Failure(K.IN_BAND, "503: full")),
        (b'{"choices":[{"text":""}]}', True, Failure(K.EMPTY, "a complete response without a token")),
        (
            b'{"choices":[{"text":"a","finish_reason":"abort"}]}',
            True,
            Failure(K.ABORTED, "finish_reason abort: the server stopped this request"),
        ),
    ],
)
def test_how_an_answer_in_one_piece_can_end(body: bytes, complete: bool, failure: Failure | None) -> None:
    length = len(body) if complete else len(body) + 1
    data = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length, body]
    record = recorded.decode("nostream", data)
    assert (record.failure, record.output_tokens) == (failure, -1)


def test_the_clients_own_lag_is_kept_apart_from_the_kernels_stamps() -> None:
    data = stream(A, LAST, USAGE, DONE)
    capture = recorded.capture(data)
    record = Decoder(DIALECTS["completions"], streamed=True).decode(capture)
    assert (record.reads, record.unstamped_reads) == (6, 0)
    assert (record.lag_sum_ns, record.lag_max_ns) == (6 * recorded.LAG_NS, recorded.LAG_NS)
    capture.kernel = capture.kernel[:16] + bytes(16) + capture.kernel[32:]
    record = Decoder(DIALECTS["completions"], streamed=True).decode(capture)
    assert (record.unstamped_reads, record.lag_sum_ns) == (1, 5 * recorded.LAG_NS)
    assert record.arrival_ns.tolist() == [2000 + recorded.LAG_NS, 3000]
    assert (record.index, record.slot, record.intended_ns, record.sent_ns) == (3, 1, 1, 2)
    assert record.text is None


@pytest.mark.parametrize("name", ["completions", "chat", "completions-nostream"])
def test_decoding_leaves_nothing_to_the_collector_which_is_off_meanwhile(name: str) -> None:
    body = b'data: {"choices":[{"text":"a","delta":{"content":"a"},"index":0}]}\n\ndata: [DONE]\n\n'
    reads = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body), body]
    recorded.decode(name, reads)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            recorded.decode(name, reads)
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("events", [3, 60])
def test_a_stream_that_is_labelled_json_is_a_stream(events: int) -> None:
    plain = b"".join(stream(*[A] * events, LAST, DONE))
    labelled = plain.replace(b"text/event-stream", b"application/json")
    assert labelled != plain
    assert recorded.decode("completions", [labelled]).failure is None
