"""What an audit finds: in a run's own figures, among a page's runs, and against a machine and a model."""

from __future__ import annotations

import json
import os
from collections import Counter
from itertools import product
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import pytest
from msgspec.structs import replace

from builders.loops import loop_over, read_tables
from builders.published_runs import PUBLISHED, loaded, run
from builders.required import require
from loadgen.base.rule import Severity, Source
from loadgen.features.roofline import machines
from loadgen.features.roofline.estimate import estimate_ceiling
from loadgen.plan.prompt_texts import make_vllm_texts
from loadgen.plan.random_prompts import PromptShape
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
from loadgen.study.consistency import subject
from loadgen.study.consistency.subject import (
    PROMPTS,
    AuditedRun,
    Interval,
    find_usual,
    group_pages,
    recognise_workload,
)
from loadgen.study.importers.pasted.numbers import compute_each_ms, scale_figure
from loadgen.study.importers.result_sources import read_sources
from loadgen.study.run_summary import Reported
from loadgen.study.speed import speed_rows
from loadgen.verdict.verdict import DOUBTS, Level
from report.test_run_directory import made

TABLES = read_tables("audit")
THOR, H20, H100 = map(machines.find_machine, ("jetson-thor", "h20-96gb", "h100"))
CONFIG = {"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
          "head_dim": 128, "num_key_value_heads": 8, "intermediate_size": 12288,
          "vocab_size": 151936}  # fmt: skip
LEAST_MS = 31.1  # a token of Qwen3-8B-FP8 after 2048 on a Thor
OTHERS = [run("a"), run("b", median_ttft_ms=98.71), run("c", median_ttft_ms=98.72)]


def changed(name: str, changes: dict[str, Any]) -> Reported:
    """The healthy run with other figures, another client, and other values of its load."""
    return run(name, **{**changes, "load": loaded(**changes.get("load", {}))})


def find(one: Reported, *beside: Reported) -> dict[str, str]:
    """The evidence of each doubt of a run on a page with others."""
    findings = audit_runs([one, *beside], None, None)[0].findings
    return {each.rule.code: each.evidence for each in findings}


def grave(audited: RunFindings) -> tuple[str, ...]:
    return tuple(one.rule.code for one in audited.findings if one.rule.severity)


@loop_over(("code", "changes", "evidence"), TABLES["own"])
def test_a_run_s_own_figures_show_each_doubt(
    code: str, changes: dict[str, Any], evidence: str | None
) -> None:
    assert find(changed("m", changes)).get(code) == evidence


@loop_over("changes", [{}, {"max_output_tokens_per_s": -1.0}, {"request_rate": float("inf")}])
def test_of_a_healthy_run_only_the_p99_is_thin(changes: dict[str, Any]) -> None:
    assert set(find(run(**changes))) == {"thin-percentiles"}
    assert "nothing-measured" not in find(Reported("m", {}, Load(), "x"))


