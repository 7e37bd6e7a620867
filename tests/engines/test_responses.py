"""/v1/responses of real servers that keep the history of a session, and of one that does not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines import place, running
from engines.clients import loadgen, measured, read_run
from engines.running import Engine
from loadgen.records.record import Records

pytestmark = pytest.mark.engine
_TALKS = """--model qwen3 --max-concurrency 1 --turns 4 --num-sessions 3 --random-input-len 40
    --random-output-len 24 --random-prefix-len 64 --prompt-format words --seed 5 --temperature 0
    --num-warmups 0 --quiet"""


@pytest.fixture(scope="module")
def keeping_vllm(engines_python: Path, model: Path) -> Iterator[Engine]:
    """vLLM that keeps answers, with a prefix cache of small blocks that can be emptied."""
    engine = running.resettable_vllm(
        engines_python, model, ["--block-size", "32", "--enable-prompt-tokens-details"]
    )
    engine.env = {**engine.env, "VLLM_ENABLE_RESPONSES_API_STORE": "1"}
    with engine:
        yield engine


@pytest.fixture(scope="module")
def keeping_sglang(sglang_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """SGLang that keeps answers."""
    directory = tmp_path_factory.mktemp("sglang")
    model = Path(shutil.copytree(place.tiny_model(sglang_python), directory / "model"))
    engine = running.sglang(sglang_python, model)
    engine.argv = [*engine.argv, "--enable-response-store", "--enable-metrics", "--enable-cache-report"]
    with engine:
        yield engine


def _run(engine: Engine, words: str, directory: Path) -> tuple[Records, dict[str, Any], str]:
    """A run's records, its result, and what was printed."""
    directory.mkdir()
    finished = measured(["--base-url", engine.base_url, *words.split()], directory)
    result, records = read_run(directory)
    return records, result, finished.out


def _check_kept(engine: Engine, directory: Path) -> None:
    """A history on the server gives the prompts and cached tokens that a live one sends."""
    live, _, _ = _run(
        engine, f"{_TALKS} --reset-cache --backend openai-chat --assistant live", directory / "live"
    )
    kept, result, _ = _run(
        engine, f"{_TALKS} --reset-cache --backend openai-responses --assistant server", directory / "kept"
    )
    assert (live.failed, kept.failed) == ([], [])
    assert kept.input_tokens.tolist() == live.input_tokens.tolist()
    assert kept.cached_tokens[1:].tolist() == live.cached_tokens[1:].tolist()
    assert kept.cached_tokens[0] < 8  # of the chat template alone, which two small requests had before
    assert (kept.cached_tokens.reshape(3, 4)[:, 1:] > 0).all()
    rows = {row["figure"]: row for row in result["loadgen"]["reconciliation"]}
    for figure in ("prompt tokens", "generated tokens", "prefix cache hits"):
        assert rows[figure]["client"] == pytest.approx(rows[figure]["server"])


def test_vllm_keeps_the_history_that_a_live_session_sends(keeping_vllm: Engine, tmp_path: Path) -> None:
    _check_kept(keeping_vllm, tmp_path)


def test_sglang_keeps_the_history_that_a_live_session_sends(keeping_sglang: Engine, tmp_path: Path) -> None:
    _check_kept(keeping_sglang, tmp_path)


def test_a_vllm_that_keeps_nothing_is_found_out_before_the_run(vllm: Engine, tmp_path: Path) -> None:
    words = f"{_TALKS} --backend openai-responses --assistant server"
    finished = loadgen(["--base-url", vllm.base_url, *words.split()], tmp_path)
    assert finished.code == 1
    assert "/v1/responses keeps no history of sessions (404: Response with id 'resp_" in finished.err
    assert finished.err.rstrip().endswith("--enable-response-store, or pass --assistant live")
