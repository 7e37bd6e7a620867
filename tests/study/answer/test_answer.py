"""The answer: each checkpoint's values, which rows are dominated, and what is written of it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.comparison_samples import HIGH
from builders.loops import loop_over
from builders.made_answers import answered, keep_campaign, made_quality, speeds, with_facts
from loadgen.base.errors import UsageError
from loadgen.base.passages import render_markdown_passage, render_passage
from loadgen.facts.run_facts import Launched
from loadgen.facts.sensor_facts import Energy, SensorSummary
from loadgen.host.machine_state import MachineState
from loadgen.server.engine_config import EngineConfig
from loadgen.settings.validation import ServerSettings
from loadgen.study.answer import answer
from loadgen.study.answer.answer import CheckpointAnswer, make_answer
from loadgen.study.answer.answer_settings import AnswerRequest, parse_size, read_scores
from loadgen.study.answer.contest import Value
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.model import ComparisonOptions

_GIB = 2**30


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


def test_a_table_of_many_columns_is_in_parts_of_80_columns(tmp_path: Path) -> None:
    names = [f"A-rather-long-checkpoint-name-{turn}" for turn in range(2)]
    keep_campaign(tmp_path, {}, baseline=names[0])
    loads = [HIGH, *(replace(HIGH, name=f"load-{turn}", requests=101 + turn) for turn in range(5))]
    runs = [run for load in loads for run in speeds(load, **{names[0]: 100.0, names[1]: 150.0})]
    text = render_passage(answer.make_passage(answered(tmp_path, runs, price_per_hour=2.0)))
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines().count(names[1]) > 1


@loop_over(
    ("text", "size"),
    [("16GiB", 16 * _GIB), ("16", 16 * _GIB), ("24 GB", 24e9), ("512MiB", _GIB / 2), ("1.5gib", 1.5 * _GIB)],
)
def test_a_size_of_memory(text: str, size: float) -> None:
    assert parse_size(text) == size


@loop_over(("given", "said"), [
    ({"fits": "much"}, "--fits 'much': give a size of memory, as 16GiB"),
    ({"fits": "0GiB"}, "--fits '0GiB': give a size of memory"),
    ({"slo": "fast"}, "--slo 'fast' is not an objective"),
    ({"max_kl": -1.0}, "--max-kl -1.0: give a number from 1e-06 to 100"),
    ({"price_per_hour": "two"}, "--price-per-hour two: give a number from 1e-06 to 1000000"),
    ({"lm_eval": ("fp8",)}, "--lm-eval 'fp8': write CHECKPOINT=FILE"),
])  # fmt: skip
def test_a_wrong_setting_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match="--") as caught:
        AnswerRequest.read(given)
    assert said in str(caught.value)


# As lm-evaluation-harness 0.4 writes it, most keys left out.
RESULTS: dict[str, Any] = {
    "results": {
        "mmlu": {"acc,none": 0.5, "acc_stderr,none": 0.01, "alias": "mmlu"},
        "mmlu_law": {"acc,none": 0.4, "acc_stderr,none": 0.02, "alias": " - law"},
        "gsm8k": {
            "alias": "gsm8k", "exact_match,strict-match": 0.75, "exact_match_stderr,strict-match": 0.02,
            "exact_match,flexible-extract": 0.8, "exact_match_stderr,flexible-extract": 0.02,
        },
        "wikitext": {"alias": "wikitext", "word_perplexity,none": 9.5, "word_perplexity_stderr,none": "N/A"},
        "group": {"alias": "group"},
        "member": {"alias": " - member", "f1": 0.25, "f1_stderr": 0.0},
    },
    "group_subtasks": {"mmlu": ["mmlu_law"], "gsm8k": [], "group": ["member"]},
    "lm_eval_version": "0.4.9",
}  # fmt: skip


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
