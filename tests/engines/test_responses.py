"""/v1/responses of real servers next to chat: the same tokens and times, and histories that servers keep."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines import place, running
from engines.clients import loadgen, read_json, scrape
from engines.running import Engine
from loadgen.base.arrays import Float64
from loadgen.records.record import Records

pytestmark = pytest.mark.engine
_SERVERS = {  # by engine: its own TTFT and ITL, as sums and counts of seconds
    "vllm": ("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"),
    "sglang": ("sglang:time_to_first_token_seconds", "sglang:inter_token_latency_seconds"),
}
_APIS = ("openai-chat", "openai-responses")
_PAIRS = 5
_LOAD = """--model qwen3 --max-concurrency 2 --num-prompts 24 --random-input-len 100 --random-output-len 64
    --prompt-format words --seed 5 --temperature 0 --num-warmups 2 --quiet"""
_TALKS = """--model qwen3 --max-concurrency 1 --turns 4 --num-sessions 3 --random-input-len 40
    --random-output-len 24 --random-prefix-len 64 --prompt-format words --seed 5 --temperature 0 --num-warmups 0 --quiet"""


@pytest.fixture(scope="module")
def keeping_vllm(
    engines_python: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """vLLM that keeps answers, with a prefix cache of small blocks that can be emptied."""
    log = tmp_path_factory.mktemp("keeping") / "log"
    engine = running.resettable_vllm(
        engines_python, model, log, ["--block-size", "32", "--enable-prompt-tokens-details"]
    )
    engine.env = {**engine.env, "VLLM_ENABLE_RESPONSES_API_STORE": "1"}
    with engine:
        yield engine


@pytest.fixture(scope="module")
def keeping_sglang(sglang_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """SGLang that keeps answers."""
    directory = tmp_path_factory.mktemp("sglang")
    model = Path(shutil.copytree(place.tiny_model(sglang_python), directory / "model"))
    engine = running.sglang(sglang_python, model, directory / "log")
    engine.argv = [*engine.argv, "--enable-response-store", "--enable-metrics", "--enable-cache-report"]
    with engine:
        yield engine


def _run(engine: Engine, words: str, directory: Path) -> tuple[Records, dict[str, Any], str]:
    """A run's records, its result, and what was printed."""
    directory.mkdir()
    finished = loadgen(["--base-url", engine.base_url, *words.split()], directory)
    assert finished.code == 0, finished.err
    (run,) = (directory / "runs").iterdir()
    return Records.load(run / "arrivals.npz"), read_json(run / "result.json"), finished.out


def _means(before: dict[str, float], after: dict[str, float], names: tuple[str, ...]) -> Float64:
    """The server's own means between two scrapes, seconds, float64[names]."""

    def moved(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    return np.array([moved(f"{name}_sum") / moved(f"{name}_count") for name in names])


def _own_means(records: Records) -> Float64:
    """The client's mean TTFT and ITL by tokens, seconds."""
    first, last = records.arrival_ns[records.start[:-1]], records.arrival_ns[records.start[1:] - 1]
    ttft_s = (first - records.sent_ns) / 1e9
    return np.array([ttft_s.mean(), ((last - first) / 1e9).sum() / (records.output_tokens - 1).sum()])


def _check_pairs(engine: Engine, names: tuple[str, str], directory: Path) -> None:
    """Both APIs have the same tokens; their times differ by less than the server's own from run to run."""
    found: dict[str, list[tuple[Records, Float64, Float64]]] = {api: [] for api in _APIS}
    for pair in range(_PAIRS):
        for api in _APIS[:: (-1) ** pair]:
            before = scrape(engine.base_url)
            records, _, _ = _run(engine, f"{_LOAD} --backend {api}", directory / f"{pair}{api}")
            found[api].append((records, _own_means(records), _means(before, scrape(engine.base_url), names)))
    chats, responses = found.values()
    for (chat, _, _), (own, _, _) in zip(chats, responses, strict=True):
        assert (chat.failed, own.failed) == ([], [])
        for column in ("input_tokens", "output_tokens", "usage"):
            assert getattr(own, column).tolist() == getattr(chat, column).tolist()
    differences = np.array([own[1] - chat[1] for chat, own in zip(chats, responses, strict=True)])
    theirs = np.array([each[2] for each in (*chats, *responses)])
    spread = np.ptp(theirs, axis=0)
    print(
        "ms, responses - chat, median:",
        np.median(differences, axis=0) * 1e3,
        "server's spread:",
        spread * 1e3,
    )
    assert (np.abs(np.median(differences, axis=0)) <= spread).all()


@pytest.mark.alone
def test_vllm_is_as_quick_over_either_api(keeping_vllm: Engine, tmp_path: Path) -> None:
    _check_pairs(keeping_vllm, _SERVERS["vllm"], tmp_path)


@pytest.mark.alone
def test_sglang_is_as_quick_over_either_api(keeping_sglang: Engine, tmp_path: Path) -> None:
    _check_pairs(keeping_sglang, _SERVERS["sglang"], tmp_path)


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
