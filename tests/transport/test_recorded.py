"""Recorded answers of real servers: their tokens, times, ends and counts, however their bytes are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders import recorded
from builders.loops import loop_over, read_tables
from loadgen.records.decode import Decoder
from loadgen.records.record import UNKNOWN, Record
from loadgen.transport.failure import Failure, FailureKind
from loadgen.wire.openai import DIALECTS

# Of a stream: [failure, finish reason, input tokens, output tokens, each message's known], the tokens of the
# messages that carried some, and which of the reads (0 is the head) brought the first.
TABLES = read_tables("recorded")
STREAMS: dict[str, tuple[list[Any], list[int], int]] = TABLES["streams"]


def line_ends(name: str) -> list[int]:
    """Where the data line of each message with tokens ends in a recorded stream."""
    _, tokens, first = STREAMS[name]
    ends, so_far = [], 0
    for read in recorded.reads(name):
        ends.append(so_far + read.find(b"\n\n"))
        so_far += len(read)
    return ends[first : first + len(tokens)]


@loop_over("name", STREAMS)
def test_a_recorded_stream_is_counted_as_its_server_counted_it(name: str) -> None:
    expected, tokens, first = STREAMS[name]
    data = recorded.reads(name)
    record = recorded.decode(name, data)
    assert [*recorded.outcome(record)] == expected
    assert record.tokens.tolist() == tokens
    assert record.arrival_ns.tolist() == [1000 * (first + i + 1) for i in range(len(tokens))]
    assert (record.shared_reads, record.reads, record.end_ns) == (0, len(data), 1000 * len(data))


@loop_over("name", STREAMS)
def test_a_stream_in_one_read_has_the_same_tokens(name: str) -> None:
    expected, tokens, _ = STREAMS[name]
    record = recorded.decode(name, [b"".join(recorded.reads(name))])
    assert ([*recorded.outcome(record)], record.tokens.tolist()) == (expected, tokens)
    assert record.arrival_ns.tolist() == [1000] * len(tokens)
    assert record.shared_reads == max(0, len(tokens) - 1)


@loop_over("name", STREAMS)
def test_a_stream_byte_by_byte_arrives_with_the_end_of_each_data_line(name: str) -> None:
    expected, tokens, _ = STREAMS[name]
    raw = b"".join(recorded.reads(name))
    record = recorded.decode(name, [raw[at : at + 1] for at in range(len(raw))])
    assert ([*recorded.outcome(record)], record.tokens.tolist()) == (expected, tokens)
    assert record.arrival_ns.tolist() == [1000 * (end + 1) for end in line_ends(name)]


@pytest.mark.parametrize(
    "name",
    [
        "vllm-0.32/chat_stream_emptytext",
        "sglang-0.5.23/completions_stream_emptytext",  # its last text is six U+FFFD, three bytes each
        "transformers-serve/completions_stream_nousage",
    ],
)
def test_a_stream_split_anywhere_is_the_same(name: str) -> None:
    expected, tokens, _ = STREAMS[name]
    raw, ends = b"".join(recorded.reads(name)), line_ends(name)
    for cut in range(1, len(raw)):
        record = recorded.decode(name, [raw[:cut], raw[cut:]])
        assert ([*recorded.outcome(record)], record.tokens.tolist()) == (expected, tokens)
        assert record.arrival_ns.tolist() == [1000 if end < cut else 2000 for end in ends]


@loop_over(("name", "expected", "messages", "shared", "first_ns"), TABLES["connections"])
def test_a_recorded_connection_gives_its_tokens_times_and_end(
    name: str, expected: list[Any], messages: int, shared: int, first_ns: int
) -> None:
    at_ns, data = recorded.timed(name)
    record = recorded.decode(name, data, at_ns)
    assert [*recorded.outcome(record)] == expected
    assert (len(record.tokens), record.shared_reads, record.arrival_ns[0]) == (messages, shared, first_ns)
    assert record.tokens.sum() == record.output_tokens
    assert (record.first_byte_ns, record.end_ns) == (at_ns[0], at_ns[-1])


@loop_over(("name", "kind", "said"), TABLES["refusals"])  # … for what follows of a long one
def test_a_refusal_says_what_the_server_said(name: str, kind: str, said: str) -> None:
    failure = recorded.decode(name, recorded.reads(name)).failure
    assert failure is not None
    begin, long, _ = said.partition(" …")
    assert (failure.kind, failure.detail[: len(begin) if long else None]) == (FailureKind(kind), begin)
    assert len(failure.detail) <= 310


@loop_over(("name", "expected", "begin"), TABLES["in one piece"])
def test_an_answer_in_one_piece_has_counts_and_an_end_but_no_arrivals(
    name: str, expected: list[Any], begin: str
) -> None:
    record = recorded.decode(name, recorded.reads(name), keep_text=True)
    assert [*recorded.outcome(record)] == expected
    assert (record.arrival_ns.tolist(), record.tokens.tolist(), record.end_ns) == ([], [], 2000)
    assert (record.usage, (record.text or "")[:3]) == (True, begin)
    streamed = recorded.decode(name.replace("nostream", "asked for a stream"), recorded.reads(name))
    assert streamed.failure == Failure(FailureKind.NOT_STREAMED, "one JSON body where a stream was requested")


def test_every_recorded_response_is_in_a_table() -> None:
    tests = Path(__file__).parents[1]
    places = (
        *tests.glob("features/**/test_*_api.py"),
        *tests.glob("features/*.json"),
        *tests.glob("cases/*.json"),
        Path(__file__),
    )
    source = "".join(path.read_text() for path in places)
    names = {f"{path.parent.name}/{path.stem}" for path in recorded.RESPONSES.glob("*/*.[th]*")}
    assert [name for name in sorted(names) if f'"{name}"' not in source] == []


@loop_over(
    ("name", "reads", "failure"),
    [
        ("llama-cpp-python/second", -1, Failure(FailureKind.STALL, "no token")),  # a stream that only pings
        ("llama-server/completions_ids_stream", 5, Failure(FailureKind.TRUNCATED, "the connection ended")),
    ],
)
def test_a_stream_that_was_given_up_keeps_its_failure(name: str, reads: int, failure: Failure) -> None:
    record = recorded.decode("completions", recorded.reads(name)[:reads], failure=failure)
    assert recorded.outcome(record)[:3] == (failure.kind, "", UNKNOWN)
    assert (record.output_tokens > 0) is (reads > 0)
    assert timings(record) == [UNKNOWN] * 5


def timings(record: Record) -> list[int]:
    """What the server says: tokens of the prompt computed and cached, and generated; ns of both phases."""
    counts = (record.server_prompt_tokens, record.server_cached_tokens, record.server_output_tokens)
    return [*counts, record.server_prefill_ns, record.server_decode_ns]


@loop_over(("name", "reported"), TABLES["timings"].items())
def test_an_answer_has_its_servers_counts_and_times(name: str, reported: list[int]) -> None:
    data = recorded.reads(name)
    for reads in (data, [b"".join(data)]):
        record = recorded.decode(name, reads)
        assert (record.failure, timings(record)) == (None, reported)
        assert record.cached_tokens == (reported[1] if record.input_tokens != UNKNOWN else UNKNOWN)


@loop_over(
    ("written", "reported"),
    [
        (b"null", [UNKNOWN] * 5),
        (b'"fast"', [UNKNOWN] * 5),
        (b'{"prompt_n":"many"}', [UNKNOWN] * 5),
        (b'{"prompt_n":-5}', [UNKNOWN] * 5),
        (b'{"prompt_n":7,"prompt_ms":2}', [7, UNKNOWN, UNKNOWN, 2_000_000, UNKNOWN]),  # without a cache_n
        (b'{"prompt_ms":-2,"predicted_ms":1e300,"draft_n":4}', [UNKNOWN] * 5),
    ],
)
def test_timings_that_cannot_be_are_not_known(written: bytes, reported: list[int]) -> None:
    body = b'{"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"timings":%b}' % written
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    record = Decoder(DIALECTS["completions"], streamed=False).decode(recorded.capture([head, body]))
    assert (record.failure, timings(record)) == (None, reported)
