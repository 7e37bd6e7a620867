"""One run's figures contradict one another, or do not; a rounding never does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from builders.loops import loop_over
from builders.published_runs import LOAD, loaded, run, thor
from loadgen.report.load_identity import Load
from loadgen.study.audit.findings import audit_runs
from loadgen.study.consistency.subject import AuditedRun, Interval
from loadgen.study.importers.pasted.numbers import compute_each_ms, scale_figure
from loadgen.study.run_summary import Reported

ONE = loaded(requests=1, max_concurrency=1)
_ALONE: dict[str, Any] = {
    "completed": 1,
    "total_input_tokens": 512,
    "total_output_tokens": 64,
    "duration": 0.74,
    "request_throughput": 1.35,
    "output_throughput": 86.49,
    "total_token_throughput": 778.38,
}
_EQUAL: dict[str, Any] = {
    f"{rank}_{key}_ms": 100.25 for rank in ("mean", "median", "p99") for key in ("ttft",)
}
_EQUAL |= {f"{rank}_tpot_ms": 10.02 for rank in ("mean", "median", "p99")}


def found(one: Reported) -> dict[str, str]:
    (audited,) = audit_runs([one], None, None)
    return {each.rule.code: each.evidence for each in audited.findings}


def test_a_healthy_run_has_but_the_note_that_its_p99_is_thin() -> None:
    assert found(run()) == {
        "thin-percentiles": "P99 of 40 requests is little more than the slowest one: P99 needs 100"
    }


def test_no_published_block_contradicts_itself() -> None:
    arithmetic = {"figures-disagree", "impossible-order", "beyond-schedule", "nothing-measured", "unstreamed"}
    arithmetic |= {"concurrency-not-held", "failures", "many-failures", "bursts", "gaps-are-not-tokens"}
    assert [(one.name, arithmetic & set(found(one))) for one in thor()] == [
        (one.name, set()) for one in thor()
    ]


@loop_over(
    ("value", "count", "low", "high"),
    [
        (8.88, False, 8.87, 8.89),
        (23.0, False, 22.9, 23.1),  # 23.00 without its zeros
        (0.06, False, 0.05, 0.07),
        (111, False, 110.0, 112.0),
        (204169, True, 204169.0, 204169.0),
        (1.0336720489999607, False, 1.0336720489999607, 1.0336720489999607),
        (0.0, False, 0.0, 0.1),
        (scale_figure(4.1, 1e3), False, 4000.0, 4200.0),  # 4.1 s, in ms
        (scale_figure(8200, 1e-3), False, 8.199, 8.201),
        (compute_each_ms(8), False, 125 - 1000 / 64, 125 + 1000 / 64),  # 8 tok/s, as ms per token
        (compute_each_ms(scale_figure(0.5, 1e3)), False, 1.6, 2.4),  # 0.5k tok/s
    ],
)
def test_a_printed_figure_is_all_that_prints_so(value: float, count: bool, low: float, high: float) -> None:
    found = Interval.of_printed(value, count=count)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-8)


CASES: dict[str, tuple[Reported, str]] = {
    "figures-disagree": (
        run(output_throughput=400.12),
        "2560 output tokens in 7.35 s are 348.30 tok/s, reported: 400.12",
    ),
    "impossible-order": (
        run(p99_ttft_ms=90.33),
        "P99 of TTFT (90.34 ms at most) is below its P50 (99.74)",
    ),
    "beyond-schedule": (
        run(mean_tpot_ms=12.51, mean_itl_ms=12.51),
        "TTFT and the time of all tokens add up to 35.51 s over 40 requests; 4 at a time in 7.36 s "
        "have 29.44 s",
    ),
    "nothing-measured": (run(mean_ttft_ms=0.0, median_ttft_ms=0.0), "mean_ttft_ms, median_ttft_ms: 0"),
    "many-failures": (run(failed=10), "10 of 50 requests failed (20 %)"),
    "failures": (run(failed=1), "1 of 41 requests failed (2.44 %)"),
    "unstreamed": (
        run(mean_tpot_ms=0.01, median_tpot_ms=0.01, mean_itl_ms=None, median_itl_ms=None),
        "64 tokens per answer, 0.01 ms apart: each answer came in one message",
    ),
    "single-request": (run(load=ONE, **_ALONE, **_EQUAL), "mean, median and P99 are of one request"),
    "concurrency-not-held": (
        run(mean_tpot_ms=5.02, mean_itl_ms=5.02),
        "mean concurrency 2.26 of the requested 4 (sum of the requests' times ÷ duration)",
    ),
    "tokens-recounted": (
        run(told_by="sglang", total_output_tokens_retokenized=800),
        "2560 output tokens reported, 800 in the texts: the requested length was counted instead",
    ),
    "thin-percentiles": (
        run(p99_itl_ms=None),
        "P99 of 40 requests is little more than the slowest one: P99 needs 100",
    ),
    "peak-below-mean": (
        run(max_output_tokens_per_s=113.0),
        "a peak of 113 tok/s over 7.36 s is at most 905 of 2560 tokens: 2.8 tokens per message or more",
    ),
    "peak-over-limit": (
        run(max_concurrent_requests=8),
        "8 at once reported, 4 allowed: the client counts by whole seconds",
    ),
    "gaps-are-not-tokens": (
        run(mean_itl_ms=19.84),
        "mean ITL 19.84 ms, mean TPOT 10.02 ms: ITL is of messages, and some of them carry several tokens",
    ),
    "bursts": (
        run(median_itl_ms=0.02),
        "median ITL 0.02 ms, 10.02 ms per token: most messages arrive with another",
    ),
    "client-untold": (
        run(load=loaded(max_concurrency=512)),
        "512 streams in one client: TTFT and ITL include its own delay, which it does not report",
    ),
}


@loop_over("name", CASES)
def test_each_doubt_is_found_with_its_figures(name: str) -> None:
    one, evidence = CASES[name]
    assert found(one)[name] == evidence


@loop_over(
    ("name", "figures", "evidence"),
    [
        (
            "figures-disagree",
            {"request_throughput": 9.87},
            "40 requests in 7.35 s are 5.44 req/s, reported: 9.87",
        ),
        (
            "figures-disagree",
            {"total_token_throughput": 348.3},
            "23040 tokens in 7.35 s are 3134.69 tok/s, reported: 348.3",
        ),
        (
            "impossible-order",
            {"p99_ttft_ms": 5000.33},
            "P99 of TTFT (5000.32 ms) exceeds the sum of all 40 requests' (100.26 ms on average)",
        ),
        (
            "impossible-order",
            {"mean_tpot_ms": 4.02},
            "mean TPOT (4.03 ms) is below half of its median (10.00)",
        ),
        (
            "impossible-order",
            {"max_ttft_ms": 99.99, "p99_ttft_ms": None},
            "mean TTFT (100.24 ms) is above its maximum (100.00)",
        ),
        (
            "impossible-order",
            {"min_ttft_ms": 110.11, "median_ttft_ms": None},
            "mean TTFT (100.26 ms) is below its minimum (110.10)",
        ),
        (
            "impossible-order",
            {"p90_ttft_ms": 130.12},
            "P99 of TTFT (120.34 ms at most) is below its P90 (130.11)",
        ),
        ("nothing-measured", {"completed": 0}, "completed: 0"),
    ],
)
def test_other_contradictions(name: str, figures: dict[str, Any], evidence: str) -> None:
    assert found(run(**figures))[name] == evidence


def test_several_values_of_one_request_are_impossible() -> None:
    alone = run(load=ONE, **_ALONE, **{**_EQUAL, "p99_ttft_ms": 150.13})
    assert found(alone)["impossible-order"] == "mean and percentiles of TTFT differ for a single request"
    assert "thin-percentiles" not in found(alone)


@loop_over(
    ("one", "name"),
    [
        (run(duration=7.349), "figures-disagree"),  # as it rounds
        (run(request_throughput=5.4), "figures-disagree"),  # one decimal
        (run(duration=None), "figures-disagree"),
        (run(told_by="guidellm", output_throughput=400.12), "figures-disagree"),  # another definition
        (run(load=loaded(requests=12, max_concurrency=4), completed=12), "concurrency-not-held"),  # 3 a slot
        (run(load=loaded(request_rate_per_s=1.0), mean_tpot_ms=5.02), "concurrency-not-held"),
        (run(max_output_tokens_per_s=330.0), "peak-below-mean"),  # 8 s may hold 2560
        (run(max_concurrent_requests=4), "peak-over-limit"),
        (run(mean_itl_ms=10.9), "gaps-are-not-tokens"),
        (run(load=loaded(max_concurrency=256)), "client-untold"),
        (run(failed=None), "failures"),
        (run(total_output_tokens=40, mean_tpot_ms=0.0), "unstreamed"),  # one token an answer
        (run(told_by="sglang", total_output_tokens_retokenized=2500), "tokens-recounted"),
        (Reported("m", {}, Load(), "x"), "nothing-measured"),
    ],
)
def test_what_is_well_is_not_accused(one: Reported, name: str) -> None:
    assert name not in found(one)


def test_a_client_that_tells_no_failures_is_asked_what_it_planned() -> None:
    sglang = run(told_by="sglang", failed=None, load=loaded(requests=50))
    assert found(sglang)["many-failures"] == "10 of 50 requests failed (20 %)"


def test_littles_law_is_taken_at_the_least_that_the_figures_allow() -> None:
    subject = AuditedRun(run(load=loaded(request_rate_per_s=math.inf)))
    assert subject.least_seconds == pytest.approx((40 * 100.24 + 2520 * 10.01) / 1e3)
    assert subject.concurrency == pytest.approx(3.98, abs=0.01)
    assert AuditedRun(run(mean_e2el_ms=700.0)).least_seconds == pytest.approx(40 * 0.6999)
    assert AuditedRun(run(mean_ttft_ms=None)).concurrency is None


def test_a_full_load_tells_what_it_leaves_for_a_prompt() -> None:
    assert AuditedRun(run()).prefill_left_ms == pytest.approx((7350 - 2560 / 4 * 9.89) / 40)
    for other in (
        run(load=loaded(max_concurrency=1)),
        run(load=loaded(request_rate_per_s=5.0)),
        run(mean_itl_ms=20.02),  # several tokens a message: the median gap is no step
        run(mean_tpot_ms=5.02, mean_itl_ms=5.02),  # not held full
        run(load=LOAD, median_itl_ms=None),
    ):
        assert AuditedRun(other).prefill_left_ms is None
