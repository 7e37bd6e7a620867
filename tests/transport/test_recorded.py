from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders import recorded
from builders.loops import loop_over
from loadgen.records.decode import Decoder
from loadgen.records.record import UNKNOWN, Record
from loadgen.transport.failure import Failure, FailureKind
from loadgen.wire.openai import DIALECTS

K = FailureKind

# (failure, finish reason, input tokens, output tokens, each message's known), tokens of the messages
# that carried some, and which of the reads (0 is the head) brought the first.
STREAMS: dict[str, tuple[tuple[FailureKind | None, str, int, int, bool], list[int], int]] = {
    "vllm-0.32/chat_stream": ((None, "length", 13, 12, True), [1] * 12, 2),
    "vllm-0.32/chat_stream_mct": ((None, "length", 13, 6, True), [1] * 6, 2),
    "vllm-0.32/chat_stream_emptytext": ((None, "length", 13, 4, True), [1] * 4, 2),
    "vllm-0.32/chat_stream_specialtok": ((None, "length", 13, 4, True), [1] * 4, 2),
    "vllm-0.32/completions_batchprompt_stream": ((None, "length", 5, 8, True), [1] * 8, 1),
    "vllm-0.32/completions_ids_stream": ((None, "length", 5, 12, True), [1] * 12, 1),
    "vllm-0.32/completions_ids_stream_contusage": ((None, "length", 5, 12, True), [1] * 12, 1),
    "vllm-0.32/completions_ids_stream_logprobs": ((None, "length", 5, 4, False), [1, 1, 2], 1),
    "vllm-0.32/completions_ids_stream_tokids": ((None, "length", 5, 12, True), [1] * 12, 1),
    "vllm-0.32/completions_stop": ((None, "stop", 5, 4, True), [1] * 4, 1),
    "vllm-0.32/completions_stream_emptytext": ((None, "length", 2, 6, True), [1] * 6, 1),
    "vllm-0.32/completions_stream_eos_noignore": ((None, "stop", 2, 1, True), [1], 1),
    "vllm-0.32/completions_stream_nousage": ((None, "length", -1, 4, False), [1] * 4, 1),
    "vllm-0.32/completions_stream_one": ((None, "length", 2, 1, True), [1], 1),
    "vllm-0.32/completions_stream_specialtok": ((None, "length", 2, 4, True), [1] * 4, 1),
    "vllm-0.32/completions_text_stream": ((None, "length", 9, 12, True), [1] * 12, 1),
    "vllm-0.32/err_oov": ((K.IN_BAND, "", -1, 0, False), [], 0),
    "vllm-0.32/si4_chat_stream": ((None, "length", 13, 14, False), [2, 3, 3, 3, 3], 2),
    "vllm-0.32/si4_completions_ids_stream": ((None, "length", 5, 14, True), [1, 4, 4, 4, 1], 1),
    "sglang-0.5.23/chat_stream": ((None, "length", 13, 12, True), [1] * 12, 2),
    "sglang-0.5.23/chat_stream_mct": ((None, "length", 13, 6, True), [1] * 6, 2),
    "sglang-0.5.23/completions_batchprompt_stream": ((None, "length", 5, 8, True), [1] * 8, 1),
    "sglang-0.5.23/completions_ids_stream": ((None, "length", 5, 12, True), [1] * 12, 1),
    "sglang-0.5.23/completions_ids_stream_contusage": ((None, "length", 5, 6, True), [1] * 6, 1),
    "sglang-0.5.23/completions_ids_stream_logprobs": ((None, "length", 5, 4, True), [1] * 4, 1),
    "sglang-0.5.23/completions_ids_stream_tokids": ((None, "length", 5, 4, True), [1] * 4, 1),
    "sglang-0.5.23/completions_stream_emptytext": ((None, "length", 2, 6, True), [1] * 6, 1),
    "sglang-0.5.23/completions_stream_nousage": ((None, "length", -1, 4, False), [1] * 4, 1),
    "sglang-0.5.23/completions_stream_one": ((None, "length", 2, 1, True), [1], 1),
    "sglang-0.5.23/completions_text_stream": ((None, "length", 9, 12, True), [1] * 12, 1),
    "sglang-0.5.23/err_badmodel": ((None, "length", -1, 4, False), [1] * 4, 1),
    "sglang-0.5.23/generate_stream": ((None, "length", 5, 6, True), [1] * 6, 1),
    "sglang-0.5.23/generate_text_stream": ((None, "length", 9, 6, True), [1] * 6, 1),
    "sglang-0.5.23/generate_aborted": ((K.ABORTED, "abort", 5, 7, True), [1, 1, 1, 2, 1, 1], 1),
    "sglang-0.5.23/si4_chat_stream": ((None, "length", 13, 14, False), [2, 3, 3, 3, 3], 2),
    "sglang-0.5.23/si4_completions_ids_stream": ((None, "length", 5, 14, True), [1, 4, 4, 4, 1], 1),
    "sglang-0.5.23/si4_generate_stream": ((None, "length", 5, 14, True), [1, 4, 4, 4, 1], 1),
    "sglang-0.5.23-skip-tokenizer/generate_stream": ((None, "length", 5, 16, True), [1] * 16, 1),
    "sglang-0.5.23-skip-tokenizer/generate_batch_stream": ((None, "length", 5, 8, True), [1] * 8, 1),
    "sglang-0.5.23-skip-tokenizer/generate_err_toolong": ((K.CONTEXT_LIMIT, "", -1, 0, False), [], 0),
    "sglang-0.5.23-incremental/generate_stream": ((None, "length", 5, 12, True), [1, 2] + [1] * 9, 1),
    "sglang-0.5.23-incremental/si4_generate_stream": ((None, "length", 5, 14, True), [1, 4, 4, 4, 1], 1),
    "sglang-0.5.23-incremental/generate_aborted": ((K.ABORTED, "abort", 5, 6, True), [2, 1, 1, 1, 1], 1),
    "sglang-0.5.23-incremental-skip-tokenizer/generate_stream": (
        (None, "length", 5, 16, True),
        [1, 2] + [1] * 13,
        1,
    ),
    "transformers-serve/chat_stream": ((None, "length", 13, 12, False), [1] * 10 + [2], 2),
    "transformers-serve/completions_stream_nousage": ((None, "length", 9, 4, True), [1] * 4, 1),
    "transformers-serve/completions_text_stream": ((None, "length", 9, 12, True), [1] * 12, 1),
    "transformers-serve-continuous-batching/chat_stream": (
        (None, "length", 13, 12, False),
        [1] * 10 + [2],
        2,
    ),
    "transformers-serve-continuous-batching/completions_stream_nousage": (
        (None, "length", 9, 4, True),
        [1] * 4,
        1,
    ),
    "transformers-serve-continuous-batching/completions_text_stream": (
        (None, "length", 9, 12, True),
        [1] * 12,
        1,
    ),
    "llama-cpp-python/chat_stream": ((None, "length", -1, 8, False), [1] * 8, 2),
    "llama-cpp-python/completions_text_stream": ((None, "length", -1, 8, False), [1] * 8, 1),
}


