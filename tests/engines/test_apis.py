"""APIs of conversations next to chat: the same run over both on one server has the same tokens and times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines import running
from engines.clients import measured, read_run, scrape
from engines.running import Engine
from loadgen.records.record import Records

pytestmark = pytest.mark.engine
CHAT = "openai-chat"
BACKENDS = ["openai-responses", "anthropic-messages"]
# Order of the pairs: each API has as many runs early as late.
_FIRST, _THEN = (0, 1, 1, 0), (1, 0, 0, 1)
_MOST_ROUNDS = 3  # where another process of the machine slows one of them down
_TIMES = ("median_ttft_ms", "median_itl_ms")
_LOAD = """--model qwen3 --prompt-format words --no-ignore-eos --temperature 0 --random-input-len 64
    --random-output-len 64 --num-prompts 16 --max-concurrency 2 --seed 7 --quiet"""
_TURNS = """--model qwen3 --turns 3 --num-sessions 4 --assistant live --random-input-len 64
    --random-output-len 32 --random-prefix-len 96 --no-ignore-eos --temperature 0 --max-concurrency 1
    --seed 3 --quiet"""


@pytest.fixture(scope="module", params=["vllm", "sglang", "llamacpp"])
def server(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A server without a prefix cache: the same prompt is the same work each time."""
    if request.param == "vllm":
        yield request.getfixturevalue("vllm")
        return
    if request.param == "llamacpp":
        binary, model = request.getfixturevalue("llama_server")
        more = ["--ctx-size", "8192", "--parallel", "4", "--no-cache-prompt"]
        engine = running.llamacpp(binary, model, more)
    else:
        model = request.getfixturevalue("model")
        engine = running.sglang(request.getfixturevalue("sglang_python"), model)
        engine.argv = [*engine.argv, "--disable-radix-cache"]
    with engine:
        yield engine


def _run(engine: Engine, backend: str, directory: Path, words: list[str]) -> tuple[dict[str, Any], Records]:
    """The result and the records of a run that ended well."""
    directory.mkdir()
    measured(["--base-url", engine.base_url, "--backend", backend, *words], directory)
    return read_run(directory)


@pytest.mark.alone
@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_ttft_and_itl_are_those_of_chat(
    server: Engine, backend: str, model: Path, tmp_path: Path
) -> None:
    words = [*_LOAD.split(), "--tokenizer", str(model)]
    found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    tokens, ends = [], []
    for run, which in enumerate((_FIRST + _THEN) * _MOST_ROUNDS):
        result, records = _run(server, (CHAT, backend)[which], tmp_path / str(run), words)
        found[which].append(result)
        tokens.append((records.input_tokens.tolist(), records.output_tokens.tolist()))
        if not (which and backend == "openai-responses" and "llama-server" in server.argv[0]):
            ends.append(records.finish_reasons)  # llama.cpp has every response complete
        assert result["completed"] == 16
        assert result["total_output_tokens"] > 0
        if run % 8 == 7 and all(_overlap(*found, name) for name in _TIMES):
            break
    assert all(each == tokens[0] for each in tokens)
    assert all(each == ends[0] for each in ends)
    assert [name for name in _TIMES if not _overlap(*found, name)] == [], found


def _overlap(chat: list[dict[str, Any]], other: list[dict[str, Any]], name: str) -> bool:
    """Whether a figure is the same within the spread of the runs over each."""
    ours, theirs = ([result[name] for result in results] for results in (chat, other))
    return bool(max(min(ours), min(theirs)) <= min(max(ours), max(theirs)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_live_turns_have_the_servers_own_cached_tokens(
    caching_vllm: Engine, backend: str, tmp_path: Path
) -> None:
    name = "vllm:prefix_cache_hits_total"
    before = scrape(caching_vllm.base_url)[name]
    _, records = _run(
        caching_vllm, backend, tmp_path / "run", [*_TURNS.split(), "--reset-cache", "--num-warmups", "0"]
    )
    hits = scrape(caching_vllm.base_url)[name] - before
    assert len(records) == 12
    assert records.ok.all()
    assert records.cached_tokens.min() >= 0
    assert int(records.cached_tokens.sum()) == hits > 0
