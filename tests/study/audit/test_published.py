"""The published pages audit to what is known of them, and to nothing else."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from builders.published_runs import PUBLISHED, thor
from loadgen.base.passages import render_passages
from loadgen.features.roofline import machines
from loadgen.report.load_identity import Load
from loadgen.study.audit.audit_command import list_audit_passages
from loadgen.study.audit.findings import RunFindings, audit_runs
from loadgen.study.run_summary import Reported
from loadgen.study.speed import speed_rows
from loadgen.study.speed.speed_rows import OUTPUT, convert_speed
from loadgen.verdict.verdict import Level

THOR = machines.find_machine("jetson-thor")
LOW, HIGH = "low load", "high load"
# Every block of the page, and all that is found in it but the notes; each is defended in docs/audit.md.
ACCUSED: dict[tuple[str, str], tuple[str, ...]] = {
    ("Qwen3-8B", HIGH): ("answers-short",), ("Qwen3-8B", LOW): ("warm-cache", "beyond-peak"),
    ("Qwen3-8B-FP8", HIGH): ("beyond-roofline",),
    ("Qwen3-8B-FP8", LOW): ("beyond-roofline", "warm-cache", "beyond-peak"),
    ("Qwen3-8B-GPTQ-Int4", HIGH): ("answers-short",),
    ("Qwen3-8B-GPTQ-Int4", LOW): ("warm-cache", "beyond-peak"),
    ("Qwen3-8B-GPTQ-Int8", HIGH): ("answers-short",),
    ("Qwen3-8B-GPTQ-Int8", LOW): ("warm-cache", "beyond-peak"), ("Qwen3-8B-AWQ", HIGH): ("answers-short",),
    ("Qwen3-8B-AWQ", LOW): ("warm-cache", "beyond-peak"), ("Qwen3-8B-GGUF", HIGH): ("slow-kernel",),
    ("Qwen3-8B-GGUF", LOW): ("warm-cache", "single-request"), ("Qwen3-30B-A3B", HIGH): (),
    ("Qwen3-30B-A3B", LOW): ("warm-cache",), ("Qwen3-Coder-30B-A3B-Instruct-FP8", HIGH): (),
    ("Qwen3-Coder-30B-A3B-Instruct-FP8", LOW): ("warm-cache", "above-roofline"),
}  # fmt: skip
_NEED_A_MACHINE = {"beyond-roofline", "beyond-peak", "above-roofline", "slow-kernel"}


@pytest.fixture(scope="module")
def page() -> dict[tuple[str, str], RunFindings]:
    return {(one.reported.name, one.reported.load.name): one for one in audit_runs(thor(), THOR, None)}


def grave(audited: RunFindings) -> tuple[str, ...]:
    return tuple(one.rule.code for one in audited.findings if one.rule.severity)


def notes(audited: RunFindings) -> tuple[str, ...]:
    return tuple(one.rule.code for one in audited.findings if not one.rule.severity)


def evidence(audited: RunFindings, name: str) -> str:
    return next(one.evidence for one in audited.findings if one.rule.code == name)


def test_each_block_is_accused_of_what_it_did(page: dict[tuple[str, str], RunFindings]) -> None:
    assert {at: grave(one) for at, one in page.items()} == ACCUSED
    invalid = {at for at, one in page.items() if one.level is Level.INVALID}
    assert invalid == {("Qwen3-8B-FP8", HIGH), ("Qwen3-8B-FP8", LOW)}


def test_the_notes_of_each_block(page: dict[tuple[str, str], RunFindings]) -> None:
    usual = {HIGH: ("known-prompts",), LOW: ("known-prompts", "thin-percentiles")}
    other = {
        ("Qwen3-8B-GPTQ-Int4", HIGH): ("requests-differ", "known-prompts"),
        ("Qwen3-8B-GGUF", LOW): ("requests-differ",),
    }
    assert {at: notes(one) for at, one in page.items()} == {at: other.get(at, usual[at[1]]) for at in page}


@loop_over(
    ("at", "name", "words"),
    [
        (("Qwen3-8B-FP8", LOW), "beyond-roofline", "8.88 ms per token (mean TPOT)"),
        (("Qwen3-8B-FP8", LOW), "beyond-roofline", "923 GB/s, 3.4 × the 273"),
        (("Qwen3-8B-FP8", LOW), "beyond-peak", "are 1284 TFLOP/s, 2.5 × the 517"),
        (("Qwen3-8B-FP8", LOW), "warm-cache",
         "its 10 prompts (20431 tokens) are the first 10 of high load (100 prompts, 204169 tokens), "
         "seed 0; TTFT 23.06 ms, where high load leaves 143 ms for each prompt (6.2 times that) and "
         "its arithmetic takes 57 ms at the machine's peak: a prefix cache hit"),
        (("Qwen3-8B-GPTQ-Int4", LOW), "warm-cache", "the first 10 of high load (200 prompts, 408281 tokens)"),
        (("Qwen3-8B-GPTQ-Int4", HIGH), "requests-differ", "requests: 200, the others under this load 100"),
        (("Qwen3-8B-GGUF", LOW), "requests-differ", "requests: 1, the others under this load 10"),
        (("Qwen3-8B-GGUF", HIGH), "slow-kernel", "14752 ms are left for each prompt's prefill, 0.78 %"),
        (("Qwen3-8B", HIGH), "answers-short",
         "12419 of 12800 output tokens: 124.2 per request, not 128 (by the page's other runs)"),
        (("Qwen3-8B", HIGH), "known-prompts",
         "204169 input tokens, not 100 × 2048: 9 prompts came out short, as those of seed 0 do in vLLM of "
         "May to August 2025 (0.9 to 0.10.1) with the tokenizer of Qwen 2 to 3"),
    ],
)  # fmt: skip
def test_the_evidence_has_the_figures(
    page: dict[tuple[str, str], RunFindings], at: tuple[str, str], name: str, words: str
) -> None:
    assert words in evidence(page[at], name)


def test_without_a_machine_all_is_found_that_needs_none() -> None:
    audited = audit_runs(thor(), None, None)
    found = {(one.reported.name, one.reported.load.name): grave(one) for one in audited}
    needs_none = {at: tuple(n for n in names if n not in _NEED_A_MACHINE) for at, names in ACCUSED.items()}
    assert found == needs_none


def test_the_page_fits_a_terminal(page: dict[tuple[str, str], RunFindings]) -> None:
    for explain in (False, True):
        said = render_passages(list_audit_passages(list(page.values()), explain))
        assert max(map(len, said.splitlines())) <= 80
        assert "16 runs: 2 INVALID, 12 SUSPECT, 2 VALID" in said


def published() -> Iterator[Reported]:
    keys = {"H20-96GB": "h20-96gb", "A100-80GB": "a100-80gb"}
    for line, row in enumerate(speed_rows.list_published(), 2):
        if row.speed_tok_s is not None:
            name = row.model if row.quantization == "BF16" else f"{row.model}-{row.quantization}"
            machine = f"{row.gpu_num or 1} × {keys[row.gpu]}"
            lengths = row.input_length, row.output_length
            load = Load(f"input {row.input_length}", None, *lengths, None, 1)
            speed = convert_speed(float(row.speed_tok_s), row.formula, OUTPUT, *lengths)
            source = f"{row.gpu}.csv, line {line}"
            run = Reported(name, {"output_throughput": speed}, load, source, told_by="speed table")
            yield replace(run, engine=row.backend, machine=machine)


def test_no_published_speed_is_impossible_and_only_transformers_is_slow() -> None:
    findings = audit_runs(list(published()), None, None)
    accused = [(one, name) for one in findings for name in grave(one)]
    assert len(findings) == 471
    assert all(one.ceiling is not None for one in findings)
    assert Counter((one.reported.engine, one.reported.load.name, name) for one, name in accused) == {
        ("Transformers", "input 1", "slow-kernel"): 9
    }
    assert max(one.roofline or 0.0 for one in findings) < 0.75


def test_the_desk_card_has_one_row_above_the_roofline() -> None:
    with (PUBLISHED / "rtx_pro_6000_speed.csv").open(encoding="utf-8", newline="") as file:
        speeds = {row["model"]: float(row["tok_s"]) for row in csv.DictReader(file)}
    load = Load(max_concurrency=1)
    given = [Reported(name, {"speed_tok_s": speed}, load, "x") for name, speed in speeds.items()]
    findings = audit_runs(given, machines.find_machine("rtx-pro-6000"), None)
    (glm,) = (one for one in findings if grave(one))
    assert (glm.reported.name, grave(glm)) == ("GLM-4-9B-Chat-1M", ("above-roofline",))
    assert evidence(glm, "above-roofline").startswith("9.328 ms per token (tokens per second): reading 17.7")
    assert all((one.roofline or 0.0) > 0.3 for one in findings)
