"""Sendable: what a server cannot take is found before anything is sent, and named by row and file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from loadgen.errors import LoadgenError, MeasureError, UsageError
from loadgen.protocol.engines import UNKNOWN
from loadgen.session import sendable
from loadgen.workload import plan, profile
from loadgen.workload.plan import Plan
from loadgen.workload.plan_inputs import ModelTarget, Seed
from loadgen.workload.requests import PromptRequests


class Rows(PromptRequests):
    """Requests that come from rows of a file."""

    format = "text"

    def __init__(self, input_lens: list[int], output_lens: list[int]) -> None:
        self.input_lens, self.output_lens = np.array(input_lens), np.array(output_lens)

    def where(self, i: int) -> str:
        return f"f.jsonl row {len(self.input_lens) - i}"  # shuffled

    def prompt(self, i: int) -> str:
        return f"prompt {i}"


def made(kind: str, input_lens: list[int], output_lens: list[int], **keys: Any) -> Plan:
    built = plan.make(profile.build({"num_prompts": 2, **keys}), ModelTarget(UNKNOWN, "m"), Seed(1))
    facts = built.facts.model_copy(update={"kind": kind, "file": "f.jsonl"})
    return replace(built, requests=Rows(input_lens, output_lens), count=len(input_lens), facts=facts)


@pytest.mark.parametrize(
    ("kind", "lens", "limit", "message"),
    [
        (
            "file",
            ([5, 90, -1], [10, 20, 10]),
            100,
            "1 request needs more tokens than the 100 that m accepts, the longest 110 (f.jsonl row 2): "
            "lower --output-len, leave those rows out of the file, or start the server with a larger "
            "--max-model-len",
        ),
        (
            "trace",
            ([200, 90, 10], [10, 20, -1]),
            100,
            "2 requests need more tokens than the 100 that m accepts, the longest 210 (f.jsonl row 3): "
            "pass --trace-max-input-len N, with --trace-too-long clip to cut them, or start the server with "
            "a larger --max-model-len",
        ),
        ("random", ([90, 10], [20, 20]), 100, "the longest request needs 110 tokens but m accepts 100: lower "
            "--random-input-len or --random-output-len"),
    ],
)  # fmt: skip
def test_a_request_longer_than_the_model_takes_is_named(
    kind: str, lens: tuple[list[int], list[int]], limit: int, message: str
) -> None:
    with pytest.raises(MeasureError) as raised:
        sendable.check_lengths(made(kind, *lens), limit)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("lens", "limit"), [(([90], [10]), 100), (([900], [10]), 0), (([-1], [-1]), 1), (([-1], [100]), 100)]
)
def test_what_fits_or_is_not_known_is_sent(lens: tuple[list[int], list[int]], limit: int) -> None:
    sendable.check_lengths(made("file", *lens), limit)


def test_answers_shorter_than_the_least_are_named() -> None:
    with pytest.raises(UsageError) as raised:
        sendable.check_lengths(made("file", [5, 5, 5], [-1, 8, 3], min_tokens=5), 0)
    assert isinstance(raised.value, LoadgenError)
    assert str(raised.value) == (
        "--min-tokens 5 is more than the 3 tokens that a request asks for (f.jsonl row 1): lower it, or have "
        "every answer as long by --output-len"
    )
    sendable.check_lengths(made("file", [5], [5], min_tokens=5), 0)
