"""A file that is sent again to a real vLLM and SGLang: its prompts are computed, or the run says so."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engines import running
from engines.clients import measured, read_json
from engines.running import Engine
from loadgen.run.session import PARTED
from loadgen.server.control import EMPTIED

pytestmark = pytest.mark.engine

_WORDS = ("water", "river", "stone", "bread", "music", "paper", "chair", "light", "green", "table", "house")
_PROMPTS = 12


@pytest.fixture(scope="module")
def usual_vllm(engines_python: Path, model: Path) -> Iterator[Engine]:
    """A vLLM as it is started without a flag of its cache, and not in its mode for developers."""
    with running.vllm(engines_python, model, ["--block-size", "32"]) as engine:
        yield engine


@pytest.fixture(scope="module")
def usual_sglang(sglang_python: Path, model: Path) -> Iterator[Engine]:
    """An SGLang that reports nothing of its cache."""
    with running.sglang(sglang_python, model) as engine:
        yield engine


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of prompts that share nothing."""
    path = tmp_path_factory.mktemp("file") / "prompts.jsonl"
    drawn = (random.Random(i).choices(_WORDS, k=900) for i in range(_PROMPTS))
    rows = ({"prompt": " ".join(words), "output_tokens": 8} for words in drawn)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def _run(engine: Engine, directory: Path, prompts: Path, *more: str) -> list[dict[str, Any]]:
    """What each run of a command says of itself."""
    directory.mkdir()
    flags = ["--base-url", engine.base_url, "--dataset-path", str(prompts), "--max-concurrency", "1"]
    measured([*flags, "--quiet", *more], directory)
    return [read_json(path)["loadgen"] for path in sorted(directory.glob("runs/*/result.json"))]


def _list_warm(runs: Sequence[dict[str, Any]]) -> list[bool]:
    """Which runs have the doubt that their prompts were cached."""
    return ["prefix-cache" in {doubt["name"] for doubt in run["verdict"]["doubts"]} for run in runs]


def _print_ttft(what: str, runs: Sequence[dict[str, Any]]) -> None:
    """Print each run's median TTFT, for a reader: `pytest -s`."""
    print(what, [round(run["metrics"]["ttft"]["median_ms"], 1) for run in runs])


def test_repeats_of_a_file_are_parted_by_vllms_salt(
    usual_vllm: Engine, prompts: Path, tmp_path: Path
) -> None:
    runs = _run(usual_vllm, tmp_path / "repeats", prompts, "--repeat", "3")
    runs += _run(usual_vllm, tmp_path / "later", prompts)
    runs += _run(usual_vllm, tmp_path / "chat", prompts, "--backend", "openai-chat", "--repeat", "2")
    _print_ttft("vLLM, parted:", runs)
    assert {run["cache_reset"] for run in runs} == {PARTED}
    assert [run["window"]["prefix_hits"] for run in runs] == [0] * 6
    assert _list_warm(runs) == [False] * 6


def test_prompts_that_a_seed_sends_again_are_seen_in_vllms_cache(
    usual_vllm: Engine, prompts: Path, tmp_path: Path
) -> None:
    runs = [_run(usual_vllm, tmp_path / name, prompts, "--seed", "5")[0] for name in ("first", "second")]
    salt = '{"cache_salt": "mine"}'
    runs += [
        _run(usual_vllm, tmp_path / name, prompts, "--extra-body", salt)[0] for name in ("mine", "mine again")
    ]
    _print_ttft("vLLM, again by --seed, by a salt of one's own:", runs)
    assert _list_warm(runs) == [False, True, False, True]


def test_sglangs_cache_is_emptied_before_each_run_of_a_file(
    usual_sglang: Engine, prompts: Path, tmp_path: Path
) -> None:
    runs = _run(usual_sglang, tmp_path / "repeats", prompts, "--repeat", "3")
    _print_ttft("SGLang, emptied:", runs)
    assert [run["cache_reset"] for run in runs] == [EMPTIED] * 3
    assert _list_warm(runs) == [False] * 3
