"""The answer: each checkpoint's values, what is taken under constraints, and what would change it."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders import made_runs
from builders.comparison_samples import HIGH, cell, cells
from builders.loops import loop_over, read_tables
from builders.made_answers import NOISE, answered, keep_campaign, made_quality, speeds, with_facts
from builders.made_limits import TTFT, limit_record
from loadgen.base.errors import UsageError
from loadgen.base.passages import render_markdown_passage, render_passage
from loadgen.facts.run_facts import ATTACHED, Energy, Launched, SensorSummary
from loadgen.figures.objectives import Standing, parse_objectives
from loadgen.host.machine_state import MachineState
from loadgen.report.load_identity import Load
from loadgen.server.engine_config import EngineConfig
from loadgen.settings.validation import ServerSettings
from loadgen.study.answer import answer
from loadgen.study.answer.answer import CheckpointAnswer, make_answer, read_scores
from loadgen.study.answer.answer_settings import AnswerRequest
from loadgen.study.answer.recommendation import (
    Candidate,
    Value,
    judge_constraints,
    judge_reported,
    make_load_contest,
)
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


@loop_over(("repeats", "slo", "holds", "evidence"), TABLES["objectives"])
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


_GIB = 1 << 30
RATED = replace(HIGH, name="rated", request_rate_per_s=4.0, max_concurrency=None)
HOT = (1.0, 0.9, 0.75, 0.6, 0.5)  # a machine that gets hotter, repeat by repeat
NEAR = (1.0, 1.001, 0.999, 1.002, 0.998)


def drifting(name: str, speed: float, repeats: Sequence[int], load: Load = HIGH) -> list[Reported]:
    """A row's cells of some repeats of a machine that gets hotter; of a rated load the E2EL follows."""
    made = cells(name, [100 * speed * HOT[at] * NEAR[at] for at in range(5)], load)
    e2el = {"mean_e2el_ms": 1e5}
    told = [replace(each, figures={**each.figures, **e2el}) for each in made]
    return [
        replace(each, figures={**each.figures, "mean_e2el_ms": 1e5 / speed / HOT[at] / NEAR[at]})
        for at, each in enumerate(told)
        if at in repeats
    ]


def shorter(name: str, share: float, speed: float = 1.0) -> list[Reported]:
    """Five cells under a rate whose answers are `share` as long, each token as fast as `speed` says."""
    tokens = round(12_800 * share)
    made = cells(name, [100 * speed * near for near in NEAR], RATED)
    figures = [
        {"total_output_tokens": tokens, "mean_e2el_ms": 1e3 * share / speed / near, "output_throughput": 51.2}
        for near in NEAR
    ]
    return [replace(each, figures={**each.figures, **own}) for each, own in zip(made, figures, strict=True)]


def others(
    name: str,
    speed: float,
    requests: int = 100,
    lost: int = 0,
    counted: bool = True,
    repeats: int = 4,
    **ranks: float,
) -> list[Reported]:
    """Results of another client: `ranks` are E2EL in ms by percentile, as of speed 1."""
    answered_ = requests - lost
    counts = {"completed": answered_, "total_output_tokens": 128 * answered_}
    counts |= {"total_input_tokens": 2048 * answered_, **({"failed": lost} if counted else {})}
    return [
        replace(
            each,
            told_by="vllm",
            load=replace(HIGH, requests=requests),
            figures={
                **each.figures,
                **counts,
                **{f"{rank}_e2el_ms": value / speed / near for rank, value in ranks.items()},
            },
        )
        for each, near in zip(
            cells(name, [100 * speed * near for near in NEAR[:repeats]]), NEAR, strict=False
        )
    ]


def sized(
    name: str, speed: float, gib: float, engine: str = "llama.cpp 1", **figures: float
) -> list[Reported]:
    """Runs of an engine, as llama.cpp, that takes the memory that it needs."""
    taken: dict[str, Any] = {"memory_bytes": round(gib * _GIB), "weight_bytes": _GIB, "engine": engine}
    made = cells(name, [100 * speed * near for near in NEAR[:3]])
    return [replace(each, figures={**each.figures, **figures}, **taken) for each in made]


def quick(level: str = "", input_len: float = 2048.0, **means: float) -> list[Reported]:
    made = speeds(replace(HIGH, input_len=input_len), NEAR[:3], **means)
    return [replace(each, level=level) for each in made]


NAMED = {"ALL": range(5), "RATED": RATED}
MAKERS: dict[str, Callable[..., list[Reported]]] = {
    "cells": cells, "drifting": drifting, "others": others, "quick": quick, "shorter": shorter,
    "sized": sized,
}  # fmt: skip


def make_runs(maker: str, *given: Any) -> list[Reported]:
    """Make a group of runs of a row: the maker's name, its arguments, and at the end those with names."""
    keys = given[-1] if given and isinstance(given[-1], dict) else {}
    told = given[:-1] if keys else given
    return MAKERS[maker](*(NAMED[each] if each in ("ALL", "RATED") else each for each in told), **keys)


