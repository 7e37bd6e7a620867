"""Responses of llama.cpp's own server: what it counts, and what it reports of each request in `timings`."""

from __future__ import annotations

from typing import Any

import pytest

from builders import recorded
from builders.loops import loop_over
from loadgen.records.decode import Decoder
from loadgen.records.record import UNKNOWN, Record
from loadgen.transport.failure import Failure, FailureKind
from loadgen.wire.openai import DIALECTS

# (failure, finish reason, input tokens, output tokens, each message's known), tokens of the messages
# that carried some, which of the reads brought the first, and what its timings are: prompt tokens computed
# and cached, tokens generated, nanoseconds of prompt and generation.
STREAMS: dict[str, tuple[tuple[Any, ...], list[int], int, tuple[int, ...]]] = {
    "llama-server/chat_stream": ((None, "length", 15, 8, True), [1] * 8, 2, (15, 0, 8, 1_016_000, 1_994_000)),
    "llama-server/chat_stream_mct": ((None, "length", 15, 4, True), [1] * 4, 2, (1, 14, 4, 512_000, 875_000)),
    "llama-server/chat_stream_nousage": (
        (None, "length", -1, 4, False), [1] * 4, 2, (1, 14, 4, 419_000, 819_000),
    ),
    "llama-server/chat_tools_stream": (
        (None, "length", 17, 16, False), [1] * 14 + [2], 2, (14, 3, 16, 3_415_000, 2_483_000),
    ),
    "llama-server/completions_ids_stream": (
        (None, "length", 5, 8, True), [1] * 8, 1, (5, 0, 8, 19_440_000, 2_272_000),
    ),
    # With a text the usage comes unasked; an incomplete character is held back until the next token.
    "llama-server/completions_stream_nousage": (
        (None, "length", 5, 4, True), [1] * 4, 1, (1, 4, 4, 567_000, 524_000),
    ),
    "llama-server/completions_text_stream": (
        (None, "length", 9, 8, False), [1] * 6 + [2], 1, (9, 0, 8, 2_704_000, 1_657_000),
    ),
}  # fmt: skip
WHOLE = {
    "llama-server/chat_nostream": (15, 14, (1, 14, 4, 478_000, 606_000)),
    "llama-server/completions_ids_nostream": (3, 0, (3, 0, 1, 594_000, 1000)),
}
REFUSED = {
    "llama-server/err_badjson": "500: [json.exception.parse_error.101] parse error at line 1, column 10",
    "llama-server/err_oov": "400: Prompt contains invalid tokens",
    "llama-server/err_toolong": "400: request (5000 tokens) exceeds the available context size (4096 tokens)",
}
OF_CONTEXT = {"llama-server/err_toolong"}


def timings(record: Record) -> tuple[int, ...]:
    counts = (record.server_prompt_tokens, record.server_cached_tokens, record.server_output_tokens)
    return (*counts, record.server_prefill_ns, record.server_decode_ns)


@loop_over("name", STREAMS)
def test_a_stream_has_its_servers_counts_and_times(name: str) -> None:
    expected, tokens, first, reported = STREAMS[name]
    data = recorded.reads(name)
    record = recorded.decode(name, data)
    assert (recorded.outcome(record), record.tokens.tolist()) == (expected, tokens)
    assert record.arrival_ns.tolist() == [1000 * (first + i + 1) for i in range(len(tokens))]
    assert timings(record) == reported
    together = recorded.decode(name, [b"".join(data)])
    assert (recorded.outcome(together), timings(together)) == (expected, reported)


@pytest.mark.parametrize("name", WHOLE)
def test_an_answer_in_one_piece_has_them_too(name: str) -> None:
    input_tokens, cached, reported = WHOLE[name]
    record = recorded.decode(name, recorded.reads(name))
    assert (record.failure, record.input_tokens, record.cached_tokens) == (None, input_tokens, cached)
    assert timings(record) == reported


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_has_the_servers_words(name: str) -> None:
    failure = recorded.decode(name, recorded.reads(name)).failure
    assert failure is not None
    kind = FailureKind.CONTEXT_LIMIT if name in OF_CONTEXT else FailureKind.HTTP_STATUS
    assert (failure.kind, failure.detail[: len(REFUSED[name])]) == (kind, REFUSED[name])


@loop_over(
    ("written", "reported"),
    [
        (b"null", (UNKNOWN,) * 5),
        (b'"fast"', (UNKNOWN,) * 5),
        (b'{"prompt_n":"many"}', (UNKNOWN,) * 5),
        (b'{"prompt_n":-5}', (UNKNOWN,) * 5),
        (
            b'{"prompt_n":7,"prompt_ms":2}',
            (7, UNKNOWN, UNKNOWN, 2_000_000, UNKNOWN),
        ),  # before there was a cache_n
        (b'{"prompt_ms":-2,"predicted_ms":1e300,"draft_n":4}', (UNKNOWN,) * 5),
    ],
)
def test_timings_that_cannot_be_are_not_known(written: bytes, reported: tuple[int, ...]) -> None:
    body = b'{"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"timings":%b}' % written
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    record = Decoder(DIALECTS["completions"], streamed=False).decode(recorded.capture([head, body]))
    assert (record.failure, timings(record)) == (None, reported)


def test_a_stream_that_the_server_left_in_the_middle_is_truncated() -> None:
    data = recorded.reads("llama-server/completions_ids_stream")[:5]
    record = recorded.decode(
        "completions", data, failure=Failure(FailureKind.TRUNCATED, "the connection ended")
    )
    assert record.failure is not None
    assert (record.failure.kind, timings(record)) == (FailureKind.TRUNCATED, (UNKNOWN,) * 5)