@loop_over("name", STREAMS)
def test_a_recorded_stream_is_counted_as_its_server_counted_it(name: str) -> None:
    expected, tokens, first = STREAMS[name]
    data = recorded.reads(name)
    record = recorded.decode(name, data)
    assert recorded.outcome(record) == expected
    assert record.tokens.tolist() == tokens
    assert record.arrival_ns.tolist() == [1000 * (first + i + 1) for i in range(len(tokens))]
    assert (record.shared_reads, record.reads, record.end_ns) == (0, len(data), 1000 * len(data))


@loop_over("name", STREAMS)
def test_a_stream_in_one_read_has_the_same_tokens(name: str) -> None:
    expected, tokens, _ = STREAMS[name]
    record = recorded.decode(name, [b"".join(recorded.reads(name))])
    assert (recorded.outcome(record), record.tokens.tolist()) == (expected, tokens)
    assert record.arrival_ns.tolist() == [1000] * len(tokens)
    assert record.shared_reads == max(0, len(tokens) - 1)


@loop_over("name", STREAMS)
def test_a_stream_byte_by_byte_arrives_with_the_end_of_each_data_line(name: str) -> None:
    expected, tokens, first = STREAMS[name]
    reads = recorded.reads(name)
    raw = b"".join(reads)
    record = recorded.decode(name, [raw[at : at + 1] for at in range(len(raw))])
    assert (recorded.outcome(record), record.tokens.tolist()) == (expected, tokens)
    ends, so_far = [], 0
    for read in reads:
        ends.append(so_far + read.find(b"\n\n"))
        so_far += len(read)
    assert record.arrival_ns.tolist() == [1000 * (end + 1) for end in ends[first : first + len(tokens)]]


