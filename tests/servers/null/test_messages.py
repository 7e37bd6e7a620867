"""Whatever shape the null server gives an answer, the client sees what was sent, when it was complete."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

import pytest

from builders.loops import loop_over
from builders.recorded import capture
from loadgen.records.decode import Decoder
from loadgen.records.record import Record
from loadgen.wire.openai import DIALECTS
from loadgen_servers.null.messages import DIALECTS as MESSAGES
from loadgen_servers.null.messages import SHAPES, Shape, Write

SECOND_NS = 1_000_000_000
TICK_NS = 20_000_000


def shapes_of(words: str) -> list[Shape]:
    """The shapes of a command line, in the order in which the server applies them."""
    given = dict(zip(words.split()[::2], words.split()[1::2], strict=True))
    return [build(given[flag]) for flag, (build, _, _) in SHAPES.items() if flag in given]


def answer(api: str, tokens: int, words: str) -> list[Write]:
    return MESSAGES[DIALECTS[api].path].answer(7, tokens, shapes_of(words))


def played(api: str, writes: list[Write]) -> tuple[Record, list[int], list[bytes]]:
    """The record of a response whose writes are a tick apart, what the server logs of it, and its bytes."""
    at_ns = [SECOND_NS + i * TICK_NS for i in range(len(writes))]
    reads = [write.data % ((now_ns,) * write.messages) for write, now_ns in zip(writes, at_ns, strict=True)]
    logged = [now_ns for write, now_ns in zip(writes, at_ns, strict=True) for _ in range(write.messages)]
    return Decoder(DIALECTS[api], streamed=True).decode(capture(reads, at_ns)), logged, reads


# What is asked, tokens of each message as the client finds them, writes, messages that share a write.
CASES = [
    ("", [1] * 12, 12, 0),
    ("--tokens-per-message 4", [4] * 3, 3, 0),
    ("--tokens-per-message 5", [4] * 3, 3, 0),  # 5, 5, 2: without running usage nobody can know
    ("--tokens-per-message 99", [12], 1, 0),
    ("--messages-per-write 5", [1] * 12, 3, 9),
    ("--messages-per-write 99", [1] * 12, 1, 11),
    ("--pieces 1", [1] * 12, 12, 0),
    ("--pieces 3", [1] * 12, 36, 0),
    ("--extra role", [1] * 12, 24, 0),
    ("--extra usage", [1] * 12, 24, 0),
    ("--extra ping", [1] * 12, 24, 0),
    ("--extra empty", [1] * 12, 24, 0),
    ("--stall-ms 50", [1] * 12, 12, 0),
    ("--tokens-per-message 4 --pieces 2", [4] * 3, 6, 0),
    ("--messages-per-write 3 --pieces 2", [1] * 12, 8, 8),
    ("--extra ping --messages-per-write 4", [1] * 12, 6, 6),
]


@loop_over("api", ["completions", "chat"])
@loop_over(("words", "tokens", "writes", "shared"), CASES)
def test_the_client_sees_each_message_when_it_was_complete(
    api: str, words: str, tokens: list[int], writes: int, shared: int
) -> None:
    sent = answer(api, 12, words)
    record, logged, reads = played(api, sent)
    assert record.failure is None
    assert (record.input_tokens, record.output_tokens, record.finish_reason) == (7, 12, "length")
    assert record.tokens.tolist() == tokens
    assert record.arrival_ns.tolist() == logged
    assert (len(sent), record.shared_reads) == (writes, shared)
    said = re.findall(rb'"(?:text|content)":"[^"]* (\d+)"', b"".join(reads))
    assert [int(digits) for digits in said] == logged


@loop_over("api", ["completions", "chat"])
@loop_over("words", [words for words, *_ in CASES])
def test_an_answer_of_one_token_is_whole_in_every_shape(api: str, words: str) -> None:
    record, logged, _ = played(api, answer(api, 1, words))
    assert (record.failure, record.output_tokens, record.arrival_ns.tolist()) == (None, 1, logged)


def test_pieces_of_a_message_can_be_as_many_as_its_bytes() -> None:
    sent = answer("completions", 2, "--pieces 10000")
    assert all(write.data for write in sent)
    record, logged, _ = played("completions", sent)
    assert record.arrival_ns.tolist() == logged


def test_a_message_is_as_long_whenever_it_is_sent() -> None:
    one = MESSAGES["/v1/completions"].single
    assert len(one.data % 1) == len(one.data % (2**63 - 1))


@loop_over(("tokens", "paused"), [(1, []), (2, [0]), (3, [1]), (12, [5])])
def test_a_stall_is_one_pause_in_the_middle(tokens: int, paused: list[int]) -> None:
    writes = answer("completions", tokens, "--stall-ms 1.5")
    assert {i: write.pause_ns for i, write in enumerate(writes) if write.pause_ns} == dict.fromkeys(
        paused, 1_500_000
    )


@loop_over(("flag", "value"), [
    ("--tokens-per-message", "0"), ("--messages-per-write", "-1"), ("--pieces", "x"), ("--extra", "pong"),
    ("--stall-ms", "long"), ("--stall-ms", "nan"), ("--stall-ms", "-1"),
])  # fmt: skip
def test_a_shape_that_is_none_is_refused_in_words(flag: str, value: str) -> None:
    with pytest.raises(ArgumentTypeError, match=re.escape(repr(value))):
        SHAPES[flag][0](value)
