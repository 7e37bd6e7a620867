"""Doubts of what was sent: the times of a trace, rows of files, random tokens, and what a cache knew."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders import made_data
from builders.loops import loop_over, read_tables
from builders.made_cases import (
    MS,
    START_NS,
    TPOT_MS,
    TTFT_MS,
    Rows,
    answered,
    changed,
    closed,
    observed,
    open_loop,
    rate,
    run,
    sampled,
)
from builders.provoked_data import BURSTS, EAGLE, EXPERTS, QUEUE, TRACE, of_file, of_trace
from loadgen.base.arrays import Float64
from loadgen.facts.run_facts import EarlierRun, SharedTexts
from loadgen.features.data.data_checks import has_fallen
from loadgen.features.data.sent_texts import compare_answers, count_shared_bytes
from loadgen.features.roofline import bound
from loadgen.server.engine_config import EngineConfig
from loadgen.verdict import verdict
from loadgen.verdict.evidence import RunEvidence

FALLEN = EarlierRun(requests=30, fell=30, before_ms=196.0, now_ms=23.0, ratio=0.12, tpot_ratio=1.0)


def traced(rows: Rows, data: Any) -> RunEvidence:
    return run(rows, TRACE, data=data, ceiling=None)


def found(case: RunEvidence) -> dict[str, str]:
    return {finding.rule.code: finding.evidence for finding in verdict.judge(case).findings}


def one_late() -> Rows:
    """One request in fifty leaves 20 ms late."""
    pairs = zip(open_loop(), open_loop(late_ms=20.0), strict=True)
    return [row if row.index % 50 else late for row, late in pairs]


def faster(rows_ms: float, then_ms: float, ttft_ms: float = TTFT_MS) -> Rows:
    """Requests that come at one gap, and from halfway through the time at a shorter one."""
    half_ms = 320 * rows_ms / 2
    at_ms = [i * rows_ms for i in range(160)] + [
        half_ms + i * then_ms for i in range(round(half_ms / then_ms))
    ]
    sent_ns = [START_NS + int(at * MS) for at in at_ms]
    rows = [answered(i, i, at, ttft_ms, TPOT_MS) for i, at in enumerate(sent_ns)]
    for row in rows:
        row.intended_ns = row.sent_ns
    return rows


@pytest.mark.parametrize(
    ("rows", "evidence"),
    [
        pytest.param(open_loop(), "", id="on time"),
        pytest.param(open_loop(late_ms=4.0),
            "sent 4.00 ms late on average, 4.00 ms at most, 4.00 ms by P99, scheduled 10 ms apart in the "
            "mean of the trace: the client was late", id="all of them late"),
        pytest.param(one_late(),
            "sent 0.44 ms late on average, 20.00 ms at most, 20.00 ms by P99, scheduled 10 ms apart in the "
            "mean of the trace: the client was late", id="one in fifty very late"),
    ],
)  # fmt: skip
def test_sends_of_a_trace_are_late_by_mean_or_p99(rows: Rows, evidence: str) -> None:
    assert found(traced(rows, made_data.trace(100.0))).get("sends-late", "") == evidence
    assert "sends-late" not in found(run(one_late(), rate(100)))


def test_a_trace_that_took_longer_than_planned_is_doubted() -> None:
    evidence = found(traced(open_loop(stretch=1.2), made_data.trace(100.0)))
    assert evidence["rate-not-reached"] == "83.3 requests/s sent, 100 planned"


@pytest.mark.parametrize(
    ("case", "overloaded"),
    [
        pytest.param(traced(faster(40, 4), made_data.trace()), False, id="as much as the trace's own rate"),
        pytest.param(run(faster(40, 4), rate(100)), True, id="the same at a rate"),
    ],
)
def test_a_trace_overloads_only_beyond_its_own_rise(case: RunEvidence, overloaded: bool) -> None:
    assert ("overload" in found(case)) is overloaded


@loop_over(
    ("case", "codes"),
    [
        pytest.param(of_trace(**BURSTS, spread=True), set(), id="a grid that is spread"),
        pytest.param(of_trace(grid_s=1.0, instants=310), set(), id="a grid on which few requests meet"),
        pytest.param(of_trace(instants=40), set(), id="bursts without a grid"),
        pytest.param(run(as_run=EAGLE, prompt_format="corpus"), set(), id="drafts of text"),
        pytest.param(of_file(made_data.data(), as_run=EAGLE), set(), id="drafts of a file's text"),
        pytest.param(run(as_run=EAGLE), {"random-acceptance"}, id="drafts that no one counted"),
        pytest.param(run(window=observed(draft_tokens=9)), {"random-acceptance"},
            id="drafts that only counters show"),
        pytest.param(run(checkpoint=EXPERTS, prompt_format="words"), set(), id="experts and words"),
        pytest.param(run(as_run=EngineConfig(moe_kernel="Triton")), {"random-routing"},
            id="experts by the log"),
        pytest.param(run(open_loop(), TRACE, data=made_data.trace(), checkpoint=EXPERTS), {"random-routing"},
            id="experts and a trace's ids"),
        pytest.param(of_file(made_data.data(), cached=60), set(), id="cached, and no one knows how much"),
        pytest.param(of_file(made_data.data(reusable=0.6), cached=60), set(), id="cached as expected"),
        pytest.param(of_file(made_data.data(reusable=0.6), cached=57), set(), id="cached nearly as expected"),
        pytest.param(of_file(made_data.data(reusable=0.3), cached=34), {"reuse-not-as-expected"},
            id="a bit warm"),
        pytest.param(of_file(made_data.data(reusable=0.3), cached=60), {"prefix-cache"}, id="warm"),
        pytest.param(of_file(made_data.data(reusable=0.0), cached=60), {"prefix-cache"}, id="nothing shared"),
        pytest.param(of_file(made_data.data(), cached=60, shared_texts=SharedTexts(0.1)), {"prefix-cache"},
            id="more than the file's prompts share"),
        pytest.param(of_file(made_data.data(), cached=60, shared_texts=SharedTexts(0.56)), set(),
            id="what the file's prompts share"),
        pytest.param(of_file(made_data.data(), cached=60, shared_texts=SharedTexts(0.1, template_tokens=46)),
            set(), id="a template of half the prompt"),
        pytest.param(of_file(made_data.data(), window=None, earlier=FALLEN), {"prefix-cache"},
                     id="TTFT fell"),
        pytest.param(of_file(made_data.data(), cached=0, earlier=FALLEN), set(),
                     id="TTFT fell, and the server found nothing"),
        pytest.param(of_file(made_data.data(repeated=40), repeated_prompts=40), {"identical-prompts"},
            id="oversampled"),
        pytest.param(of_file(made_data.data(skipped={"too long": 400})), set(), id="a filtered file"),
        pytest.param(of_file(made_data.data("trace", repeated=40), repeated_prompts=40), set(),
            id="a trace's repeats"),
        pytest.param(of_file(made_data.data("prefix_repetition"), as_run=EAGLE), {"random-acceptance"},
            id="drafts of texts of random tokens"),
    ],
)  # fmt: skip
def test_data_is_doubted_only_for_a_reason(case: RunEvidence, codes: set[str]) -> None:
    assert set(found(case)) == codes


def test_rows_sent_again_are_named_as_such() -> None:
    case = of_file(made_data.data(sent=280, repeated=40), repeated_prompts=40)
    assert found(case)["identical-prompts"] == (
        "40 of 320 requests send one of 280 rows again: a prefix cache need not compute them"
    )


# What cannot be sent is counted over the whole file, of which a run sends a part.
@loop_over(("changes", "doubt"), read_tables("lengths_cut")["cut"])
@loop_over("timed", [True, False])
def test_much_that_is_cut_is_suspect_and_a_little_a_note(
    changes: dict[str, Any], doubt: list[str] | None, timed: bool
) -> None:
    data = replace(made_data.trace(), **changes, **({} if timed else {"schedule": None}))
    case = traced(open_loop(), data)
    held = [rule for rule in verdict.DOUBTS if rule.code.endswith("lengths-cut") and rule.find(case)]
    assert [[rule.code, rule.severity.word, rule.find(case)] for rule in held] == ([doubt] if doubt else [])


def test_a_prefix_cache_that_is_off_is_the_reason() -> None:
    case = of_file(made_data.data(reusable=0.3), cached=0, as_run=EngineConfig(prefix_caching="off"))
    evidence = found(case)["reuse-not-as-expected"]
    assert evidence.endswith("0 % of the prompt tokens cached (the server's counters), 30 % expected: its "
                             "prefix cache is off")  # fmt: skip


SPEED = {"percentile_metrics": "prefill_speed"}


@loop_over(
    ("case", "evidence"),
    [
        pytest.param(run(window=observed(queue=QUEUE)), None, id="not requested"),
        pytest.param(run(None, SPEED), None, id="no queue"),
        pytest.param(run(None, {**SPEED, "stream": False}), None, id="not streamed"),
        pytest.param(run(changed(closed(), server_queue_ns=5 * MS), SPEED),
            "5 of 50 ms mean TTFT in the queue: prefill_speed is not the speed of prefill", id="by answers"),
        pytest.param(run(changed(closed(), server_queue_ns=MS), SPEED), None, id="hardly any"),
        pytest.param(run(None, SPEED, window=sampled(*[(8, 1)] * 6)),
            "requests waited in 6 of 6 samples: prefill_speed is not the speed of prefill", id="by gauges"),
    ],
)  # fmt: skip
def test_the_speed_of_prefill_is_doubted_where_requests_queued(
    case: RunEvidence, evidence: str | None
) -> None:
    assert found(case).get("prefill-while-queued") == evidence


@pytest.mark.parametrize(("counted", "doubted"), [(100, False), (101, False), (103, True), (96, True)])
def test_words_are_as_long_as_asked_to_a_hundredth(counted: int, doubted: bool) -> None:
    case = run(changed(closed(), input_tokens=counted), prompt_format="words", window=None)
    assert ("prompt-lengths" in found(case)) is doubted


@pytest.mark.parametrize(
    ("counted", "plan", "cut"),
    [
        (60, {}, "320 count exactly 60, as of a server that cuts prompts to its context (Ollama: num_ctx)"),
        (95, {}, ""),
        (130, {}, ""),
        (60, {"planned_input": 60}, None),
    ],
    ids=["far below the plan", "a little below", "above", "as planned"],
)
def test_prompts_that_the_server_cut_are_named(
    counted: int, plan: Mapping[str, int], cut: str | None
) -> None:
    case = run(changed(closed(), input_tokens=counted, **plan), prompt_format="words", window=None)
    evidence = found(case).get("prompt-lengths")
    assert (evidence is None) == (cut is None)
    assert (evidence or "").partition("; ")[2] == (cut or "")


def test_prompts_of_many_counts_were_not_cut() -> None:
    rows = changed(changed(closed(), input_tokens=60), 2, input_tokens=61)
    assert "; " not in found(run(rows, prompt_format="words", window=None))["prompt-lengths"]


def test_ttft_is_no_prefill_where_prompts_may_share() -> None:
    def shown(case: RunEvidence) -> bool:
        return "mean_ttft_ms" in bound.list_bound_figures(case.facts, case.metrics)[0]

    cases = [run(), of_file(made_data.data()), of_file(made_data.data(reusable=0.3))]
    assert [shown(case) for case in [*cases, of_file(made_data.data(reusable=0.0))]] == [
        True, False, False, True
    ]  # fmt: skip


@loop_over(
    ("texts", "shared"),
    [
        ([], 0), ([b"abc"], 0), ([b"abc", b"xyz"], 0), ([b"abc", b"abd"], 2), ([b"abc", b"abc"], 3),
        ([b"abcd", b"ab", b"abcx"], 2 + 3), ([b"ax", b"ay", b"bx", b"by"], 1 + 1), ([b"", b"a", b""], 0),
    ],
)  # fmt: skip
def test_the_shared_bytes_are_those_that_an_earlier_text_begins_with(texts: list[bytes], shared: int) -> None:
    for order in permutations(texts):
        seen: set[bytes] = set()
        found = 0
        for text in order:
            beginnings = [text[:end] for end in range(1, len(text) + 1)]
            found += sum(beginning in seen for beginning in beginnings)
            seen |= {*beginnings}
        assert count_shared_bytes(list(order)) == found == shared


def draw_answers(rng: np.random.Generator, lengths: Float64, wave: int, **of: Any) -> Float64:
    """TTFT and TPOT (ns) of prompts of such lengths: a queue in each wave, and one speed of the run."""
    speed = rng.lognormal(0, of.get("run_sd", 0.1))
    prefill = 5 + lengths * 0.1 * (1 - of.get("cached", 0.0))
    position = np.arange(len(lengths)) % wave
    waits = np.array([prefill[at - place : at].sum() for at, place in enumerate(position)])
    noise = rng.lognormal(0, of.get("sd", 0.3), len(lengths))
    ttft = speed * noise * (prefill + waits) * rng.lognormal(0, of.get("ttft_sd", 0.0))
    ttft[:wave] *= of.get("warm_up", 1.0)
    tpot = speed * rng.lognormal(0, 0.05, len(lengths)) * 10
    return np.stack([ttft, tpot], axis=1) * 1e6


def find_falls(runs: int, requests: int, wave: int, first: dict[str, Any], later: dict[str, Any]) -> float:
    """The share of later runs that are taken for cached ones."""
    found = 0
    for seed in range(runs):
        rng = np.random.default_rng([seed, requests, wave])
        lengths = rng.lognormal(np.log(500), 0.7, requests)
        before, now = (draw_answers(rng, lengths, wave, **of) for of in (first, later))
        found += has_fallen(compare_answers(before, now, wave))
    return found / runs


# Requests, at once: one after another, in waves, all in one.
LOADS = [(16, 1), (24, 2), (64, 8), (200, 16), (40, 40)]
NOISES: list[dict[str, float]] = [
    {"sd": 0.1, "run_sd": 0.05},
    {"sd": 0.3, "run_sd": 0.1, "ttft_sd": 0.1},
    {"sd": 0.5, "run_sd": 0.15, "ttft_sd": 0.2},
]


def check_calibration(runs: int, most_false: float, least_power: float) -> None:
    """Repeats of the same work are hardly ever taken for cached ones, a warm-up or not; cached ones are."""
    for (requests, wave), noise in product(LOADS, NOISES):
        warmed = 4.0 if requests > wave + 10 else 1.0  # a first run of one wave that warmed up is as a cache
        false = find_falls(runs, requests, wave, {**noise, "warm_up": warmed}, noise)
        power = find_falls(runs, requests, wave, noise, {**noise, "cached": 0.95})
        assert false <= most_false, (requests, wave, noise, false)
        assert power >= least_power, (requests, wave, noise, power)


def test_a_fall_of_ttft_tells_cached_repeats_from_others() -> None:
    check_calibration(20, 0.05, 0.85)


@pytest.mark.long
def test_the_error_rates_of_the_fall_of_ttft() -> None:
    check_calibration(1000, 0.02, 0.95)


@loop_over(
    ("fell", "ratio", "tpot_ratio", "is_fall"),
    [
        (24, 0.2, 1.0, True),
        (24, 0.49, 1.0, True),
        (24, 0.51, 1.0, False),
        (24, 0.5, 0.5, False),  # all of it is faster
        (24, 0.2, 0.5, True),
        (24, 0.49, 2.0, True),
        (12, 0.2, 1.0, False),  # as many rose
    ],
)
def test_a_fall_is_large_of_ttft_alone_and_of_nearly_all(
    fell: int, ratio: float, tpot_ratio: float, is_fall: bool
) -> None:
    assert has_fallen(EarlierRun(24, fell, 100.0, 100 * ratio, ratio, tpot_ratio)) is is_fall
