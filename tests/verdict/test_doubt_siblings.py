"""What is like the run that provokes a doubt: found in words of its own, or no reason for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders.loops import loop_over, loop_over_named
from builders.made_cases import (
    INPUT,
    MS,
    OUTPUT,
    REQUESTS,
    SLOTS,
    START_NS,
    Rows,
    answered,
    changed,
    client,
    closed,
    contradicted,
    failed,
    in_turn,
    measured,
    observed,
    open_loop,
    rate,
    run,
    sampled,
    set_back,
    uncounted,
)
from loadgen.features.roofline import bound
from loadgen.records.record import UNKNOWN
from loadgen.report import report
from loadgen.report.run_directory import Result
from loadgen.server.server_counters import RoleWindow
from loadgen.transport.failure import FailureKind
from loadgen.verdict import reconcile, verdict
from loadgen.verdict.evidence import RunEvidence
from loadgen.verdict.server_checks import first_wave
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


@loop_over_named(
    "case",
    {
        "the highest load tried held": run(calibration=measured(300, capacity_bounded=False)),
        "of the other transport": run(calibration=measured(1, transport="httpx")),
        "of one worker, over four": run(calibration=measured(300), client=client(workers=4)),
        "of four workers": run(calibration=measured(1300, workers=4), client=client(workers=4)),
    },
)
def test_a_self_test_that_leaves_room_is_no_doubt(case: RunEvidence) -> None:
    assert names(case) == set()


def test_what_workers_hold_together_is_named_with_what_one_held() -> None:
    (found,) = verdict.judge(run(calibration=measured(150), client=client(workers=2))).findings
    assert found.rule.code == "beyond-capacity"
    assert found.evidence.endswith("up to 300 (2 times what one worker held)")


# Of a load that changes, or of which a part is cancelled.


BURSTS: dict[str, Any] = {"bursts": "20 every 2s", "max_concurrency": None}


def in_bursts(requests: int, longer_ms: float = 0.0) -> Rows:
    """Bursts of 20 every 2 s; each request of a burst takes so much longer than one of the burst before."""
    rows = [answered(i, i, START_NS + i // 20 * 2000 * MS, 5.0, 1.0) for i in range(requests)]
    return [replace(row, end_ns=row.end_ns + int(row.index // 20 * longer_ms * MS)) for row in rows]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        pytest.param(in_bursts(110), False, id="half a burst at the end"),
        pytest.param(in_bursts(320), False, id="whole bursts"),
        pytest.param(in_bursts(320, 1500.0), True, id="bursts that are not over when the next one comes"),
        pytest.param(in_bursts(30, 9000.0), False, id="a single period"),
    ],
)
def test_bursts_are_judged_over_a_period_and_not_at_one_instant(rows: Rows, found: bool) -> None:
    case = run(rows, BURSTS, requests=len(rows), window=None)
    assert (BY_DOUBT["overload"].find(case) is not None) == found


@pytest.mark.parametrize(
    ("aborted", "running", "foreign"),
    [
        (0, 40, set()),  # 8 in flight, and the 32 that were cancelled may all go on
        (0, 41, {"foreign-requests"}),
        (30, 10, set()),
        (30, 11, {"foreign-requests"}),
    ],
)
def test_cancelled_requests_that_go_on_are_no_other_clients(
    aborted: int, running: float, foreign: set[str]
) -> None:
    window = sampled(*[(running, 0.0)] * 6)
    counted = {"length": 320 - aborted} | ({"abort": aborted} if aborted else {})
    case = run(failed(10, FailureKind.USER_CANCELLED), window=window.model_copy(update={"requests": counted}))
    assert names(case) - {"no-abort"} == foreign


@loop_over(("targets", "roles"), [(("http://a", "http://b"), 0), ((), 2)])
def test_samples_of_several_servers_are_of_no_one_instant(targets: tuple[str, ...], roles: int) -> None:
    window = sampled(*[(9, 0.0)] * 6)
    of = RoleWindow(role="worker", name="a", url="http://a", window=window)
    several = run(window=window, targets=targets, role_windows=(of,) * roles)
    found = BY_DOUBT["foreign-requests"].find
    assert found(run(window=window)) is not None
    assert found(several) is None


@pytest.mark.parametrize(
    ("workload", "late"),
    [(rate(100), False), ({"schedule": "rate 100 for 4s", "max_concurrency": None}, True)],
)
def test_a_late_tail_is_judged_where_the_rate_changes(workload: dict[str, Any], late: bool) -> None:
    rows = [replace(row, sent_ns=row.sent_ns + 12 * MS * (row.index % 50 == 0)) for row in open_loop()]
    assert ("sends-late" in names(run(rows, workload, window=None))) is late
    assert "a schedule" in BY_DOUBT["sends-late"].condition


# Of requests whose lengths only the server knows.


BODIES: dict[str, Any] = {"planned_input": UNKNOWN, "planned_output": UNKNOWN}


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_no_length_is_held_against_a_plan_that_has_none(ignore_eos: bool) -> None:
    other: dict[str, Any] = {"input_tokens": 4 * INPUT, "output_tokens": 5, "finish_reason": "stop"}
    lengths = {"answer-lengths", "early-ends", "prompt-lengths"}
    workload = {"ignore_eos": ignore_eos}
    planned = names(run(changed(closed(), **other), workload, window=None))
    unplanned = names(run(changed(closed(), **BODIES, **other), workload, window=None))
    assert len(planned & lengths) == 2
    assert not unplanned & lengths


def test_some_without_a_plan_leave_the_others_compared() -> None:
    rows = changed(changed(closed(), input_tokens=INPUT + 20), 2, **BODIES, input_tokens=9 * INPUT)
    assert "prompt-lengths" in names(run(rows, window=None))


def test_without_usage_their_prompt_tokens_are_unknown_and_not_planned() -> None:
    case = run(changed(closed(), 4, **BODIES, input_tokens=UNKNOWN), window=observed())
    metrics = case.metrics
    unknown = REQUESTS // 4
    assert (metrics.unknown_inputs, metrics.planned_inputs) == (unknown, 0)
    assert metrics.total_input_tokens == (REQUESTS - unknown) * INPUT
    assert bound.list_bound_figures(case.facts, metrics)[1].input_len == INPUT
    assert metrics.prefill_speed.n == REQUESTS - unknown
    assert [mismatch.figure for mismatch in reconcile.find_mismatches(observed(), metrics)] == []
    text = " ".join(report.render_report(Result(case.facts, case.records)).split())
    assert f"input tokens: unknown for {unknown} requests whose usage has none" in text
    assert "as planned for" not in text


@pytest.mark.parametrize(("input_tokens", "shown"), [(UNKNOWN, False), (INPUT, True)])
@pytest.mark.parametrize("layout", ["vllm-0.32", "sglang"])
def test_unknown_prompt_tokens_are_no_zero_in_the_block(input_tokens: int, shown: bool, layout: str) -> None:
    case = run(changed(closed(), 4, **BODIES, input_tokens=input_tokens), window=observed())
    text = report.render_report(Result(case.facts, case.records), layout=layout)
    assert ("Total input tokens:" in text, "Total token throughput" in text) == (shown, shown)
    rows = {line.split(":")[0] for line in text.splitlines() if line.endswith(" ")}  # of the block
    assert any(row.startswith(("Total input", "Input token", "Total token")) for row in rows) == shown
    assert "Output token throughput" in text


_RUNS = 20  # docs/validity.md has the counts of 200


def is_doubted(waves: int, cold: float, spread: float, seed: int) -> bool:
    """Whether a run is doubted whose waves vary, log-normal, with first TTFTs `cold` times as long."""
    rng, requests = np.random.default_rng(seed), waves * SLOTS
    ttft_ms = (
        20 * np.exp(spread * rng.normal(size=waves)).repeat(SLOTS) * np.exp(0.1 * rng.normal(size=requests))
    )
    ttft_ms[:SLOTS] *= cold
    tpot_ms = 5 * np.exp(spread / 1.5 * rng.normal(size=waves)).repeat(SLOTS)
    rows = closed(lambda i: float(ttft_ms[i]), lambda i: float(tpot_ms[i]), requests=requests)
    return first_wave.find(run(rows, {"num_prompts": requests}, requests=requests)) is not None


@pytest.mark.parametrize("waves", [4, 8])
@pytest.mark.parametrize("spread", [0.1, 0.3])
def test_a_warm_server_is_not_doubted_and_a_cold_one_is(waves: int, spread: float) -> None:
    assert sum(is_doubted(waves, 1.0, spread, seed) for seed in range(_RUNS)) == 0
    assert sum(is_doubted(waves, 20.0, spread, seed) for seed in range(_RUNS)) >= 0.8 * _RUNS
