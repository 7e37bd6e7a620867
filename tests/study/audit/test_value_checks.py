"""A figure that no measurement gives is named, wherever it stands; a healthy run has none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from builders.published_runs import loaded, run
from loadgen.report.load_identity import Load
from loadgen.study.audit.findings import RunFindings, audit_runs
from loadgen.study.importers import result_sources
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import Level

DRAFTED: dict[str, Any] = {
    "spec_decode_acceptance_rate": 50.0,
    "spec_decode_acceptance_length": 2.5,
    "spec_decode_num_drafts": 4096,
    "spec_decode_draft_tokens": 12288,
    "spec_decode_accepted_tokens": 6144,
}


def found(one: Reported) -> dict[str, str]:
    (audited,) = audit_runs([one], None, None)
    return {each.rule.code: each.evidence for each in audited.findings}


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
        (
            {"mean_ttft_ms": math.nan, "std_tpot_ms": math.nan},
            "not-a-number",
            "mean_ttft_ms, std_tpot_ms: NaN",
        ),
        (
            {"request_goodput": 9.0},
            "impossible-value",
            "request_goodput 8.9 is above request_throughput 5.45",
        ),
        (
            {"total_token_throughput": 300.0},
            "impossible-value",
            "output_throughput 348.2 is above total_token_throughput 300.1",
        ),
        (
            {**DRAFTED, "spec_decode_acceptance_rate": 150.0},
            "impossible-value",
            "spec_decode_acceptance_rate 150 is above 100",
        ),
        (
            {"accept_length": 0.4},
            "impossible-value",
            "an acceptance length of 0.4: a pass gives one token at least",
        ),
        (
            {**DRAFTED, "spec_decode_acceptance_length": 9.5},
            "impossible-value",
            "an acceptance length of 9.5: drafts have 3.00 tokens each",
        ),
        (
            {**DRAFTED, "spec_decode_acceptance_length": 3.5},
            "impossible-value",
            "an acceptance length of 3.5: 6144 accepted tokens of 4096 drafts give 2.50",
        ),
        (
            {**DRAFTED, "spec_decode_accepted_tokens": 20000, "spec_decode_acceptance_length": None},
            "impossible-value",
            "20000 of 12288 draft tokens accepted",
        ),
        (
            {"mean_e2el_ms": 90.0, "median_e2el_ms": 90.0},
            "impossible-order",
            "mean TTFT (100.24 ms) is above mean E2EL (90.10); median TTFT (99.74 ms) "
            "is above median E2EL (90.10)",
        ),
        (
            {"std_ttft_ms": 5000.0},
            "impossible-order",
            "the standard deviation of TTFT (4999.90 ms) is above √n means (100.26 ms each)",
        ),
        ({"p99_e2el_ms": 9000.5}, "longer-than-the-run", "p99_e2el_ms 9.00 s in a run of 7.36 s"),
        ({"completed": 40, "failed": 5}, "counts-disagree", "40 answered and 5 failed of 40 requests"),
        ({"output_throughput": 0.0}, "nothing-measured", "output_throughput: 0"),
        (
            {"median_tpot_ms": 0.0},
            "unstreamed",
            "64 tokens per answer, 0.00 ms apart: each answer came in one message",
        ),
    ],
)
def test_an_impossible_figure_is_named_with_its_value(
    figures: dict[str, Any], code: str, evidence: str
) -> None:
    assert found(run(**figures))[code] == evidence


@pytest.mark.parametrize(
    "figures", [{}, DRAFTED, {"max_output_tokens_per_s": -1.0}, {"request_rate": math.inf}]
)
def test_a_healthy_run_and_what_a_client_did_not_count_are_not_impossible(figures: dict[str, Any]) -> None:
    assert set(found(run(**figures))) <= {"thin-percentiles", "draft-not-seen"}


@pytest.mark.parametrize(
    ("changes", "load", "share"),
    [
        ({"completed": 20, "failed": None}, {"requests": 40}, "20 of 40 requests failed (50 %)"),
        ({"completed": 20, "failed": 0}, {"requests": 40}, "20 of 40 requests failed (50 %)"),
        ({"completed": 20, "failed": 20}, {"requests": None}, "20 of 40 requests failed (50 %)"),
        ({"completed": 20, "failed": 5}, {"requests": 40}, "20 of 40 requests failed (50 %)"),
    ],
)
def test_requests_that_are_neither_answered_nor_counted_failed(
    changes: dict[str, Any], load: dict[str, Any], share: str
) -> None:
    assert found(run(load=loaded(**load), **changes))["many-failures"] == share


@pytest.mark.parametrize("load", [{"duration_s": 10.0}, {"requests": None}])
def test_a_run_that_a_time_ended_has_lost_no_requests(load: dict[str, Any]) -> None:
    assert "many-failures" not in found(run(load=loaded(**{"requests": 4000, **load})))


VLLM: dict[str, Any] = {
    "backend": "openai", "model_id": "org/model-8b", "num_prompts": 100, "max_concurrency": 8,
    "duration": 24.0, "completed": 100, "failed": 0, "total_input_tokens": 25600,
    "total_output_tokens": 16000, "mean_ttft_ms": 44.1, "median_ttft_ms": 43.0, "p99_ttft_ms": 250.0,
    "mean_tpot_ms": 11.1,
}  # fmt: skip
BLOCK = """
============ Serving Benchmark Result ============
Successful requests:                     100
Benchmark duration (s):                  25.00
Total input tokens:                      25600
Total generated tokens:                  16000
Request throughput (req/s):              4.00
Mean TTFT (ms):                          {ttft}
Median TTFT (ms):                        9.00
P99 TTFT (ms):                           250.00
==================================================
"""
TABLE = (
    "| Model | Concurrency | tok/s | TTFT (ms) |\n|---|---|---|---|\n| Qwen3-8B | 8 | {speed} | {ttft} |\n"
)
LADDER = (
    "| Model | Input Length | Speed (tok/s) |\n|--|--|--|\n| Qwen3-8B | 1 | 40 |\n| Qwen3-8B | 9 | -4 |\n"
)


def files() -> dict[str, str]:
    """A file of each form with one impossible figure in it."""
    guidellm = {"time_to_first_token_ms": {"successful": {"mean": -1.7e12, "median": 9.0}}}
    aiperf = {
        "aiperf_version": "1",
        "request_latency": {"unit": "ms", "avg": 1.0},
        "time_to_first_token": {"unit": "ms", "avg": -3.0},
    }
    return {
        "vllm.json": json.dumps({**VLLM, "mean_ttft_ms": -1715507074412.1}),
        "infinite.json": json.dumps({**VLLM, "p99_ttft_ms": math.inf}),
        "sglang.jsonl": json.dumps({"mean_e2e_latency_ms": 50.0, "mean_ttft_ms": -2.0, "completed": 3}),
        "guidellm.json": json.dumps({"benchmarks": [{"metrics": guidellm}]}),
        "aiperf.json": json.dumps(aiperf),
        "block.txt": BLOCK.format(ttft="-12.00"),
        "minus.txt": BLOCK.format(ttft="\u221212.00"),
        "infinite.txt": BLOCK.format(ttft="inf"),
        "table.md": TABLE.format(speed=640, ttft=-12),
        "minus.md": TABLE.format(speed=640, ttft="\u22129.5"),
        "speed.md": TABLE.format(speed=-640, ttft=12),
        "ladder.md": LADDER,
        "infinite.md": TABLE.format(speed="inf", ttft=12),
        "beyond.md": TABLE.format(speed="1e400", ttft=12),
        "zero.md": TABLE.format(speed=640, ttft="-0.00"),
        "infinite.csv": "model,tok_s,mean_ttft_ms,mean_tpot_ms\nQwen3-8B,640,∞,5\n",
        "beyond.csv": "model,tok_s,mean_ttft_ms,mean_tpot_ms\nQwen3-8B,640,1e400,5\n",
        "zero.csv": "model,tok_s,mean_ttft_ms,mean_tpot_ms\nQwen3-8B,640,-0.00,5\n",
        "rate.md": "| Model | Acceptance rate | tok/s |\n|--|--|--|\n| Qwen3-8B | 120 % | 40 |\n",
        "rows.csv": "model,tok_s,mean_ttft_ms,mean_tpot_ms\nQwen3-8B,640,-12,5\n",
    }


@loop_over("name", files())
def test_an_impossible_figure_is_found_in_every_form(name: str, tmp_path: Path) -> None:
    audited = _audited(tmp_path / name, files()[name])
    assert [each.level for each in audited].count(Level.INVALID) == 1
    (worst,) = [each.findings[0] for each in audited if each.level is Level.INVALID]
    assert worst.rule.code == "impossible-value"


def test_a_cell_of_zero_is_left_out_and_named(tmp_path: Path) -> None:
    (audited,) = _audited(tmp_path / "t.md", TABLE.format(speed=640, ttft=0))
    assert audited.reported.remarks == ("mean_ttft_ms is 0: it was not measured",)


def _audited(path: Path, content: str) -> list[RunFindings]:
    path.write_text(content, "utf-8")
    return audit_runs(result_sources.read_sources([str(path)]).reported, None, None)


def test_a_file_of_nan_is_suspect(tmp_path: Path) -> None:
    nan = _audited(tmp_path / "nan.json", json.dumps({**VLLM, "mean_tpot_ms": math.nan}))
    assert [(each.level, each.findings[0].rule.code) for each in nan] == [(Level.SUSPECT, "not-a-number")]
    printed = _audited(tmp_path / "nan.txt", BLOCK.format(ttft="nan"))
    assert printed[0].findings[0].evidence == "mean_ttft_ms: NaN"


@pytest.mark.parametrize("name", ["nan.md", "nan.csv"])
def test_a_cell_of_nan_is_suspect(name: str, tmp_path: Path) -> None:
    sheet = "model,tok_s,mean_ttft_ms,mean_tpot_ms\nQwen3-8B,640,NaN,5\n"
    content = sheet if name.endswith("csv") else TABLE.format(speed=640, ttft="NaN")
    (audited,) = _audited(tmp_path / name, content)
    assert [each.evidence for each in audited.findings if each.rule.code == "not-a-number"] == [
        "mean_ttft_ms: NaN"
    ]


def test_the_command_above_a_block_may_be_of_another() -> None:
    one = Reported("m", {"completed": 40, "failed": 0}, Load("x", 400), "f", told_by="page")
    assert "many-failures" not in found(one)
