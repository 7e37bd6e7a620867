"""One run's figures contradict one another, or do not; a rounding never does."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import pytest

from builders.loops import loop_over
from builders.published_runs import loaded, run
from loadgen import cli
from loadgen.report.load_identity import Load
from loadgen.study.audit.findings import RunFindings, audit_runs
from loadgen.study.consistency.subject import AuditedRun, Interval
from loadgen.study.importers import result_sources
from loadgen.study.importers.pasted.numbers import compute_each_ms, scale_figure
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import Level

ONE = loaded(requests=1, max_concurrency=1)
_ALONE: dict[str, Any] = {
    "completed": 1, "total_input_tokens": 512, "total_output_tokens": 64, "duration": 0.74,
    "request_throughput": 1.35, "output_throughput": 86.49, "total_token_throughput": 778.38,
}  # fmt: skip
_EQUAL: dict[str, Any] = {
    f"{rank}_{key}_ms": each
    for rank in ("mean", "median", "p99")
    for key, each in (("ttft", 100.25), ("tpot", 10.02))
}


def found(one: Reported) -> dict[str, str]:
    (audited,) = audit_runs([one], None, None)
    return {each.rule.code: each.evidence for each in audited.findings}


def audit(path: Path, content: str) -> list[RunFindings]:
    path.write_text(content, "utf-8")
    return audit_runs(result_sources.read_sources([str(path)]).reported, None, None)


def test_a_healthy_run_has_but_the_note_that_its_p99_is_thin() -> None:
    assert found(run()) == {
        "thin-percentiles": "P99 of 40 requests is little more than the slowest one: P99 needs 100"
    }


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
    "figures-disagree": (run(output_throughput=400.12),
        "2560 output tokens in 7.35 s are 348.30 tok/s, reported: 400.12"),
    "impossible-order": (run(p99_ttft_ms=90.33), "P99 of TTFT (90.34 ms at most) is below its P50 (99.74)"),
    "beyond-schedule": (run(mean_tpot_ms=12.51, mean_itl_ms=12.51),
        "TTFT and the time of all tokens add up to 35.51 s over 40 requests; 4 at a time in 7.36 s "
        "have 29.44 s"),
    "nothing-measured": (run(mean_ttft_ms=0.0, median_ttft_ms=0.0), "mean_ttft_ms, median_ttft_ms: 0"),
    "many-failures": (run(failed=10), "10 of 50 requests failed (20 %)"),
    "failures": (run(failed=1), "1 of 41 requests failed (2.44 %)"),
    "unstreamed": (run(mean_tpot_ms=0.01, median_tpot_ms=0.01, mean_itl_ms=None, median_itl_ms=None),
        "64 tokens per response, 0.01 ms apart: each response came in one chunk"),
    "single-request": (run(load=ONE, **_ALONE, **_EQUAL), "mean, median and P99 are of one request"),
    "concurrency-not-held": (run(mean_tpot_ms=5.02, mean_itl_ms=5.02),
        "mean concurrency 2.26 of the requested 4 (sum of the requests' times ÷ duration)"),
    "tokens-recounted": (run(told_by="sglang", total_output_tokens_retokenized=800),
        "2560 output tokens reported, 800 in the texts: the requested length was counted instead"),
    "thin-percentiles": (run(p99_itl_ms=None),
        "P99 of 40 requests is little more than the slowest one: P99 needs 100"),
    "peak-below-mean": (run(max_output_tokens_per_s=113.0),
        "a peak of 113 tok/s over 7.36 s is at most 905 of 2560 tokens: 2.8 tokens per chunk or more"),
    "peak-over-limit": (run(max_concurrent_requests=8),
        "8 at once reported, 4 allowed: the client counts by whole seconds"),
    "gaps-are-not-tokens": (run(mean_itl_ms=19.84),
        "mean ITL 19.84 ms, mean TPOT 10.02 ms: ITL is of chunks, and some of them carry several tokens"),
    "bursts": (run(median_itl_ms=0.02),
        "median ITL 0.02 ms, 10.02 ms per token: most chunks arrive with another"),
    "client-untold": (run(load=loaded(max_concurrency=512)),
        "512 streams in one client: TTFT and ITL include its own delay, which it does not report"),
}  # fmt: skip


@loop_over("name", CASES)
def test_each_doubt_is_found_with_its_figures(name: str) -> None:
    one, evidence = CASES[name]
    assert found(one)[name] == evidence


@loop_over(
    ("name", "figures", "evidence"),
    [
        ("figures-disagree", {"request_throughput": 9.87},
         "40 requests in 7.35 s are 5.44 req/s, reported: 9.87"),
        ("figures-disagree", {"total_token_throughput": 348.3},
         "23040 tokens in 7.35 s are 3134.69 tok/s, reported: 348.3"),
        ("impossible-order", {"p99_ttft_ms": 5000.33},
         "P99 of TTFT (5000.32 ms) exceeds the sum of all 40 requests' (100.26 ms on average)"),
        ("impossible-order", {"mean_tpot_ms": 4.02},
         "mean TPOT (4.03 ms) is below half of its median (10.00)"),
        ("impossible-order", {"max_ttft_ms": 99.99, "p99_ttft_ms": None},
         "mean TTFT (100.24 ms) is above its maximum (100.00)"),
        ("impossible-order", {"min_ttft_ms": 110.11, "median_ttft_ms": None},
         "mean TTFT (100.26 ms) is below its minimum (110.10)"),
        ("impossible-order", {"p90_ttft_ms": 130.12},
         "P99 of TTFT (120.34 ms at most) is below its P90 (130.11)"),
        ("nothing-measured", {"completed": 0}, "completed: 0"),
    ],
)  # fmt: skip
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


DRAFTED: dict[str, Any] = {
    "spec_decode_acceptance_rate": 50.0, "spec_decode_acceptance_length": 2.5, "spec_decode_num_drafts": 4096,
    "spec_decode_draft_tokens": 12288, "spec_decode_accepted_tokens": 6144,
}  # fmt: skip


@loop_over(
    ("figures", "code", "evidence"),
    [
        ({"mean_ttft_ms": -12.0}, "impossible-value", "mean_ttft_ms -12 is below zero"),
        ({"median_tpot_ms": -0.0}, "impossible-value", "median_tpot_ms -0 is below zero"),
        ({"std_itl_ms": -1.5}, "impossible-value", "std_itl_ms -1.5 is below zero"),
        ({"output_throughput": -5.0}, "impossible-value", "output_throughput -5 is below zero"),
        ({"duration": -7.35}, "impossible-value", "duration -7.35 is below zero"),
        ({"total_output_tokens": -1}, "impossible-value", "total_output_tokens -1 is below zero"),
        ({"p99_itl_ms": math.inf}, "impossible-value", "p99_itl_ms inf is beyond any measurement"),
        ({"mean_ttft_ms": 1e17}, "impossible-value", "mean_ttft_ms 1e+17 is beyond any measurement"),
        ({"mean_ttft_ms": math.nan, "std_tpot_ms": math.nan}, "not-a-number",
         "mean_ttft_ms, std_tpot_ms: NaN"),
        ({"request_goodput": 9.0}, "impossible-value",
         "request_goodput 8.9 is above request_throughput 5.45"),
        ({"total_token_throughput": 300.0}, "impossible-value",
         "output_throughput 348.2 is above total_token_throughput 300.1"),
        ({**DRAFTED, "spec_decode_acceptance_rate": 150.0}, "impossible-value",
         "spec_decode_acceptance_rate 150 is above 100"),
        ({"accept_length": 0.4}, "impossible-value",
         "an acceptance length of 0.4: a pass gives one token at least"),
        ({**DRAFTED, "spec_decode_acceptance_length": 9.5}, "impossible-value",
         "an acceptance length of 9.5: drafts have 3.00 tokens each"),
        ({**DRAFTED, "spec_decode_acceptance_length": 3.5}, "impossible-value",
         "an acceptance length of 3.5: 6144 accepted tokens of 4096 drafts give 2.50"),
        ({**DRAFTED, "spec_decode_accepted_tokens": 20000, "spec_decode_acceptance_length": None},
         "impossible-value", "20000 of 12288 draft tokens accepted"),
        ({"mean_e2el_ms": 90.0, "median_e2el_ms": 90.0}, "impossible-order",
         "mean TTFT (100.24 ms) is above mean E2EL (90.10); median TTFT (99.74 ms) "
         "is above median E2EL (90.10)"),
        ({"std_ttft_ms": 5000.0}, "impossible-order",
         "the standard deviation of TTFT (4999.90 ms) is above √n means (100.26 ms each)"),
        ({"p99_e2el_ms": 9000.5}, "longer-than-the-run", "p99_e2el_ms 9.00 s in a run of 7.36 s"),
        ({"completed": 40, "failed": 5}, "counts-disagree", "40 answered and 5 failed of 40 requests"),
        ({"output_throughput": 0.0}, "nothing-measured", "output_throughput: 0"),
        ({"median_tpot_ms": 0.0}, "unstreamed",
         "64 tokens per response, 0.00 ms apart: each response came in one chunk"),
    ],
)  # fmt: skip
def test_an_impossible_figure_is_named_with_its_value(
    figures: dict[str, Any], code: str, evidence: str
) -> None:
    assert found(run(**figures))[code] == evidence


@pytest.mark.parametrize(
    "figures", [{}, DRAFTED, {"max_output_tokens_per_s": -1.0}, {"request_rate": math.inf}]
)
def test_a_healthy_run_and_what_a_client_did_not_count_are_not_impossible(figures: dict[str, Any]) -> None:
    assert set(found(run(**figures))) <= {"thin-percentiles", "draft-not-seen"}


@loop_over(("failed", "requests"), [(None, 40), (0, 40), (20, None), (5, 40)])
def test_requests_that_are_neither_answered_nor_counted_failed(
    failed: int | None, requests: int | None
) -> None:
    one = run(load=loaded(requests=requests), completed=20, failed=failed)
    assert found(one)["many-failures"] == "20 of 40 requests failed (50 %)"


@pytest.mark.parametrize("load", [{"duration_s": 10.0}, {"requests": None}])
def test_a_run_that_a_time_ended_has_lost_no_requests(load: dict[str, Any]) -> None:
    assert "many-failures" not in found(run(load=loaded(**{"requests": 4000, **load})))


def test_the_command_above_a_block_may_be_of_another() -> None:
    one = Reported("m", {"completed": 40, "failed": 0}, Load("x", 400), "f", told_by="page")
    assert "many-failures" not in found(one)


def serve_closed_loop(seed: int) -> Reported:
    """Run a server of steps that prompts lengthen, at a fixed concurrency; return the row of a table."""
    random = Random(seed)
    limit, sigma = random.choice([1, 8, 32]), random.choice([0, 0.5, 1.0])
    stall_ms = random.choice([0, 20, 100])
    count = random.choice([3, 10]) * limit
    lengths = [max(1, int(30 * random.lognormvariate(0, sigma))) for _ in range(count)]
    left, active = list(range(len(lengths))), dict[int, int]()
    began, first = dict[int, float](), dict[int, float]()
    now, per_token = 0.0, list[float]()
    while left or active:
        joined = left[: limit - len(active)]
        left = left[len(joined) :]
        began |= dict.fromkeys(joined, now)
        active |= dict.fromkeys(joined, 0)
        now += 10 + 0.1 * len(active) + stall_ms * len(joined)
        for at in list(active):
            active[at] += 1
            first.setdefault(at, now)
            if active[at] == lengths[at]:
                per_token.append((now - first[at]) / max(lengths[at] - 1, 1))
                del active[at]
    digits = random.choice([0, 1, 2])
    figures = {
        "output_throughput": round(1e3 * sum(lengths) / now, digits),
        "mean_tpot_ms": round(mean(per_token), digits),
        "mean_ttft_ms": round(mean(first[at] - began[at] for at in first), digits),
    }
    if random.random() < 0.5:
        figures["request_throughput"] = round(1e3 * len(lengths) / now, 2)
    asked = round(mean(lengths)) if random.random() < 0.5 else None
    load = Load(max_concurrency=limit, asked_output_len=asked, output_len=asked)
    return Reported("m-8b", figures, load, f"page.md:{seed}", told_by="table")


def test_rows_of_a_served_load_never_contradict_themselves() -> None:
    found = audit_runs([serve_closed_loop(seed) for seed in range(200)], None, None)
    assert [each.reported for each in found if each.level is Level.INVALID] == []


def test_a_model_larger_than_the_memory_is_impossible(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (("Qwen3-235B-A22B", "H100"), ("Qwen3-235B-A22B", "8 x H100"), ("Qwen3-8B", "H100"),
            ("Qwen3-8B", "RTX 9090"))  # fmt: skip
    head = "| Model | GPU | Concurrency | Output tok/s | TPOT (ms) |\n|---|---|---|---|---|\n"
    page = head + "".join(f"| {model} | {gpu} | 8 | 100 | 79 |\n" for model, gpu in rows)
    audited = audit(tmp_path / "page.md", page)
    found = ["beyond-roofline" in {finding.rule.code for finding in each.findings} for each in audited]
    assert found == [True, False, False, False]
    assert cli.main(["audit", str(tmp_path / "page.md")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Qwen3-235B-A22B has 470 GB of weights, H100 SXM 80GB has 80 GB of memory" in said
    assert "RTX 9090 is no machine of the table" in said


def test_a_share_of_many_times_the_roofline_keeps_its_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    row = "| Qwen3-8B | 1 | 100000 | 0.01 |\n"
    page.write_text(f"| Model | Concurrency | Output tok/s | TPOT (ms) |\n|---|---|---|---|\n{row}", "utf-8")
    assert cli.main(["audit", str(page), "--hardware", "jetson-thor"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  1 at a time"))
    assert line.split()[4:] == ["1e+05", "-", "0.01", ">999×", "INVALID", "beyond-roofline"]
