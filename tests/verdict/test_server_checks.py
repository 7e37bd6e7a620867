"""What answers report of themselves next to what the client has: when the two are at odds."""

from __future__ import annotations

from typing import Any

from builders.loops import loop_over
from builders.made_cases import (
    INPUT,
    OUTPUT,
    REQUESTS,
    TPOT_MS,
    TTFT_MS,
    changed,
    closed,
    open_loop,
    rate,
    run,
    sampled,
)
from builders.provoked_answers import LLAMACPP, MS, slots, timed
from loadgen.base.structs import replace
from loadgen.verdict.server_checks import few_slots, requests_queued, server_limit, timings_differ

DECODE_MS = TPOT_MS * (OUTPUT - 1)


@loop_over(
    ("other", "evidence"),
    [
        ({}, None),
        ({"server_prompt_tokens": INPUT - 3, "server_cached_tokens": 3, "cached_tokens": 3}, None),
        ({"server_decode_ns": int(DECODE_MS * MS * 1.5)}, None),  # the first text was held back
        ({"server_decode_ns": int(DECODE_MS * MS * 0.985)}, None),
        ({"server_prefill_ns": int((TTFT_MS + 0.5) * MS)}, None),
        ({"server_prompt_tokens": INPUT + 1}, "prompt tokens differ in 320 of 320 responses: 32000 by usage"),
        ({"cached_tokens": 7}, "cached tokens differ in 320 of 320 responses: 2240 by usage, 0 by timings"),
        (
            {"server_prefill_ns": int((TTFT_MS + 3) * MS)},
            "320 of 320 first tokens came before the server had",
        ),
        (
            {"server_decode_ns": int(DECODE_MS * MS * 0.9)},
            "from the first to the last token 100 ms in the mean",
        ),
        ({"server_prompt_tokens": -1, "server_cached_tokens": -1, "server_output_tokens": -1}, None),
    ],
)
def test_timings_that_are_at_odds_are_named(other: dict[str, Any], evidence: str | None) -> None:
    found = timings_differ.find(run(timed(**other)))
    assert found is None if evidence is None else found is not None and found.startswith(evidence), found


def test_a_few_answers_at_odds_are_no_doubt() -> None:
    rows = changed(timed(), REQUESTS, server_output_tokens=1)
    assert timings_differ.find(run(rows)) is None


def test_slots_are_judged_by_the_load_that_is_held() -> None:
    assert few_slots.find(slots(8)) is None
    assert few_slots.find(slots(0)) is None  # it reports none
    assert few_slots.find(slots(4, closed())) == (
        "the server has 4 slots for 8 requests at once: TTFT includes their queue"
    )
    server = replace(LLAMACPP, slots=4)
    assert few_slots.find(run(open_loop(), rate(100.0), server=server)) is None


def test_the_same_queue_is_reported_once() -> None:
    server = replace(LLAMACPP, slots=4)
    case = run(timed(), server=server, window=sampled(*[(4, 4)] * 6))
    assert few_slots.find(case) is not None
    assert (server_limit.find(case), requests_queued.find(case)) == (None, None)
