"""The answer: each checkpoint's values, what is recommended under constraints, and what would change it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.comparison_samples import HIGH, cell, cells
from builders.loops import loop_over, read_tables
from builders.made_answers import NOISE, answered, keep_campaign, made_quality, speeds, with_facts
from builders.made_limits import TTFT, limit_record
from loadgen.base.errors import UsageError
from loadgen.base.passages import render_markdown_passage, render_passage
from loadgen.facts.run_facts import ATTACHED, Launched
from loadgen.facts.sensor_facts import Energy, SensorSummary
from loadgen.host.machine_state import MachineState
from loadgen.server.engine_config import EngineConfig
from loadgen.settings.validation import ServerSettings
from loadgen.study.answer import answer
from loadgen.study.answer.answer import CheckpointAnswer, make_answer, read_scores
from loadgen.study.answer.answer_settings import AnswerRequest
from loadgen.study.answer.recommendation import Candidate, Value, judge_constraints, make_load_contest
from loadgen.study.compare.comparability import explain_other_quantity, list_one_servers
from loadgen.study.compare.comparison import BROKEN, compare_runs
from loadgen.study.compare.model import ComparedRow, ComparisonOptions
from loadgen.study.gate.gate_record import parse_gate_metrics
from loadgen.study.gate.gate_sides import group_sides, list_reasons, list_remarks
from loadgen.study.importers.clients.loadgen_runs import StoredLimit
from loadgen.study.limit_record import LimitEstimate
from loadgen.study.run_summary import Reported

TABLES = read_tables("answer")


def values(found: CheckpointAnswer, key: str) -> list[Value | str]:
    return [row.values[key] for row in found.rows]


def test_a_state_that_differs_is_named(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {})
    runs = speeds(bf16=100, fp8=190, int4=230)
    cool, warm = MachineState(temperature_c={"GPU": 40.0}), MachineState(temperature_c={"GPU": 60.0})
    stated = [*with_facts(runs[:6], state_before=cool), *with_facts(runs[6:], state_before=warm)]
    found = answered(tmp_path, stated)
    assert [value.words for value in values(found, "state") if isinstance(value, Value)] == [
        "baseline", "equal", "hottest sensor 60 °C, bf16 40 °C",
    ]  # fmt: skip


def test_values_are_of_each_checkpoint_s_runs(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {})
    started: dict[str, Any] = {"how": "vllm", "command": [], "environment": {}, "settings": ServerSettings()}
    launched = Launched(**started, ready_s=42.0, owned="ours", first_token_s=43.5)
    energy = Energy(joules=500.0, mean_w=50.0, source="a meter")
    runs = with_facts(
        speeds(bf16=100, fp8=200),
        as_run=EngineConfig(kv_capacity_tokens=40_000, max_model_len=4096),
        launched=launched,
        sensed=SensorSummary(duration_s=10, period_s=1, samples=10, cpu_ms_per_sample=0, energy=energy),
    )
    found = answered(tmp_path, runs, price_per_hour=3.6)
    known = {
        key: [round(value.mean, 6) for value in values(found, key) if isinstance(value, Value)]
        for key in ("kv_tokens", "context", "ready_s", "first_token_s", "joules_per_request", "output_price")
    }
    assert known == {
        "kv_tokens": [40_000] * 2,
        "context": [4096] * 2,  # 40,000 / 8 at a time would be 5,000
        "ready_s": [42] * 2,
        "first_token_s": [43.5] * 2,
        "joules_per_request": [5] * 2,
        "output_price": [10, 5],
    }
    assert "memory" not in [column.key for column in found.columns]


def test_what_is_worse_in_all_objectives_is_marked(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {"fp8": made_quality(0.05), "int4": made_quality(0.2)})
    found = answered(tmp_path, speeds(bf16=100, fp8=190, int4=80))
    assert [row.dominated_by for row in found.rows] == [(), (), ("bf16", "fp8")]
    names = [row[0] for row in answer.make_answer_table(found).body]
    assert names == ["bf16", "fp8", "int4 †"]
    faster = answered(tmp_path, speeds(bf16=100, fp8=190, int4=300))
    assert [row.dominated_by for row in faster.rows] == [(), (), ()]


def test_what_is_not_known_is_a_dash_with_the_reason(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {"fp8": made_quality(0.05), "gguf": made_quality(None)})
    found = answered(tmp_path, speeds(bf16=100, fp8=190, gguf=120))
    body = answer.make_answer_table(found).body
    assert [row[2] for row in body] == ["reference", "0.050 ±0.010", "–"]
    notes = list(answer.list_notes(found))
    assert "– KL, gguf: the vocabularies differ" in notes


def test_runs_outside_a_campaign_have_an_answer_if_asked() -> None:
    ask, runs = ComparisonOptions(), speeds(bf16=100, fp8=190)
    tables = compare_runs(runs, ask)
    assert make_answer(tables, [], ask, AnswerRequest()) is None
    found = make_answer(tables, [], ask, AnswerRequest(price_per_hour=1.0))
    assert found is not None
    assert found.baseline == "bf16"
    alone = compare_runs(speeds(bf16=100), ask)
    assert make_answer(alone, [], ask, AnswerRequest(price_per_hour=1.0)) is None


def test_every_form_has_the_answer(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {"fp8": made_quality(0.05)})
    found = answered(tmp_path, speeds(bf16=100, fp8=190), price_per_hour=2.0)
    text = render_passage(answer.make_passage(found))
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("What to take\n====")
    assert "take fp8: the fastest, 1.90 × as fast as bf16" in text
    assert "| fp8 | 190.0 ±4.7 |" in render_markdown_passage(answer.make_passage(found))
    rows = list(csv.DictReader(io.StringIO(answer.render_answer_csv(found))))
    assert [(row["checkpoint"], row["kl"], row["taken"]) for row in rows] == [
        ("bf16", "reference", ""), ("fp8", "0.05", "high-load"),
    ]  # fmt: skip
    told = answer.encode_answer(found)
    assert told["rows"][1]["values"]["kl"] == {"mean": 0.05, "low": 0.04, "high": pytest.approx(0.06)}
    assert told["rows"][1]["why"] == {}
    assert told["recommendations"][0]["choice"] == "take"


@loop_over(("given", "said"), TABLES["refused"])
def test_a_wrong_setting_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match="--") as caught:
        AnswerRequest.read(given)
    assert said in str(caught.value)


# As lm-evaluation-harness 0.4 writes it, most keys left out.
RESULTS: dict[str, Any] = TABLES["lm_eval"]


def test_the_first_metric_of_each_task_is_read(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for stamp, contents in (("2026-01-01", {"results": {}}), ("2026-01-02", RESULTS)):
        (tmp_path / "model" / f"results_{stamp}T00-00-00.json").write_text(json.dumps(contents), "utf-8")
    scores = read_scores(str(tmp_path))
    assert list(scores) == ["mmlu acc", "gsm8k exact_match", "wikitext word_perplexity", "member f1"]
    assert scores["gsm8k exact_match"].mean == 0.75
    assert scores["gsm8k exact_match"].half == pytest.approx(1.96 * 0.02, rel=1e-4)
    assert scores["wikitext word_perplexity"].half != scores["wikitext word_perplexity"].half


@loop_over(("text", "said"), [
    ("{", "is not a results_*.json of lm-evaluation-harness"),
    ("[]", "is not a results_*.json of lm-evaluation-harness"),
    ('{"results": {"a": {"alias": "a"}, "b": 5}}', "no task has a score"),
])  # fmt: skip
def test_what_has_no_scores_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "results_1.json").write_text(text, "utf-8")
    with pytest.raises(UsageError, match="lm-evaluation-harness") as caught:
        read_scores(str(tmp_path / "results_1.json"))
    assert said in str(caught.value)


def test_scores_are_columns_of_the_answer(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {}, answer={"lm_eval": {"bf16": str(tmp_path / "gone.json")}})
    file = tmp_path / "results_1.json"
    file.write_text(json.dumps({"results": {"gsm8k": RESULTS["results"]["gsm8k"]}}), "utf-8")
    found = answered(tmp_path, speeds(bf16=100, fp8=150), lm_eval={"fp8": str(file)})
    assert [row[-1] for row in answer.make_answer_table(found).body] == ["–", "0.750 ±0.039"]
    unscored = answered(tmp_path, speeds(bf16=100, fp8=150))
    assert unscored.columns[-1].key == "speed_1"
    assert list(answer.list_notes(unscored))[-1].startswith(f"no scores of bf16: {tmp_path}/gone.json")
    with pytest.raises(UsageError, match="--lm-eval fp9: no such checkpoint; there are bf16, fp8"):
        answered(tmp_path, speeds(bf16=100, fp8=150), lm_eval={"fp9": str(file)})
    with pytest.raises(UsageError, match="gone"):
        answered(tmp_path, speeds(bf16=100, fp8=150), lm_eval={"fp8": str(tmp_path / "gone2.json")})


QUALITIES = {"fp8": made_quality(0.02, 0.002), "awq": made_quality(0.06, 0.02), "int4": made_quality(0.11)}
SPEEDS = {"bf16": 100.0, "fp8": 150.0, "awq": 170.0, "int4": 210.0}
OF_SIZE = {"bf16": 16, "fp8": 9, "awq": 6, "int4": 5}


def sized() -> list[Reported]:
    """Runs of llama.cpp, which takes the memory that it needs, with a P95 of TPOT."""
    return [
        replace(
            run,
            engine="llama.cpp 1",
            memory_bytes=OF_SIZE[run.name] << 30,
            figures={**run.figures, "p95_tpot_ms": 6000 / SPEEDS[run.name]},
        )
        for run in speeds(**SPEEDS)
    ]


@loop_over(("asked", "lines"), TABLES["recommendations"])
def test_a_recommendation(tmp_path: Path, asked: dict[str, Any], lines: list[str]) -> None:
    keep_campaign(tmp_path, QUALITIES)
    (found,) = answered(tmp_path, sized(), **asked).recommendations
    assert [found.words, *found.remarks] == lines


def test_each_load_has_a_recommendation_of_its_own_with_its_price(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {})
    low = replace(HIGH, name="low-load", requests=10, max_concurrency=1)
    runs = [*speeds(bf16=100, fp8=150), *speeds(low, bf16=30, fp8=20)]
    found = answered(tmp_path, runs, price_per_hour=3.6)
    assert [each.names for each in found.recommendations] == [("fp8",), ("bf16",)]
    assert [each.words.partition("; ")[2] for each in found.recommendations] == [
        "a million output tokens cost 6.67 at the load high-load",
        "a million output tokens cost 33.3 at the load low-load",
    ]


ARMS: dict[str, dict[str, Any]] = {
    "plain": {"launch": "vllm"},
    "fp8-kv": {"launch": "vllm", "memory_fraction": 0.9, "server_args": "--async-scheduling"},
    "eager": {"launch": "vllm", "enforce_eager": True, "server_env": {"A": "b"}},
}


@loop_over(("fastest", "named"), [
    ("fp8-kv", "--memory-fraction=0.9 --server-args=--async-scheduling, no --enforce-eager, no --server-env"),
    ("eager", "--enforce-eager --server-env='{\"A\": \"b\"}', no --memory-fraction, no --server-args"),
    ("plain", "no --memory-fraction, no --server-args, no --enforce-eager, no --server-env"),
])  # fmt: skip
def test_of_one_checkpoint_the_flags_are_taken(tmp_path: Path, fastest: str, named: str) -> None:
    arms = [{"checkpoint": "m", "server": name, "flags": flags} for name, flags in ARMS.items()]
    keep_campaign(tmp_path, {}, arms=arms, baseline="")
    means = {name: 200.0 if name == fastest else 90.0 + at for at, name in enumerate(ARMS)}
    runs = [
        run
        for name, mean in means.items()
        for run in cells("m", [mean * each for each in NOISE], server=name)
    ]
    (found,) = answered(tmp_path, runs).recommendations
    assert found.words.startswith(f"take m on {fastest} ({named}): the fastest, ")


def test_broken_answers_are_not_recommended() -> None:
    (table,) = compare_runs(speeds(bf16=100, fp8=150), ComparisonOptions())
    marked = tuple(replace(line, broken=f"{BROKEN} the answers repeat") for line in table.lines)
    contest = make_load_contest(replace(table, lines=marked), ComparisonOptions())
    (judged,) = judge_constraints(Candidate("fp8", ()), contest, AnswerRequest())
    assert (judged.holds, judged.evidence) == (None, f"{BROKEN} the answers repeat")


@loop_over(("repeats", "slo", "holds", "evidence"), [
    (3, "e2el p95 < 60s", True, "e2el p95 is "),
    (3, "e2el p95 < 1ms", False, "e2el p95 is "),
    (1, "e2el p95 < 60s", None, "of too few requests"),
    (3, "e2el p99.9 < 60s", None, "of too few requests"),
    (3, "tps_user p10 > 1", True, "tps_user p10 is "),
    (3, "tps_user p10 > 1e6", False, "tok/s"),
    (1, "tps_user p5 > 1", None, "of too few requests"),
])  # fmt: skip
def test_objectives_are_judged_by_the_requests_of_all_repeats(
    repeats: int, slo: str, holds: bool | None, evidence: str
) -> None:
    runs = [made_runs.reported(made_runs.run(40, seed=seed, speed=1.0)) for seed in range(repeats)]
    (table,) = compare_runs(speeds(bf16=100, fp8=150), ComparisonOptions())
    contest = make_load_contest(table, ComparisonOptions())
    (judged,) = judge_constraints(
        Candidate("m", tuple(runs)), contest, AnswerRequest.read({"slo": slo, "fits": None})
    )
    assert judged.holds is holds
    assert evidence in judged.evidence


def searched(name: str, value: float | None, low: float, high: float) -> StoredLimit:
    """A search of one cell; the run at its highest passing load has the name of that load's directory."""
    place = Path(f"cells/{name}")
    found = None if value is None else LimitEstimate(value=value, low=low, high=high)
    record = limit_record(name=name, limit=found)
    (run, *_) = cells(name, [10 * low])
    runs = tuple(replace(run, source=str(place / each.directory), cell=cell(name, 0)) for each in record.runs)
    return StoredLimit(place, record, runs)


