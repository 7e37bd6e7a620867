"""Several workers, and several shards, against one real vLLM: its own counters have the same requests."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engines.clients import loadgen, measured, read_json
from engines.running import Engine
from loadgen.report import run_directory

pytestmark = pytest.mark.engine

_REQUESTS, _INPUT, _OUTPUT = 48, 128, 32
_OF_COUNTERS = {"foreign-requests", "tokens-differ", "tokens-far-off", "counters-reset"}
_LOADS = {
    "a closed loop": ["--max-concurrency", "8"],
    "a rate": ["--request-rate", "12", "--burstiness", "inf"],
}


def _asked(engine: Engine, model: Path, *more: str) -> list[str]:
    words = f"""--base-url {engine.base_url} --model qwen3 --tokenizer {model} --seed 7 --num-warmups 2
        --random-input-len {_INPUT} --random-output-len {_OUTPUT} --num-prompts {_REQUESTS}"""
    return [*words.split(), *more]


def _checked(directory: Path) -> dict[str, Any]:
    """What a result file has of a run of every request, once that is what it has."""
    run = run_directory.load(directory)
    assert run.records.index.tolist() == list(range(_REQUESTS))
    assert run.records.ok.all()
    found = read_json(directory / "result.json")
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (
        _REQUESTS * _INPUT,
        _REQUESTS * _OUTPUT,
    )
    assert run.facts.window is not None
    assert {finding.rule.code for finding in run.verdict.findings}.isdisjoint(_OF_COUNTERS)
    assert run.verdict.level.value != "INVALID", run.verdict.reasons
    return found


def _digest(found: dict[str, Any]) -> str:
    return str(found["loadgen"]["plan_digest"])


@pytest.mark.parametrize("load", _LOADS)
def test_workers_and_shards_send_the_plan_of_one_process(
    vllm: Engine, model: Path, tmp_path: Path, load: str
) -> None:
    digests = []
    for workers in ("1", "2", "3"):
        place = tmp_path / workers
        place.mkdir()
        measured([*_asked(vllm, model, *_LOADS[load], "--workers", workers)], place)
        (directory,) = (place / "runs").iterdir()
        digests.append(_digest(_checked(directory)))
    at = str(int(time.time()) + 10)  # both have their plans by then
    parts = [["--shard", f"{number}/2", "--start-at", at] for number in range(2)]
    with ThreadPoolExecutor() as pool:
        shards = [*pool.map(lambda part: loadgen(_asked(vllm, model, *_LOADS[load], *part), tmp_path), parts)]
    assert [shard.code for shard in shards] == [0, 0], [shard.err for shard in shards]
    names = sorted(map(str, (tmp_path / "runs").iterdir()))
    measured([*names, "--output", "merged"], tmp_path, verb="merge")
    found = _checked(tmp_path / "merged")
    digests.append(_digest(found))
    assert len({*digests}) == 1, digests
    assert [row["requests"] for row in found["loadgen"]["shards"]] == [24, 24]
    assert found["loadgen"]["lost"] == []