@pytest.mark.parametrize("row", [pytest.param(row[1:], id=row[0]) for row in TABLES["choices"]])
def test_a_choice_is_true(tmp_path: Path, row: Any) -> None:
    """Runs, the right choice with its names, and words that must, or must not, be there."""
    groups, choice, names, more = row
    runs = [run for group in groups for run in make_runs(*group)]
    qualities = {name: made_quality(*given) for name, given in more.get("qualities", {}).items()}
    asked, first = more.get("asked", {}), runs[0].name
    keep_campaign(tmp_path, qualities, baseline=first, quality={"reference": first})
    (found,) = answered(tmp_path, runs, **asked).recommendations
    lines = "\n".join([found.words, *found.remarks])
    assert lines == "\n".join(more.get("lines", [found.words, *found.remarks]))
    assert (found.choice, [*found.names]) == (choice, names), lines
    assert [words for words in more.get("said", []) if words not in lines] == [], lines
    assert [words for words in more.get("unsaid", []) if words in lines] == [], lines
    assert re.search(r",\s{2,}|, as fast|by \(|by ,|nan", lines) is None, lines
    for line in [found.words, *found.remarks]:
        if (way := re.match(r"with (--.*?): (.*?)(?:, [\d.]+ ×| \()", line)) is not None:
            words = shlex.split(way[1])
            typed: dict[str, Any] = {
                flag[2:].replace("-", "_"): value for flag, value in zip(words[::2], words[1::2], strict=True)
            }
            typed |= {"max_kl": float(typed["max_kl"])} if "max_kl" in typed else {}
            (again,) = answered(tmp_path, runs, **{**asked, **typed}).recommendations
            assert (again.choice, " or ".join(again.names)) == ("take", way[2]), line


def reported(requests: int, lost: int = 0, **ranks: float) -> Reported:
    """A result of another client: `requests` sent, `lost` of them failed, E2EL in ms by percentile."""
    figures: dict[str, Any] = {f"{rank}_e2el_ms": ms for rank, ms in ranks.items()}
    figures |= {"completed": requests - lost, "failed": lost}
    return Reported("m", figures, HIGH, "m.json")


@loop_over(("slo", "of", "standing"), TABLES["of_others"])
def test_results_of_others_are_judged_by_all_that_was_sent(slo: str, of: list[Any], standing: str) -> None:
    (objective,) = parse_objectives(f"e2el {slo}")
    runs = [reported(requests, lost, **ranks) for requests, lost, ranks in of]
    assert judge_reported(objective, runs)[0] is Standing(standing)


def test_a_bound_of_others_results_holds_as_often_as_it_says() -> None:
    """400 sets of runs whose true P95 is just beyond the limit: `meets` is wrong in 3 % of them at most."""
    random = np.random.default_rng(3)
    limit = 100 * math.exp(0.5 * 1.6448536)  # of a log-normal latency
    (objective,) = parse_objectives(f"e2el p95 < {limit * 0.999:.6f}ms")
    wrong = 0
    for _ in range(400):
        drawn = 100 * np.exp(0.5 * random.standard_normal((int(random.integers(2, 9)), 100)))
        ranks = np.quantile(drawn, [0.95, 0.99], axis=1)
        made = [reported(100, p95=float(p95), p99=float(p99)) for p95, p99 in ranks.T]
        wrong += judge_reported(objective, made)[0] is Standing.MEETS
    assert wrong <= 12


def simulate_choice(random: np.random.Generator, most: int) -> tuple[str, ...]:
    """Draw a choice of up to `most` rows with missing cells, drift and noise; return what is false of it.

    Up to half of a row's cells are missing, always the slowest or the fastest ones; speeds are within 6 %,
    some equal. The answer is of runs outside a campaign's directory.
    """
    repeats, names = int(random.integers(4, 9)), "ABCDEFGH"[: int(random.integers(2, most + 1))]
    truth = {name: 100 * float(random.choice([1.0, 1.0, 0.97, 0.94])) for name in names}
    drift, spread = float(random.choice([0.0, 0.03, 0.1])), float(random.choice([0.002, 0.01, 0.03]))
    made = []
    for name, speed in truth.items():
        values = [
            speed * math.exp(-drift * at + spread * float(random.standard_normal())) for at in range(repeats)
        ]
        kept = int(random.integers(repeats // 2, repeats + 1))
        chosen = range(kept) if random.random() < 0.5 else range(repeats - kept, repeats)
        made += [each for at, each in enumerate(cells(name, values)) if at in chosen]
    ask = ComparisonOptions()
    found = make_answer(compare_runs(made, ask), [], ask, AnswerRequest(), True)
    assert found is not None
    (advice,) = found.recommendations
    if advice.choice != "take":
        return ()
    best = max(truth.values())
    wrong = [name for name in advice.names if truth[name] < best * (1 - ask.equivalence)]
    if len(advice.names) == 1 and truth[advice.names[0]] < best:
        wrong.append("the fastest")
    return tuple(wrong)


def test_what_is_taken_is_truly_best() -> None:
    """60 choices: 5 % at most are of a checkpoint that is not the fastest, or not as fast as is said."""
    random = np.random.default_rng(7)
    assert sum(bool(simulate_choice(random, 4)) for _ in range(60)) <= 3


@pytest.mark.long
@pytest.mark.parametrize("most", [2, 4, 8])
def test_what_is_taken_is_truly_best_as_often_as_it_says(most: int) -> None:
    random = np.random.default_rng(most)
    assert sum(bool(simulate_choice(random, most)) for _ in range(600)) <= 30
