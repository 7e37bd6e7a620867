"""Limits, sweeps and cancelled requests on a real vLLM: the deeper model serves fewer users."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from engines import place
from engines.clients import loadgen, measured, read_json, read_run, write_campaign
from engines.leftovers import until_nothing_is_left
from engines.running import VLLM_ON_CPU, Engine
from loadgen.study.limit_record import LimitRecord
from loadgen.study.sweep_record import SweepRecord, read_points

pytestmark = pytest.mark.engine

_ON_CPU = "--dtype bfloat16 --max-model-len 1024 --enforce-eager"
_LAYERS = (16, 32)
_LIMIT_S = 900.0
_WITHIN = 0.2  # how near the limit a search ends
_ATTEMPTS = 3  # a shared machine may take its CPUs away in mid-search: then there is rightly no verdict
_PROFILE = "input_len = 64\noutput_len = 16\nnum_prompts = 50\nnum_warmups = 8"
# The server answers four at a time, so that latency grows in proportion to the number of users beyond that.
_CAMPAIGN = f"""repeats = 1
seed = 7
[limit]
slo = "e2el p90 < 1s"
over = "concurrency"
start = 8
within = {_WITHIN}
budget_s = 75
max_runs = 8
min_duration_s = 4"""


@pytest.mark.alone
def test_twice_the_layers_lower_the_limit_and_the_verdict_says_so(
    engines_python: Path, tmp_path: Path
) -> None:
    models = {f"{layers} layers": place.tiny_model(engines_python, layers) for layers in _LAYERS}
    for attempt in range(_ATTEMPTS):
        shallow, deep = _searched(tmp_path / str(attempt), engines_python, models)
        assert (shallow["name"], deep["name"]) == tuple(models)
        if deep["effect"]["call"] not in ("undecided", "no verdict"):
            break
    assert deep["effect"]["call"] == "fewer"
    assert deep["limit"]["value"] < shallow["limit"]["value"]
    assert deep["effect"]["ratio"] < 0.9


def _searched(directory: Path, python: Path, models: dict[str, Path]) -> list[dict[str, Any]]:
    """The rows of a campaign of searches, as it has printed them."""
    directory.mkdir()
    launch = ("vllm", python, f"{_ON_CPU} --max-num-seqs 4")
    write_campaign(directory / "limits.toml", _CAMPAIGN, launch, models, _PROFILE)
    words = ["limits.toml", "--allow-launch"]
    finished = measured(words, directory, "campaign", more=VLLM_ON_CPU, limit_s=_LIMIT_S)
    until_nothing_is_left(*map(str, models.values()))
    (runs,) = (directory / "runs").glob("*-limits")
    for path in runs.glob("cells/*/limit.json"):
        record = LimitRecord.model_validate_json(path.read_text("utf-8"))
        assert len(record.runs) <= 8
        if (limit := record.limit) is not None:
            ends = limit.low, limit.value, limit.high
            assert list(filter(None, ends)) == sorted(filter(None, ends))
    compared = measured([str(runs), "--json"], directory, "compare")
    (table,) = json.loads(compared.out)["limits"]
    rows: list[dict[str, Any]] = table["rows"]
    assert rows[1]["words"] in " ".join(finished.out.split())
    return rows


@pytest.mark.alone
def test_a_floor_of_half_the_speed_alone_has_a_limit(vllm: Engine, model: Path, tmp_path: Path) -> None:
    load = f"--base-url {vllm.base_url} --model qwen3 --tokenizer {model} --input-len 32 --output-len 64"
    words = f"{load} --num-warmups 4 --num-prompts 20 --max-concurrency 1 --percentile-metrics tps_user"
    measured(words.split(), tmp_path)
    floor = read_run(tmp_path)[0]["median_tps_user"] / 2
    search = "--num-warmups 8 --over concurrency --budget 75s --max-runs 8 --min-duration 4s"
    words = f"{load} {search} --within {_WITHIN:.0%} --slo"
    for attempt in range(_ATTEMPTS):
        (tmp_path / str(attempt)).mkdir()
        found = loadgen([*words.split(), f"tps_user p10 > {floor:.4g}"], tmp_path / str(attempt), "limit")
        (path,) = (tmp_path / str(attempt) / "runs").glob("*-limit/limit.json")
        record = LimitRecord.model_validate_json(path.read_text("utf-8"))
        if record.limit is not None:
            break
    assert found.code == 0, found.err
    assert record.limit is not None
    speeds = {run.load: run.objectives[0].value or 0.0 for run in record.runs if not run.disturbed}
    near = 1 + _WITHIN
    met = [load for load, speed in speeds.items() if speed > floor * near]
    failed = [load for load, speed in speeds.items() if speed < floor / near]
    low, high = record.limit.low or 0.0, record.limit.high or math.inf
    assert max(met, default=low) <= high
    assert min(failed, default=high) >= low
    # A speed goes as 1 / load, so a search that is as near as was asked has come as near to the floor.
    assert speeds[max(speeds)] < floor * near
    assert floor < speeds[min(speeds)]
    assert min(speeds) <= (record.limit.value or 0) <= max(speeds) * near


@pytest.mark.alone
def test_a_sweep_restarts_its_server_where_flags_differ(
    engines_python: Path, model: Path, tmp_path: Path
) -> None:
    launch = ["--launch", "vllm", "--server-python", str(engines_python), "--model", str(model)]
    load = "--serve-param max-num-seqs=1,4 --concurrency 1,4 --num-prompts 16 --input-len 64 --output-len 32"
    words = [*launch, "--server-args", _ON_CPU, *load.split()]
    measured(words, tmp_path, "sweep", more=VLLM_ON_CPU, limit_s=_LIMIT_S)
    until_nothing_is_left(str(model))
    (directory,) = (tmp_path / "runs").glob("*-sweep-bench")
    record = SweepRecord.model_validate_json((directory / "sweep.json").read_text("utf-8"))
    points = read_points(directory, record)
    assert [point.state for point in points] == ["done"] * 4
    assert len(list((directory / "servers").rglob("server.log"))) == 2

    results = {_settings(point): read_json(directory / point.directory / "result.json") for point in points}
    throughput = {of: result["output_throughput"] for of, result in results.items()}
    ttft_ms = {of: result["mean_ttft_ms"] for of, result in results.items()}
    assert set(results) == {("1", 1), ("1", 4), ("4", 1), ("4", 4)}
    assert throughput["4", 4] > 1.2 * throughput["1", 4]
    assert ttft_ms["1", 4] > 2 * ttft_ms["4", 4]  # three wait while one is answered


def _settings(point: Any) -> tuple[str, int]:
    return point.serve["max-num-seqs"], point.settings["max_concurrency"]


def test_cancelled_requests_are_aborted_and_no_doubt_says_otherwise(
    vllm: Engine, model: Path, tmp_path: Path
) -> None:
    words = f"""--base-url {vllm.base_url} --model qwen3 --tokenizer {model} --random-input-len 64
        --random-output-len 400 --num-prompts 24 --max-concurrency 4 --seed 1 --cancel-rate 50%
        --cancel-after 20tok""".split()
    measured(words, tmp_path)
    (directory,) = (tmp_path / "runs").iterdir()
    result = read_json(directory / "result.json")
    ours = result["loadgen"]
    cancelled = ours["metrics"]["cancelled"]
    assert cancelled > 4
    assert (result["completed"], result["failed"]) == (24 - cancelled, 0)
    rows = {row["figure"]: (row["client"], row["server"]) for row in ours["reconciliation"]}
    assert rows["requests finished"] == (24 - cancelled, 24 - cancelled)
    # Aborted soon after the twentieth token, not at the last one.
    beyond = rows["generated tokens"][1] - rows["generated tokens"][0]
    assert 20 * cancelled <= beyond < 100 * cancelled
    assert "no-abort" not in {doubt["name"] for doubt in ours["verdict"]["doubts"]}
    report = (directory / "report.txt").read_text("utf-8")
    assert f"the server counts no abort, and finished none of the {cancelled} cancelled requests" in report