@pytest.mark.parametrize(
    "name",
    [
        "vllm-0.32/chat_stream_emptytext",
        "sglang-0.5.23/completions_stream_emptytext",  # its last text is six U+FFFD, three bytes each
        "transformers-serve/completions_stream_nousage",
    ],
)
def test_a_stream_split_anywhere_is_the_same(name: str) -> None:
    expected, tokens, first = STREAMS[name]
    reads = recorded.reads(name)
    raw = b"".join(reads)
    line_ends = [len(b"".join(reads[:i])) + read.find(b"\n\n") for i, read in enumerate(reads)]
    line_ends = line_ends[first : first + len(tokens)]
    for cut in range(1, len(raw)):
        record = recorded.decode(name, [raw[:cut], raw[cut:]])
        assert (recorded.outcome(record), record.tokens.tolist()) == (expected, tokens)
        assert record.arrival_ns.tolist() == [1000 if end < cut else 2000 for end in line_ends]


@loop_over(
    ("name", "expected", "messages", "shared", "first_ns"),
    [
        ("vllm-0.32/chat", (None, "length", 3610, 6, True), 6, 0, 69_578_000),
        ("vllm-0.32/completions_long_prompt", (None, "length", 3000, 6, True), 6, 0, 63_354_000),
        ("vllm-0.32/kill_enginecore", (K.IN_BAND, "", -1, 74, False), 74, 0, 10_540_000),
        ("vllm-0.32/kill_worker", (K.IN_BAND, "", -1, 74, False), 74, 0, 8_953_000),
        ("vllm-0.32/sigkill_api", (K.TRUNCATED, "", -1, 77, False), 77, 0, 35_854_000),
        ("vllm-0.32/sigterm_api", (K.ABORTED, "abort", 2, 676, False), 122, 45, 12_970_000),
        ("sglang-0.5.23/chat", (None, "length", 3610, 6, True), 6, 0, 81_541_000),
        ("sglang-0.5.23/completions_long_prompt", (None, "length", 3000, 6, True), 6, 3, 139_520_000),
        ("sglang-0.5.23/kill_scheduler", (K.TRUNCATED, "", -1, 78, False), 78, 0, 23_783_000),
        ("sglang-0.5.23/sigkill_api", (K.TRUNCATED, "", -1, 151, False), 151, 130, 162_921_000),
        ("sglang-0.5.23/sigterm", (None, "length", 2, 600, False), 75, 0, 32_735_000),
        ("transformers-serve/chat", (None, "length", 3610, 6, True), 6, 0, 201_844_000),
        ("transformers-serve/sigterm", (None, "length", 3, 2000, False), 77, 2, 33_898_000),
        ("llama-cpp-python/stall", (K.TRUNCATED, "", -1, 27, False), 27, 0, 107_875_000),
    ],
)
def test_a_recorded_connection_gives_its_tokens_times_and_end(
    name: str, expected: tuple[Any, ...], messages: int, shared: int, first_ns: int
) -> None:
    at_ns, data = recorded.timed(name)
    record = recorded.decode(name, data, at_ns)
    assert recorded.outcome(record) == expected
    assert (len(record.tokens), record.shared_reads, record.arrival_ns[0]) == (messages, shared, first_ns)
    assert record.tokens.sum() == record.output_tokens
    assert (record.first_byte_ns, record.end_ns) == (at_ns[0], at_ns[-1])


@loop_over(
    ("name", "kind", "detail"),
    [
        (
            "vllm-0.32/err_badmodel",
            K.HTTP_STATUS,
            "404: The model `nope` does not exist. Valid aliases: qwen3.",
        ),
        ("vllm-0.32/err_oov", K.IN_BAND, "400: Token id 999999 is out of vocabulary"),
        (
            "sglang-0.5.23-skip-tokenizer/generate_err_toolong",
            K.CONTEXT_LIMIT,
            "400: The input (9000 tokens) is longer than the model's context length (8192 tokens).",
        ),
        (
            "sglang-0.5.23-skip-tokenizer/generate_err_toolong_in_queue",
            K.ABORTED,
            "finish_reason abort: Input length (8191 tokens) exceeds the maximum allowed length "
            "(8186 tokens). Use a shorter input or enable --allow-auto-truncate.",
        ),
        (
            "sglang-0.5.23-skip-tokenizer/generate_err_text",
            K.IN_BAND,
            "400: The engine initialized with skip_tokenizer_init=True cannot accept text prompts. "
            "Please provide input_ids or re-initialize the engine with skip_tokenizer_init=False.",
        ),
        (
            "sglang-0.5.23-skip-tokenizer/completions_ids_stream",
            K.HTTP_STATUS,
            "500: Internal server error: 'text'",
        ),
        ("sglang-0.5.23/generate_aborted", K.ABORTED, "finish_reason abort: Aborted"),
        ("transformers-serve/completions_ids_stream", K.HTTP_STATUS, "400: prompt must be a string."),
        (
            "transformers-serve/chat_stream_ignoreeos",
            K.HTTP_STATUS,
            "422: Unexpected fields in the request: {'ignore_eos'}",
        ),
        (
            "transformers-serve/chat_aliasmodel",
            K.HTTP_STATUS,
            "400: Server is pinned to '/models/tiny-qwen3'; requested 'qwen3'.",
        ),
        (
            "vllm-0.32/err_toolong",
            K.CONTEXT_LIMIT,
            "400: max_tokens=5000 cannot be greater than max_model_len=4096. "
            "Please request fewer output tokens. (parameter=max_tokens, value=5000)",
        ),
    ],
)
def test_a_refusal_says_what_the_server_said(name: str, kind: FailureKind, detail: str) -> None:
    assert recorded.decode(name, recorded.reads(name)).failure == Failure(kind, detail)