@loop_over(
    ("value", "count", "low", "high"),
    [
        (8.88, False, 8.87, 8.89),
        (23.0, False, 22.9, 23.1),  # 23.00 without its zeros
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


@loop_over(("code", "changes", "evidence"), TABLES["unlike"])
def test_what_is_unlike_the_others_of_a_page(code: str, changes: dict[str, Any], evidence: str) -> None:
    assert find(changed("d", changes), *OTHERS).get(code) == evidence


def test_runs_that_are_alike_are_let_be() -> None:
    for one in OTHERS:
        assert set(find(one, *(other for other in OTHERS if other is not one))) == {"thin-percentiles"}
    assert "duplicate" not in find(Reported("d", {"speed_tok_s": 5.5}, Load("high"), "x"), *OTHERS)
    uneven = [run(name, loaded(asked_output_len=None), total_output_tokens=n) for name, n in
              (("a", 2403), ("b", 2511), ("c", 2287))]  # fmt: skip
    assert all("answers-short" not in find(one, *(o for o in uneven if o is not one)) for one in uneven)


def test_of_two_nobody_is_the_odd_one() -> None:
    assert "requests-differ" not in find(run("d", loaded(requests=80), completed=80), OTHERS[0])
    for values, usual in (([1, 2], None), ([1, 1], None), ([1, 1, 2], 1), ([1, 1, 2, 2], None), ([], None)):
        assert find_usual(values) == usual


def test_another_page_is_nobodys_company() -> None:
    here = [replace(one, source=f"here.md:{line}") for line, one in enumerate(OTHERS)]
    there = replace(run("d", loaded(requests=80), completed=80), source="there.md:7", file="there.md")
    too = replace(run("e"), source="there.md:9", file="there.md")
    assert "requests-differ" not in find(there, too, *here)
    assert [len(one.runs) for one in group_pages([there, too, *here])] == [2, 2, 3, 3, 3]


# One at a time: 10 requests of 60 ms and 63 tokens of 5 ms, where the full load leaves 25.5 ms a prompt.
LOW: dict[str, Any] = {
    "completed": 10, "total_input_tokens": 5120, "total_output_tokens": 640,
    **dict.fromkeys(("request_throughput", "output_throughput", "total_token_throughput")),
    **{f"{rank}_{key}_ms": 5.01 for rank in ("mean", "median", "p99") for key in ("tpot", "itl")},
}  # fmt: skip


def low(ttft_ms: float, **figures: Any) -> Reported:
    ttft = {f"{rank}_ttft_ms": ttft_ms for rank in ("mean", "median", "p99")}
    load = loaded(name="low", requests=10, max_concurrency=1)
    return run("m", load, **{**LOW, **ttft, "duration": 3.16 + 0.01 * ttft_ms, **figures})


def seeded(one: Reported, seed: int) -> Reported:
    return replace(one, load=replace(one.load, seed=seed))


def digested(one: Reported, digest: str) -> Reported:
    return replace(one, plan_digest=digest)


SENT_BEFORE = (
    "TTFT 4.12 ms, where high leaves 26 ms for each prompt (6.2 times that): most likely sent before, or on "
    "another server"
)


@loop_over(
    ("one", "other", "evidence"),
    [
        (low(60.12), run(), None),  # what a full load leaves for it
        (low(13.12), run(), None),  # no mark, and half of it
        (low(4.12), run(), SENT_BEFORE),
        (low(4.12, total_input_tokens=10240), run(), None),  # other prompts
        (seeded(low(10.12), 0), seeded(run(), 0),
         "its prompts are those of high, by their seed; TTFT 10.12 ms, where high leaves 26 ms for each "
         "prompt (2.5 times that): a prefix cache hit"),
        (seeded(low(10.12), 0), seeded(run(), 1), None),
        (replace(seeded(low(10.12), 0), name="another"), seeded(run(), 0), None),
        (digested(low(10.12), "abc"), digested(run(), "abc"),
         "its prompts are those of high, by their digest; TTFT 10.12 ms, where high leaves 26 ms for each "
         "prompt (2.5 times that): a prefix cache hit"),
        (digested(low(10.12), "abc"), digested(run(), "def"), None),
    ],
)  # fmt: skip
def test_prompts_that_are_sent_again_are_the_cache_s(
    one: Reported, other: Reported, evidence: str | None
) -> None:
    assert find(one, other).get("warm-cache") == evidence


@loop_over(("name", "lengths"), TABLES["names"])
def test_a_name_tells_the_lengths(name: str, lengths: list[float] | None) -> None:
    named = run(name, loaded(name="", asked_input_len=None, asked_output_len=None))
    assert find_nominal_lengths(named) == (lengths and tuple(lengths))
    assert find_nominal_lengths(run(name, loaded(asked_input_len=512, asked_output_len=64))) == (512.0, 64.0)


@loop_over(("mean_in", "mean_out", "name", "requests", "evidence"), TABLES["nine_tenths"])
def test_nine_tenths_are_known_by_both_means(
    mean_in: float, mean_out: float, name: str, requests: int, evidence: str | None
) -> None:
    totals: dict[str, Any] = {
        "total_input_tokens": mean_in * requests, "total_output_tokens": mean_out * requests,
    }  # fmt: skip
    load = loaded(name="", asked_output_len=None, max_concurrency=64)
    found = nine_tenths.find(AuditedRun(run(name, load, completed=requests, **totals)))
    assert (found or "").startswith(evidence or "")
    assert (found is None) is (evidence is None)


def alone(tpot_ms: float, name: str = "Qwen3-8B-FP8", ttft_ms: float = 400.0, **figures: Any) -> Reported:
    figures = {
        "completed": 10, "total_input_tokens": 20480, "total_output_tokens": 1280, "mean_ttft_ms": ttft_ms,
        "mean_tpot_ms": tpot_ms, **figures,
    }  # fmt: skip
    return Reported(name, figures, Load("low", 10, 2048.0, 128.0, 128, 1), "p.md:1", told_by="vllm")


@loop_over(("times", "ttft_ms", "doubts", "level"), TABLES["held"])
def test_a_run_is_held_against_bus_and_peak(
    times: float, ttft_ms: float, doubts: list[str], level: str
) -> None:
    (audited,) = audit_runs([alone(LEAST_MS * times, ttft_ms=ttft_ms)], THOR, None)
    assert ([*grave(audited)], audited.level) == (doubts, level)


@loop_over(("itl", "ruled_out"), [({}, False), ({"mean_itl_ms": 8.88}, True)])
def test_speculation_is_ruled_out_only_if_messages_carry_one_token(
    itl: dict[str, Any], ruled_out: bool
) -> None:
    (audited,) = audit_runs([alone(8.88, **itl)], THOR, None)
    assert ("rules out speculative decoding" in audited.findings[0].evidence) is ruled_out


@loop_over(("figures", "level", "code"), TABLES["drafts"])
def test_a_run_is_judged_by_the_draft_that_it_states(figures: dict[str, Any], level: str, code: str) -> None:
    told: dict[str, Any] = {
        "completed": 80, "failed": 0, "duration": 22.96, "total_input_tokens": 81920,
        "total_output_tokens": 10240, "mean_ttft_ms": 20.1, "mean_tpot_ms": 2.1, "mean_itl_ms": 5.25,
    }  # fmt: skip
    load = Load("low", 80, 1024.0, 128.0, 128, 1)
    (audited,) = audit_runs([Reported("Qwen3-8B", told | figures, load, "f", told_by="vllm")], H100, None)
    assert (audited.level, [*grave(audited), ""][0]) == (level, code)
    assert audited.level is not Level.VALID or audited.roofline == pytest.approx(0.86, abs=0.03)


def test_a_runs_own_ceiling_is_kept_and_put_on_the_machine_that_is_given() -> None:
    own = estimate_ceiling("Qwen3-8B", H20)
    told = replace(alone(30.0), ceiling=own)
    as_told, moved = (audit_runs([told], machine, None)[0].ceiling for machine in (None, THOR))
    assert as_told == own
    assert moved == own.model_copy(update={"machine": THOR})


def test_an_unknown_model_is_asked_for_and_can_be_given(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG), "utf-8")
    one = alone(8.88, "mine-FP8")
    (unknown,) = audit_runs([one], THOR, None)
    assert (unknown.ceiling, grave(unknown)) == (None, ())
    assert "mine" in unknown.no_ceiling
    assert "--model-config, or --model NAME" in unknown.no_ceiling
    for given in (audit_runs([one], THOR, config), audit_runs([one], THOR, None, "Qwen3-8B")):
        assert grave(given[0]) == ("beyond-roofline",)
        assert round(require(given[0].ceiling).tpot_ms(1, 2112), 1) == LEAST_MS
    mixed = audit_runs([one, alone(8.88, "Qwen3-0.6B")], THOR, config)
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


def test_no_published_speed_is_impossible_and_only_transformers_is_slow() -> None:
    shipped = Path(speed_rows.__file__).parent / "published"
    findings = audit_runs(read_sources([str(shipped)]).reported, None, None)
    accused = [(one, name) for one in findings for name in grave(one)]
    assert len(findings) == 471
    assert all(one.ceiling is not None for one in findings)
    assert Counter((one.reported.engine, one.reported.load.name, name) for one, name in accused) == {
        ("Transformers", "input 1", "slow-kernel"): 9
    }
    assert max(one.roofline or 0.0 for one in findings) < 0.75


def test_the_desk_card_has_one_row_above_the_roofline() -> None:
    runs = read_sources([str(PUBLISHED / "rtx_pro_6000_speed.csv")]).reported
    findings = audit_runs(runs, machines.find_machine("rtx-pro-6000"), None)
    accused = [(one.reported.name, each) for one in findings for each in grave(one)]
    assert accused == [("GLM-4-9B-Chat-1M", "above-roofline")]
    assert all((one.roofline or 0.0) > 0.3 for one in findings)


MID, SEPTEMBER = "mid-2025", "september-2025"
LENGTHS = (128, 256, 512, 1024, 2048, 4096)


def count_input_tokens(client: str, input_len: int, requests: int) -> int:
    """The tokens of the first prompts of a client and length, by the table."""
    missing = subject._read_workloads()[subject._CLIENTS[client]][input_len]
    return subject._count_tokens(missing, input_len, requests)


@loop_over(("requests", "total", "input_len", "short", "client"), TABLES["seen"])
def test_a_total_that_was_seen_in_the_field_tells_its_length_and_client(
    requests: int, total: int, input_len: int, short: int, client: str
) -> None:
    found = require(recognise_workload(requests, total))
    assert (found.input_len, found.short, found.client) == (input_len, short, subject._CLIENTS[client])
    assert count_input_tokens(client, input_len, requests) == total


@loop_over(("requests", "total", "why"), TABLES["nobodys"])
def test_another_total_is_nobodys_mark(requests: int, total: int, why: str) -> None:
    assert recognise_workload(requests, total) is None, why


def test_a_smaller_run_has_the_first_prompts_of_a_greater_one() -> None:
    pairs = ((10, 20431), (100, 204169), (100, 204357))
    ten, hundred, other = (require(recognise_workload(*pair)) for pair in pairs)
    assert (ten.count_shared(hundred), hundred.count_shared(ten), ten.count_shared(other)) == (10, 10, 0)
    assert hundred.has_first(1, 2048)
    assert hundred.has_first(6, 6 * 2048 - 49)
    assert not hundred.has_first(6, 6 * 2048)
    assert not hundred.has_first(PROMPTS + 1, (PROMPTS + 1) * 2048)


def test_no_total_is_the_mark_of_two_workloads() -> None:
    seen: dict[tuple[int, int], tuple[str, int]] = {}
    for client, input_len, requests in product((MID, SEPTEMBER), LENGTHS, range(1, PROMPTS + 1)):
        total = count_input_tokens(client, input_len, requests)
        if requests * input_len - total < subject.LEAST_MISSING:
            continue
        assert seen.setdefault((requests, total), (client, input_len)) == (client, input_len)
    assert len(seen) > PROMPTS


@pytest.mark.parametrize(("input_len", "requests"), [(2048, 200), (1024, 100)])
def test_the_table_is_what_the_real_tokenizer_makes(input_len: int, requests: int) -> None:
    name = os.environ.get("QWEN_TOKENIZER")
    if not name:
        pytest.skip("QWEN_TOKENIZER does not name a Qwen tokenizer's directory")
    prompts = make_vllm_texts("text-vllm-0.9", PromptShape(requests, input_len, 128), name, 0)
    counted = prompts.input_lens.cumsum().tolist()
    assert counted == [count_input_tokens(MID, input_len, n) for n in range(1, requests + 1)]
