"""Which machine and model a run is held against, what our own verdict adds, and what the roofline accuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from builders.published_runs import loaded, run
from builders.required import require
from loadgen.base.rule import Severity, Source
from loadgen.features.roofline import machines
from loadgen.features.roofline.estimate import estimate_ceiling
from loadgen.report.load_identity import Load
from loadgen.study.audit.findings import (
    CHECKS,
    OF_OURS,
    SAME_AS,
    RunFindings,
    audit_runs,
    find_nominal_lengths,
    nine_tenths,
)
from loadgen.study.consistency.subject import AuditedRun, find_usual, group_pages
from loadgen.study.importers import result_sources
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import DOUBTS, Level
from report.test_run_directory import made

THOR, H20 = machines.find_machine("jetson-thor"), machines.find_machine("h20-96gb")
CONFIG = {"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
          "head_dim": 128, "num_key_value_heads": 8, "intermediate_size": 12288,
          "vocab_size": 151936}  # fmt: skip
LEAST_MS = 31.1  # a token of Qwen3-8B-FP8 after 2048 on a Thor


def alone(tpot_ms: float, name: str = "Qwen3-8B-FP8", ttft_ms: float = 400.0, **fields: Any) -> Reported:
    figures = {
        "completed": 10, "total_input_tokens": 20480, "total_output_tokens": 1280, "mean_ttft_ms": ttft_ms,
        "mean_tpot_ms": tpot_ms,
    }  # fmt: skip
    return Reported(name, figures, Load("low", 10, 2048.0, 128.0, 128, 1), "p.md:1", told_by="vllm", **fields)


def names(audited: RunFindings) -> set[str]:
    return {one.rule.code for one in audited.findings} - {"thin-percentiles"}


@loop_over(
    ("tpot_ms", "ttft_ms", "doubts", "level"),
    [
        (LEAST_MS * 1.1, 400.0, set(), Level.VALID),
        (LEAST_MS, 400.0, set(), Level.VALID),
        (LEAST_MS / 1.04, 400.0, set(), Level.VALID),  # as figures and names round
        (LEAST_MS / 1.1, 400.0, {"above-roofline"}, Level.SUSPECT),
        (LEAST_MS / 1.3, 400.0, {"beyond-roofline"}, Level.INVALID),
        (LEAST_MS * 3.2, 400.0, set(), Level.VALID),
        (LEAST_MS * 3.5, 400.0, {"slow-kernel"}, Level.SUSPECT),
        (LEAST_MS * 1.1, 58.0, set(), Level.VALID),
        (LEAST_MS * 1.1, 50.0, {"beyond-peak"}, Level.SUSPECT),
    ],
)
def test_a_run_is_held_against_bus_and_peak(
    tpot_ms: float, ttft_ms: float, doubts: set[str], level: Level
) -> None:
    (audited,) = audit_runs([alone(tpot_ms, ttft_ms=ttft_ms)], THOR, None)
    assert (names(audited), audited.level) == (doubts, level)


def test_speculation_is_ruled_out_only_if_messages_carry_one_token() -> None:
    (plain,) = audit_runs([alone(8.88)], THOR, None)
    one = alone(8.88)
    (told,) = audit_runs([replace(one, figures={**one.figures, "mean_itl_ms": 8.88})], THOR, None)
    said = [audited.findings[0].evidence for audited in (plain, told)]
    assert ["rules out speculative decoding" in each for each in said] == [False, True]


def test_a_runs_own_ceiling_is_kept_and_put_on_the_machine_that_is_given() -> None:
    own = estimate_ceiling("Qwen3-8B", H20)
    as_told, moved = (
        audit_runs([alone(30.0, ceiling=own)], machine, None)[0].ceiling for machine in (None, THOR)
    )
    assert as_told == own
    assert moved == own.model_copy(update={"machine": THOR})


def test_an_unknown_model_is_asked_for_and_can_be_given(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG), "utf-8")
    one, other = alone(8.88, "mine-FP8"), alone(8.88, "Qwen3-8B-FP8")
    (unknown,) = audit_runs([one], THOR, None)
    assert (unknown.ceiling, names(unknown)) == (None, set())
    assert "mine" in unknown.no_ceiling
    assert "--model-config, or --model NAME" in unknown.no_ceiling
    for given in (audit_runs([one], THOR, config), audit_runs([one], THOR, None, "Qwen3-8B")):
        assert names(given[0]) == {"beyond-roofline"}
        assert round(require(given[0].ceiling).tpot_ms(1, 2112), 1) == LEAST_MS
    mixed = audit_runs([one, replace(other, name="Qwen3-0.6B")], THOR, config)
    rates = [audited.ceiling.tpot_ms() for audited in mixed if audited.ceiling]
    assert rates[0] > 5 * rates[1]  # the config is of the one that the table does not know


def test_our_own_runs_keep_their_verdict_and_nothing_is_found_twice() -> None:
    result = made()
    own = Reported("m", {"completed": 3, "mean_ttft_ms": 0.0}, Load("p"), "runs/x", run=result)
    (audited,) = audit_runs([own], None, None)
    assert result.verdict.findings
    assert [(one.rule, one.evidence) for one in audited.findings] == [
        (one.rule, one.evidence) for one in result.verdict.findings
    ]  # nothing-measured is not asked: the verdict has every arrival


def test_every_check_has_its_words_and_a_name_of_its_own() -> None:
    assert len({check.code for check in CHECKS}) == len(CHECKS)
    assert all(check.condition and check.remedy for check in CHECKS)
    assert {*SAME_AS.values()} <= {doubt.code for doubt in DOUBTS}
    assert {*SAME_AS} | OF_OURS <= {check.code for check in CHECKS}
    assert {check.code for check in CHECKS if check.severity is Severity.INVALID} == {
        "beyond-roofline", "impossible-value", "figures-disagree", "counts-disagree", "impossible-order",
        "longer-than-the-run", "beyond-schedule", "nothing-measured", "many-failures",
    }  # fmt: skip
    assert {check.code for check in CHECKS if check.source is Source.ROOFLINE} == {
        "beyond-roofline", "above-roofline", "draft-not-stated", "beyond-peak", "slow-kernel",
    }  # fmt: skip


OTHERS = [run("a"), run("b", median_ttft_ms=98.71), run("c", median_ttft_ms=98.72)]
ALONE = loaded(name="low", requests=10, max_concurrency=1)
# One at a time: 10 requests of 60 ms and 63 tokens of 5 ms, where the full load leaves 25.5 ms a prompt.
_LOW: dict[str, Any] = {
    "completed": 10, "total_input_tokens": 5120, "total_output_tokens": 640, "duration": 3.76,
    "request_throughput": 2.66, "output_throughput": 170.21, "total_token_throughput": 1531.91,
    **{f"{rank}_{key}_ms": 5.01 for rank in ("mean", "median", "p99") for key in ("tpot", "itl")},
}  # fmt: skip


def low(ttft_ms: float = 60.12, **figures: Any) -> Reported:
    ttft = {f"{rank}_ttft_ms": ttft_ms for rank in ("mean", "median", "p99")}
    return run("m", ALONE, **{**_LOW, **ttft, "duration": 3.16 + 0.01 * ttft_ms, **_RATELESS, **figures})


_RATELESS = dict.fromkeys(("request_throughput", "output_throughput", "total_token_throughput"))


def found(one: Reported, *beside: Reported) -> dict[str, str]:
    findings = audit_runs([one, *beside], None, None)[0].findings
    return {each.rule.code: each.evidence for each in findings if each.rule.code != "thin-percentiles"}


def test_runs_that_are_alike_are_let_be() -> None:
    for one in OTHERS:
        assert found(one, *(other for other in OTHERS if other is not one)) == {}


@loop_over(
    ("one", "name", "evidence"),
    [
        (run("d", loaded(requests=80), completed=80), "requests-differ",
         "requests: 80, the others under this load 40"),
        (run("d", loaded(max_concurrency=8)), "concurrency-differs",
         "concurrency 8, the others under this load 4"),
        (run("d", total_input_tokens=40960), "prompts-differ",
         "1024.0 tokens per prompt, the others under this load 512"),
        (run("d", total_output_tokens=2400), "answers-short",
         "2400 of 2560 output tokens: 60.0 per request, not 64 (requested), 6.25 % less work"),
        (run("d", loaded(asked_output_len=None), total_output_tokens=2400), "answers-short",
         "2400 of 2560 output tokens: 60.0 per request, not 64 (by the page's other runs), "
         "6.25 % less work"),
        (run("d", loaded(asked_input_len=1024), total_input_tokens=20480), "prompts-off",
         "512.0 tokens per prompt, 1024 requested"),
        (run("d"), "duplicate", "10 figures equal those of a high to the digit"),
    ],
)  # fmt: skip
def test_what_is_unlike_is_told(one: Reported, name: str, evidence: str) -> None:
    assert found(one, *OTHERS)[name] == evidence


@loop_over(
    ("one", "name"),
    [
        (run("d", loaded(name="other", requests=80), completed=80), "requests-differ"),
        (run("d", loaded(name="", requests=80), completed=80), "requests-differ"),
        (run("d", total_input_tokens=20560), "prompts-differ"),  # a chat template's
        (run("d", loaded(asked_input_len=500)), "prompts-off"),
        (run("d", total_output_tokens=2550), "answers-short"),
        (run("d", loaded(max_concurrency=None)), "concurrency-differs"),
        (Reported("d", {"speed_tok_s": 5.5}, Load("high"), "x"), "duplicate"),
    ],
)
def test_what_is_alike_enough_is_not(one: Reported, name: str) -> None:
    assert name not in found(one, *OTHERS)


def test_of_two_nobody_is_the_odd_one() -> None:
    assert "requests-differ" not in found(run("d", loaded(requests=80), completed=80), OTHERS[0])
    for values, usual in (([1, 2], None), ([1, 1], None), ([1, 1, 2], 1), ([1, 1, 2, 2], None), ([], None)):
        assert find_usual(values) == usual


def test_answers_of_uneven_length_are_short_of_nothing_that_is_told() -> None:
    uneven = [run(name, loaded(asked_output_len=None), total_output_tokens=n) for name, n in
              (("a", 2403), ("b", 2511), ("c", 2287))]  # fmt: skip
    assert all("answers-short" not in found(one, *(o for o in uneven if o is not one)) for one in uneven)


def test_another_page_is_nobodys_company() -> None:
    here = [replace(one, source=f"here.md:{line}") for line, one in enumerate(OTHERS)]
    there = replace(run("d", loaded(requests=80), completed=80), source="there.md:7", file="there.md")
    too = replace(run("e"), source="there.md:9", file="there.md")
    assert "requests-differ" not in found(there, too, *here)
    assert [len(one.runs) for one in group_pages([there, too, *here])] == [2, 2, 3, 3, 3]


def test_a_cold_prompt_takes_what_a_full_load_leaves_for_it() -> None:
    assert "warm-cache" not in found(low(), run())
    assert "warm-cache" not in found(low(ttft_ms=13.12), run())  # no mark, and half of it


def test_the_same_prompts_and_half_the_time_are_the_cache() -> None:
    one, other = low(ttft_ms=10.12), run()
    one = replace(one, load=replace(one.load, seed=0))
    other = replace(other, load=replace(other.load, seed=0))
    assert found(one, other)["warm-cache"] == (
        "its prompts are those of high, by their seed; TTFT 10.12 ms, where high leaves 26 ms for each "
        "prompt (2.5 times that): a prefix cache hit"
    )
    assert "warm-cache" not in found(one, replace(other, load=replace(other.load, seed=1)))
    assert "warm-cache" not in found(replace(one, name="another"), other)
    digests = [replace(each, plan_digest="abc") for each in (low(ttft_ms=10.12), run())]
    assert "by their digest" in found(*digests)["warm-cache"]
    assert "warm-cache" not in found(digests[0], replace(digests[1], plan_digest="def"))


def test_without_a_mark_it_takes_a_fifth_of_the_time() -> None:
    assert found(low(ttft_ms=4.12), run())["warm-cache"] == (
        "TTFT 4.12 ms, where high leaves 26 ms for each prompt (6.2 times that): most likely sent "
        "before, or on another server"
    )
    assert "warm-cache" not in found(low(ttft_ms=4.12, total_input_tokens=10240), run())  # other prompts


def named(name: str, **load: Any) -> Reported:
    """A run by its name alone."""
    return run(name, loaded(name="", asked_input_len=None, asked_output_len=None, **load))


def sent(mean_in: float, mean_out: float, name: str = "dsr1-1k1k", n: int = 640) -> AuditedRun:
    """A run of so many requests with these mean lengths."""
    load = loaded(name="", asked_output_len=None, max_concurrency=64)
    totals: dict[str, Any] = {"total_input_tokens": mean_in * n, "total_output_tokens": mean_out * n}
    return AuditedRun(run(name, load, completed=n, **totals))


@loop_over(
    ("name", "lengths"),
    [
        ("1k1k", (1024.0, 1024.0)), ("dsr1_8k1k_fp8", (8192.0, 1024.0)), ("gpt-oss 1K/8K", (1024.0, 8192.0)),
        ("isl1024_osl8192", (1024.0, 8192.0)), ("ISL=1024, OSL=1024", (1024.0, 1024.0)),
        ("m 1024/1024", (1024.0, 1024.0)), ("m 8192x1024", (8192.0, 1024.0)), ("Qwen3-8B", None),
        ("Qwen3-32k", None), ("h100-2026-01-05", None), ("m-128x8", None),
    ],
)  # fmt: skip
def test_a_name_tells_the_lengths(name: str, lengths: tuple[float, float] | None) -> None:
    assert find_nominal_lengths(named(name)) == lengths


def test_lengths_that_were_asked_for_come_before_a_name() -> None:
    asked = run("1k1k", loaded(asked_input_len=512, asked_output_len=64))
    assert find_nominal_lengths(asked) == (512.0, 64.0)


@loop_over(
    ("case", "evidence"),
    [
        pytest.param(sent(921.4, 922.0),
            "921.4 / 922.0 tokens in / out, 90 % and 90 % of the 1024 / 1024 that it is named by: as lengths "
            "drawn between 0.8 and 1 of these, 10 % less work", id="nine tenths of both"),
        pytest.param(sent(7373.0, 921.0, "m 8k1k"), "7373.0 / 921.0 tokens", id="8k1k"),
        pytest.param(sent(1024.0, 1024.0), None, id="whole lengths"),
        pytest.param(sent(921.4, 1024.0), None, id="whole answers"),
        pytest.param(sent(1024.0, 922.0), None, id="whole prompts"),
        pytest.param(sent(906.0, 922.0), None, id="further off than chance"),
        pytest.param(sent(921.4, 922.0, n=40), None, id="too few requests"),
        pytest.param(sent(921.4, 922.0, "Qwen3-8B"), None, id="no name"),
    ],
)  # fmt: skip
def test_nine_tenths_are_known_by_both_means(case: AuditedRun, evidence: str | None) -> None:
    found = nine_tenths.find(case)
    assert (found or "").startswith(evidence or "")
    assert (found is None) is (evidence is None)


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
ALONE_LINE = "Maximum request concurrency:             1"
SGLANG = "Backend:                                 sglang-oai\nMax request concurrency:                 1"


def block(draft: str = "", itl: float = 5.25, load: str = ALONE_LINE) -> str:
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
        # its messages carry several tokens, and nothing is said
        (block(), Level.SUSPECT, "draft-not-stated"),
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


@loop_over(
    "content",
    [
        json.dumps({**FILE, "spec_decode_acceptance_length": 2.5, "spec_decode_acceptance_rate": 50.0}),
        json.dumps(LINE),
    ],
)
def test_files_state_it_too(content: str, tmp_path: Path) -> None:
    one = audited(tmp_path / "result", content)
    assert one.level is Level.VALID
    assert one.roofline == pytest.approx(0.86, abs=0.03)