@pytest.mark.parametrize(
    ("name", "begins", "kind"),
    [
        ("vllm-0.32/err_badjson", "400: 1 validation error: {'type': 'json_invalid'", K.HTTP_STATUS),
        (
            "sglang-0.5.23/err_toolong",
            "400: Requested token count exceeds the model's maximum context length",
            K.CONTEXT_LIMIT,
        ),
        (
            "sglang-0.5.23-skip-tokenizer/generate_err_field",
            "400: unknown field `nonsense`, expected one of `max_new_tokens`, `stop`, ",
            K.HTTP_STATUS,
        ),
        (
            "llama-cpp-python/completions_ids_stream",
            "500: 6 validation errors: {'type': 'string_type', ",
            K.HTTP_STATUS,
        ),
    ],
)
def test_a_long_refusal_is_shortened(name: str, begins: str, kind: FailureKind) -> None:
    failure = recorded.decode(name, recorded.reads(name)).failure
    assert failure is not None
    assert (failure.kind, failure.detail[: len(begins)]) == (kind, begins)
    assert len(failure.detail) <= 310


@loop_over(
    ("name", "input_tokens"),
    [
        ("vllm-0.32/chat_nostream", 13),
        ("vllm-0.32/completions_text_nostream", 9),
        ("sglang-0.5.23/chat_nostream", 13),
        ("sglang-0.5.23/completions_text_nostream", 9),
        ("transformers-serve/chat_nostream", 13),
        ("transformers-serve/completions_text_nostream", 9),
        ("transformers-serve-continuous-batching/chat_nostream", 13),
        ("llama-cpp-python/completions_text_nostream", 9),
    ],
)
def test_an_answer_in_one_piece_has_counts_and_an_end_but_no_arrivals(name: str, input_tokens: int) -> None:
    record = recorded.decode(name, recorded.reads(name), keep_text=True)
    assert recorded.outcome(record) == (None, "length", input_tokens, 8, True)
    assert (record.arrival_ns.tolist(), record.tokens.tolist(), record.end_ns) == ([], [], 2000)
    assert record.usage
    assert (record.text or "")[:3] in ("BUG", "nda")
    streamed = recorded.decode(name.replace("nostream", "asked for a stream"), recorded.reads(name))
    assert streamed.failure == Failure(K.NOT_STREAMED, "one JSON body where a stream was requested")


def test_every_recorded_response_is_in_a_table() -> None:
    tests = Path(__file__).parents[1]
    places = (*tests.glob("features/*/test_*_api.py"), *tests.glob("cases/*_api.json"), Path(__file__))
    source = "".join(path.read_text() for path in places)
    names = {f"{path.parent.name}/{path.stem}" for path in recorded.RESPONSES.glob("*/*.[th]*")}
    assert [name for name in sorted(names) if f'"{name}"' not in source] == []


def test_a_stream_that_only_pings_is_a_stall() -> None:
    data = recorded.reads("llama-cpp-python/second")[:-1]
    record = recorded.decode("completions", data, failure=Failure(K.STALL, "no token"))
    assert recorded.outcome(record) == (K.STALL, "", -1, 0, False)


# (failure, finish reason, input tokens, output tokens, each message's known), tokens of the messages
# that carried some, which of the reads brought the first, and what its timings are: prompt tokens computed
# and cached, tokens generated, nanoseconds of prompt and generation.
LLAMACPP: dict[str, tuple[tuple[Any, ...], list[int], int, tuple[int, ...]]] = {
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


@loop_over("name", LLAMACPP)
def test_a_stream_has_its_servers_counts_and_times(name: str) -> None:
    expected, tokens, first, reported = LLAMACPP[name]
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