def test_searches_rank_by_their_limits(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {"fp8": made_quality(0.02, 0.002)})
    searches = [searched("bf16", 10, 9.5, 10.5), searched("fp8", 18, 17.1, 19)]
    found = answered(tmp_path, [], searches, slo=TTFT, price_per_hour=3.6)
    keys = [column.key for column in found.columns]
    assert keys == ["speed_1", "throughput", "kl", "agreement", "output_price"]
    (recommended,) = found.recommendations
    cost = "a million output tokens cost 5.85 at its limit, 18 req/s"
    fastest = "take fp8: the fastest within ttft p99 < 500 ms, 1.8 × the req/s of bf16"
    assert recommended.words == f"{fastest}; {cost}"


def test_a_search_without_a_limit_leaves_it_undecided(tmp_path: Path) -> None:
    keep_campaign(tmp_path, {"fp8": made_quality(0.02, 0.002)})
    one = answered(tmp_path, [], [searched("bf16", 10, 9.5, 10.5), searched("fp8", None, 17.1, 19)])
    (recommended,) = one.recommendations
    assert [recommended.words, *recommended.remarks] == [
        "undecided: bf16 has the highest limit found, but others have none",
        "not ranked: fp8 (limit: at least 9.51 requests/s)",
    ]
    none = answered(tmp_path, [], [searched("bf16", None, 9.5, 10.5), searched("fp8", None, 17.1, 19)])
    assert [none.recommendations[0].words, *none.recommendations[0].remarks] == [
        "undecided: bf16 (limit: at least 9.51 requests/s), fp8 (limit: at least 9.51 requests/s)"
    ]


