"""Data sets and traces on a real vLLM: taken, counted as planned, and found again in its prefix cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.clients import Finished, loadgen, measured, read_run, scrape
from engines.router import Router
from engines.running import Engine

pytestmark = pytest.mark.engine

_ROOT = Path(__file__).resolve().parents[2]
_EXAMPLES = _ROOT / "docs" / "examples"
_HITS = "vllm:prefix_cache_hits_total"
# What says that something else was sent than planned. Times are left out: two cores serve and measure.
_OF_DATA = {
    "answer-lengths", "foreign-requests", "identical-prompts", "prefix-cache", "prompt-lengths",
    "tokens-differ", "tokens-far-off", "tokens-not-counted",
}  # fmt: skip


def _bench(engine: Engine, directory: Path, words: str, *more: str | Path) -> tuple[Finished, float]:
    """A run with an empty prefix cache, and the tokens that the server found in it."""
    before = scrape(engine.base_url)[_HITS]
    server = ["--base-url", engine.base_url, "--model", "qwen3"]
    flags = [*server, "--seed", "7", "--reset-cache", *words.split()]
    finished = loadgen([*flags, *map(str, more)], directory)
    return finished, scrape(engine.base_url)[_HITS] - before


def _ours(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_run(directory)[0]["loadgen"]
    return found


def _doubts(ours: dict[str, Any]) -> set[str]:
    return {doubt["name"] for doubt in ours["verdict"]["doubts"]}


@pytest.mark.parametrize(
    ("words", "file"),
    [
        pytest.param("--dataset-name sharegpt --num-prompts 6", "sharegpt.json", id="sharegpt"),
        pytest.param(
            "--dataset-name custom --custom-output-len 16 --num-prompts 6", "prompts.jsonl", id="custom"
        ),
        pytest.param("", "prompts.jsonl", id="prompts, recognised"),
        pytest.param(
            "--backend openai-chat", "bodies_with_tools.jsonl", id="bodies with tools and a JSON schema"
        ),
        pytest.param(
            "--backend openai-chat --output-len 16", "conversations_with_tools.jsonl", id="conversations"
        ),
    ],
)
def test_a_real_server_takes_the_rows_of_a_file(
    words: str, file: str, caching_vllm: Engine, model: Path, tmp_path: Path
) -> None:
    path = _EXAMPLES / file
    finished, _ = _bench(
        caching_vllm, tmp_path, f"{words} --max-concurrency 2", "--tokenizer", model, "--dataset-path", path
    )
    assert finished.code == 0, finished.err
    ours, records = _ours(tmp_path), read_run(tmp_path)[1]
    assert len(records.failed) == 0
    assert _doubts(ours) & _OF_DATA == set()
    known = records.planned_input > 0
    assert (records.input_tokens[known] == records.planned_input[known]).all()


@pytest.mark.parametrize("page", ["README.md", "docs/datasets.md", "docs/sessions.md"])
def test_the_first_chat_example_of_a_page_runs_on_a_stock_vllm(
    page: str, vllm: Engine, tmp_path: Path
) -> None:
    lines = (_ROOT / page).read_text("utf-8").splitlines()
    command = next(line for line in lines if "bench --base-url" in line and "openai-chat" in line)
    words = command.replace("docs/examples", str(_EXAMPLES)).split()[2:]
    words[words.index("--base-url") + 1] = vllm.base_url
    measured([*words, "--model", "qwen3", "--seed", "7"], tmp_path)
    assert len(read_run(tmp_path)[1].failed) == 0


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            "--dataset-name prefix_repetition --prefix-repetition-prefix-len 512 "
            "--prefix-repetition-suffix-len 64 --prefix-repetition-num-prefixes 4 "
            "--prefix-repetition-output-len 4 --num-prompts 32 --max-concurrency 1",
            id="prefix_repetition",
        ),
        pytest.param(
            "--random-prefix-len 512 --prefix-groups 4 --random-input-len 64 --random-output-len 4 "
            "--num-prompts 32 --max-concurrency 1",
            id="prefix groups",
        ),
        pytest.param(
            f"--trace {_EXAMPLES / 'mooncake.jsonl'} --trace-format mooncake --trace-max-input-len 2048 "
            "--trace-too-long clip --trace-max-output-len 4 --no-self-timed --max-concurrency 1",
            id="a trace, one after the other",
        ),
        pytest.param(
            f"--trace {_EXAMPLES / 'mooncake.jsonl'} --trace-format mooncake --trace-max-input-len 2048 "
            "--trace-too-long clip --trace-max-output-len 4 --trace-window 0:9 --trace-jitter uniform",
            id="a window of a trace, at its times",
        ),
    ],
)
def test_the_servers_prefix_hits_are_the_expected_reuse(
    words: str, caching_vllm: Engine, model: Path, tmp_path: Path
) -> None:
    finished, hits = _bench(caching_vllm, tmp_path, words, "--tokenizer", model)
    assert finished.code == 0, finished.err
    ours = _ours(tmp_path)
    assert _doubts(ours) & _OF_DATA == set()
    assert hits == pytest.approx(ours["data"]["reusable_tokens"], rel=0.02)
    assert hits > 0


@pytest.mark.parametrize("hidden", [[], ["/tokenize"]], ids=["by /tokenize", "by usage alone"])
@pytest.mark.parametrize("length", [100, 1000])
def test_chat_without_a_tokenizer_reaches_its_length(
    length: int, hidden: list[str], caching_vllm: Engine, tmp_path: Path
) -> None:
    words = f"--backend openai-chat --prompt-format words --random-input-len {length} --random-output-len 4"
    with Router([caching_vllm.base_url], hidden=hidden) as router:
        flags = f"--model qwen3 {words} --num-prompts 20 --max-concurrency 4".split()
        measured(["--base-url", router.base_url, *flags], tmp_path)
    assert float(np.mean(read_run(tmp_path)[1].input_tokens)) == pytest.approx(length, rel=0.01)
