"""What is like the run that provokes a doubt: found in words of its own, or no reason for it."""

from __future__ import annotations

import pytest

from builders.loops import loop_over_named
from builders.made_cases import (
    MS,
    OUTPUT,
    changed,
    client,
    closed,
    contradicted,
    failed,
    in_turn,
    measured,
    run,
    set_back,
    uncounted,
)
from loadgen.verdict import verdict
from loadgen.verdict.evidence import RunEvidence
from loadgen.verdict.verdict import DOUBTS

BY_DOUBT = {doubt.code: doubt for doubt in DOUBTS}


def names(case: RunEvidence) -> set[str]:
    return {found.rule.code for found in verdict.judge(case).findings}


@loop_over_named(
    ("case", "found", "said"),
    {
        "without usage, by messages": (
            run(uncounted(closed(), 2), {"output_len": OUTPUT}, window=None),
            "tokens-not-counted",
            "320 of 320 responses have no usage: their messages were counted, so TPOT and tok/s are of "
            "messages, not of tokens",
        ),
        "messages are no length": (
            run(uncounted(closed(), 2), {"output_len": OUTPUT}, window=None),
            "answer-lengths",
            "",
        ),
        "without usage, in one piece": (
            run(uncounted(closed(), 2), {"stream": False}, window=None),
            "tokens-not-counted",
            "320 of 320 responses have no usage: their tokens are not known and count 0",
        ),
        "without usage, as asked": (run(uncounted(closed(), OUTPUT), window=None), "tokens-not-counted", ""),
        "one prompt for all": (
            run(None, {"extra_body": {"prompt": [7, 7, 7]}}),
            "identical-prompts",
            "--extra-body replaces the prompt: all 320 are the same, so a prefix cache serves them",
        ),
        "no prompt of this API": (run(None, {"extra_body": {"text": "x"}}), "identical-prompts", ""),
        "a prompt of SGLang's": (
            run(None, {"extra_body": {"text": "x"}, "backend": "sglang"}),
            "identical-prompts",
            "--extra-body replaces the prompt: all 320 are the same, so a prefix cache serves them",
        ),
        "many timestamps that cannot be": (
            contradicted(42),
            "clock-unusable",
            "42 of 4160 reads (1.01 %) had an impossible kernel timestamp and use the client's own "
            "(or segments came out of order: not known of this run)",
        ),
        "many in a run whose kernel counted segments out of order": (
            run(changed(closed(), 320, out_of_order=0, impossible_stamps=42)),
            "clock-unusable",
            "42 of 4160 reads (1.01 %) had an impossible kernel timestamp and use the client's own",
        ),
        "tokens before they were asked for": (
            run(set_back(64, 60.0)),
            "clock-unusable",
            "in 5 of 320 answers a token precedes its request or the token before it",
        ),
        "one such answer": (
            run(set_back(320, 60.0)),
            "impossible-timestamps",
            "in 1 of 320 answers a token precedes its request or the token before it",
        ),
        "early, but after the request": (run(set_back(1, 40.0)), "clock-unusable", ""),
        "a step that makes the clock unusable": (
            run(client=client(clock_step_ms=1500.0)),
            "clock-stepped",
            "",
        ),
        "a pause of 0.9 s": (run(client=client(stopped_s=0.9)), "client-stopped", ""),
        "a rule's own end": (run(failed(5), stop_rule="--max-failures 60: 64 failed"), "cut-short", ""),
        "a run that was killed": (
            run(recovered="read from the journal of a run that was killed"),
            "cut-short",
            "read from the journal of a run that was killed: 320 of 320 requests succeeded",
        ),
        "one that was killed by who gave it up": (
            run(recovered="read from the journal", interrupted=True),
            "interrupted",
            "read from the journal: 320 of 320 requests succeeded",
        ),
        "a first wave after a warm-up": (
            run(in_turn(cold_ms=1000.0), warmups=8),
            "first-wave",
            "median TTFT was 1089 ms in the first wave of 8, 59.8 ms later: 11.0 × the later P90, after "
            "allowing for the burst; 8 warm-up requests came before",
        ),
        "resends of a run that did not count them": (run(changed(closed(), 1, resends=-1)), "resent", ""),
    },
)
def test_a_sibling_of_a_doubt_is_told_in_its_own_words(case: RunEvidence, found: str, said: str) -> None:
    assert (BY_DOUBT[found].find(case) or "") == said
    assert (found in names(case)) == bool(said)


def test_tokens_out_of_order_are_found_within_an_answer_only() -> None:
    rows = closed()
    rows[3].arrival_ns[5] -= 30 * MS
    found = BY_DOUBT["impossible-timestamps"].find(run(rows))
    assert found is not None
    assert found.startswith("in 1 of 320 answers")
    assert BY_DOUBT["impossible-timestamps"].find(run(closed()[::-1])) is None


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            run(calibration=measured(300, capacity_bounded=False)), id="the highest load tried held"
        ),
        pytest.param(run(calibration=measured(1, transport="httpx")), id="of the other transport"),
        pytest.param(run(calibration=measured(300), client=client(workers=4)), id="of one worker, over four"),
        pytest.param(
            run(calibration=measured(1300, workers=4), client=client(workers=4)), id="of four workers"
        ),
    ],
)
def test_a_self_test_that_leaves_room_is_no_doubt(case: RunEvidence) -> None:
    assert names(case) == set()


def test_what_workers_hold_together_is_named_with_what_one_held() -> None:
    (found,) = verdict.judge(run(calibration=measured(150), client=client(workers=2))).findings
    assert found.rule.code == "beyond-capacity"
    assert found.evidence.endswith("up to 300 (2 times what one worker held)")