def answers(tokens: Sequence[int], failed: int = 0, **figures: float) -> list[Reported]:
    """Results of another client, 100 requests each, whose answers have so many tokens in the mean."""
    return [
        replace(
            each,
            told_by="vllm",
            figures={
                **each.figures,
                "completed": 100 - failed,
                "failed": failed,
                "total_output_tokens": (100 - failed) * mean,
                "total_input_tokens": (100 - failed) * 2048,
                "p95_e2el_ms": 1e3,
                **figures,
            },
        )
        for each, mean in zip(cells("m", [100.0 + at for at in range(len(tokens))]), tokens, strict=True)
    ]


@loop_over(("key", "tokens", "failed", "why"), [
    ("mean_e2el_ms", [128] * 3, 0, ""),
    ("mean_e2el_ms", [122] * 3, 0, "122 tokens per response, baseline 128"),
    ("p95_e2el_ms", [122] * 3, 0, "122 tokens per response"),
    ("request_throughput", [122] * 3, 0, "is of whole outputs"),
    ("mean_e2el_ms", [122], 0, "122 tokens per response"),
    ("mean_e2el_ms", [110, 130, 136], 0, ""),  # they vary by as much from run to run
    ("output_throughput", [122] * 3, 0, ""),
    ("mean_tpot_ms", [122] * 3, 0, ""),
    ("p95_e2el_ms", [128] * 3, 5, ""),
    ("p95_e2el_ms", [128] * 3, 6, "6 of 100 requests failed, more than p95_e2el_ms leaves out"),
    ("p99_ttft_ms", [128] * 3, 2, "2 of 100 requests failed"),
    ("median_e2el_ms", [128] * 3, 9, ""),
    ("mean_ttft_ms", [128] * 3, 9, ""),
])  # fmt: skip
def test_a_figure_that_is_another_quantity_has_no_verdict(
    key: str, tokens: list[int], failed: int, why: str
) -> None:
    own, alike = answers(tokens, failed), answers([128] * 3)
    for sides in ((own, alike), (alike, own)):
        assert bool(explain_other_quantity(key, *sides)) is bool(why)
    assert why in explain_other_quantity(key, own, alike)


def test_a_gate_names_failures_and_refuses_a_percentile_without_them() -> None:
    (sides,) = group_sides(answers([128] * 4, failed=9), answers([128] * 4))
    assert "new: 36 of 400 requests failed" in list_remarks([sides])
    (reason,) = list_reasons([sides], parse_gate_metrics(["e2el_p95"]), allows_state=True)
    assert reason == "e2el_p95: 9 of 100 requests failed, more than p95_e2el_ms leaves out"
    assert list_reasons([sides], parse_gate_metrics(["tok/s"]), allows_state=True) == []


def test_rows_that_one_running_server_answered_are_named() -> None:
    made = with_facts(speeds(HIGH, (1.0, 1.01), A=100, B=101))
    attached = [
        replace(run, cell=run.cell.model_copy(update={"start": ATTACHED}))
        for run in made
        if run.cell is not None
    ]
    rows = [ComparedRow("A", tuple(attached[:2])), ComparedRow("B", tuple(attached[2:]))]
    server = made_runs.run(requests=2).facts.server
    assert list_one_servers(rows) == [f"A and B are one: {server.model} at {server.url} answered all of them"]
    assert list_one_servers([ComparedRow("A", tuple(made[:2])), ComparedRow("B", tuple(made[2:]))]) == []
