"""A draft's acceptance length divides the bound of decoding: passes a second, not tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from loadgen.features.roofline import bound, machines
from loadgen.features.roofline.estimate import estimate_ceiling
from loadgen.study.audit.findings import RunFindings, audit_runs
from loadgen.study.importers import result_sources
from loadgen.verdict.verdict import Level

H100 = machines.find_machine("h100")
HEAD = """## Qwen3-8B with a draft model

============ Serving Benchmark Result ============
Successful requests:                     80
Benchmark duration (s):                  22.96
Total input tokens:                      81920
Total generated tokens:                  10240
Request throughput (req/s):              3.48
Output token throughput (tok/s):         445.99
Total token throughput (tok/s):          4013.94
{load}
Mean TTFT (ms):                          20.10
Median TTFT (ms):                        20.00
Mean TPOT (ms):                          2.10
Median TPOT (ms):                        2.10
Mean ITL (ms):                           {itl}
Median ITL (ms):                         {itl}
{draft}
==================================================
"""
VLLM = """---------------Speculative Decoding---------------
Acceptance rate (%):                     50.00
Acceptance length:                       2.50
Drafts:                                  4096
Draft tokens:                            12288
Accepted tokens:                         6144
Per-position acceptance (%):
  Position 0:                            70.00
  Position 1:                            50.00"""
ALONE = "Maximum request concurrency:             1"
SGLANG = "Backend:                                 sglang-oai\nMax request concurrency:                 1"


def block(draft: str = "", itl: float = 5.25, load: str = ALONE) -> str:
    return HEAD.format(draft=draft, itl=itl, load=load)


def audited(path: Path, content: str) -> RunFindings:
    path.write_text(content, "utf-8")
    (one,) = audit_runs(result_sources.read_sources([str(path)]).reported, H100, None)
    return one


@loop_over(
    ("content", "level", "code"),
    [
        (block(VLLM), Level.VALID, ""),
        (block("Accept length:                           2.50", load=SGLANG), Level.VALID, ""),
        (block("Acc length:                              2.50"), Level.VALID, ""),
        (
            block(),
            Level.SUSPECT,
            "draft-not-stated",
        ),  # its messages carry several tokens, and nothing is said
        (block(itl=2.1), Level.INVALID, "beyond-roofline"),
        (block(VLLM, itl=2.1), Level.SUSPECT, "draft-not-seen"),
        (block(VLLM.replace("2.50", "1.10").replace("6144", "410")), Level.INVALID, "beyond-roofline"),
    ],
)
def test_a_block_is_judged_by_the_draft_that_it_states(
    content: str, level: Level, code: str, tmp_path: Path
) -> None:
    one = audited(tmp_path / "page.md", content)
    grave = [each.rule.code for each in one.findings if each.rule.severity]
    assert (one.level, [*grave, ""][0]) == (level, code)
    assert not [remark for remark in one.reported.remarks if "not read" in remark]


FILE: dict[str, Any] = {
    "backend": "openai", "model_id": "Qwen/Qwen3-8B", "num_prompts": 80, "max_concurrency": 1,
    "duration": 22.96, "completed": 80, "failed": 0, "total_input_tokens": 81920,
    "total_output_tokens": 10240, "mean_ttft_ms": 20.1, "mean_tpot_ms": 2.1, "mean_itl_ms": 5.25,
}  # fmt: skip
LINE: dict[str, Any] = {
    "backend": "sglang-oai", "max_concurrency": 1, "duration": 22.96, "completed": 80,
    "total_input_tokens": 81920, "total_output_tokens": 10240, "mean_e2e_latency_ms": 286.8,
    "mean_ttft_ms": 20.1, "mean_tpot_ms": 2.1, "mean_itl_ms": 5.25, "tag": "Qwen3-8B", "accept_length": 2.5,
}  # fmt: skip
TABLE = (
    "| Model | Concurrency | TTFT (ms) | TPOT (ms) | {title} |\n|---|---|---|---|---|\n"
    "| Qwen3-8B | 1 | 20.1 | 2.1 | 2.5 |\n"
)


@loop_over(
    "content",
    [
        json.dumps({**FILE, "spec_decode_acceptance_length": 2.5, "spec_decode_acceptance_rate": 50.0}),
        json.dumps(LINE),
        TABLE.format(title="Accept length"),
        TABLE.format(title="Acc length"),
        TABLE.format(title="Acceptance length"),
        TABLE.format(title="Acceptance Rate"),  # NVIDIA's: tokens accepted a step
    ],
)
def test_files_and_tables_state_it_too(content: str, tmp_path: Path) -> None:
    one = audited(tmp_path / "result", content)
    assert one.level is Level.VALID
    assert one.roofline == pytest.approx(0.86, abs=0.03)


def test_the_bound_of_a_draft_is_in_passes() -> None:
    assert H100 is not None
    best = estimate_ceiling("Qwen3-8B", H100)
    figures = {"mean_tpot_ms": 2.1, "completed": 1, "accept_length": 2.5}
    plain, drafted = (
        bound.compare_decode(best, each, bound.Lengths()) for each in ({"mean_tpot_ms": 5.25}, figures)
    )
    assert plain is not None
    assert drafted is not None
    assert drafted.share == pytest.approx(plain.share)
    assert drafted.effective_bytes_per_s == pytest.approx(plain.effective_bytes_per_s)
    (line, *_) = bound.render_lines(best, figures, bound.Lengths())
    assert "GB/s, 2.5 tokens a pass); reached 476 tok/s (mean TPOT), 86" in line
    excess = bound.measure_decode_excess(best, figures, bound.Lengths())
    assert excess is not None
    assert excess.text.startswith(
        "2.1 ms per token (mean TPOT), 5.25 ms per pass of 2.5 tokens (acceptance length)"
    )


TABLE = "| Model | Concurrency | TPOT (ms) | {title} |\n|---|---|---|---|\n| {name} | 1 | {tpot} | {cell} |\n"


@loop_over(
    ("name", "title", "cell", "tpot", "codes"),
    [
        ("Qwen3-8B + EAGLE3", "Config", "", 2.5, ["draft-not-stated"]),
        ("Qwen3-8B (MTP)", "Config", "", 2.5, ["draft-not-stated"]),
        ("Qwen3-8B", "Config", "speculative decoding", 2.5, ["draft-not-stated"]),
        ("Qwen3-8B", "Spec", "on", 2.5, ["draft-not-stated"]),
        ("Qwen3-8B", "Spec", "off", 2.5, ["beyond-roofline"]),
        ("Qwen3-8B", "Config", "no spec decode", 2.5, ["beyond-roofline"]),
        ("Qwen3-8B", "Config", "plain", 2.5, ["beyond-roofline"]),
        ("Qwen3-8B + EAGLE3", "Config", "", 0.5, ["beyond-roofline"]),
        ("Qwen3-8B + EAGLE3", "Config", "", 6.0, []),
    ],
)
def test_a_draft_that_is_named_makes_no_table_impossible(
    name: str, title: str, cell: str, tpot: float, codes: list[str], tmp_path: Path
) -> None:
    one = audited(tmp_path / "page.md", TABLE.format(name=name, title=title, cell=cell, tpot=tpot))
    assert [each.rule.code for each in one.findings] == codes
