"""Tokens a step and the time of one, on a real vLLM that drafts n-grams: equal to its own counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines import running
from engines.clients import load_run, measured, scrape
from engines.running import Engine
from loadgen.features.speculation.speculation_figures import (
    COUNTERS,
    MESSAGES,
    REQUESTS,
    Speculation,
    measure_speculation,
)

pytestmark = [pytest.mark.engine, pytest.mark.alone]

_DRAFT, _REQUESTS, _TOKENS = 4, 6, 300
_DRAFTS, _ACCEPTED = "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_accepted_tokens_total"
_CONFIG = {
    "method": "ngram",
    "num_speculative_tokens": _DRAFT,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}


@pytest.fixture(scope="module")
def drafting(engines_python: Path, model: Path) -> Iterator[Engine]:
    """A vLLM that drafts, and reports each request's drafts; its engine has a process of its own."""
    flags = ["--no-enable-prefix-caching", "--speculative-config", json.dumps(_CONFIG)]
    flags += ["--per-request-spec-decode-metrics", "summary"]
    engine = running.vllm(engines_python, model, flags)
    engine.env = running.VLLM_WITH_WORKER
    with engine:
        yield engine


def _measure(engine: Engine, model: Path, more: str, directory: Path) -> Speculation:
    """The split of a run of so many answers; a model without sense repeats itself at temperature 0."""
    directory.mkdir(exist_ok=True)
    flags = f"""--base-url {engine.base_url} --model qwen3 --tokenizer {model} --random-input-len 64
        --random-output-len {_TOKENS} --num-prompts {_REQUESTS} --seed 1 {more}"""
    measured(flags.split(), directory)
    split = measure_speculation(load_run(directory))
    assert split is not None
    print(split)
    return split


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("--max-concurrency 1 --continuous-usage", id="usage on every message"),
        pytest.param("--max-concurrency 3", id="usage at the end"),
        pytest.param("--max-concurrency 1 --backend openai-chat --continuous-usage", id="chat"),
    ],
)
def test_tokens_a_step_are_those_of_the_servers_counters(
    more: str, drafting: Engine, model: Path, tmp_path: Path
) -> None:
    before = scrape(drafting.base_url)
    split = _measure(drafting, model, f"{more} --temperature 0", tmp_path)
    after = scrape(drafting.base_url)
    moved = [int(after[name] - before.get(name, 0.0)) for name in (_DRAFTS, _ACCEPTED)]
    counters, messages, requests = (split.sources[name] for name in (COUNTERS, MESSAGES, REQUESTS))
    assert [counters.drafts, counters.accepted] == [requests.drafts, requests.accepted] == moved
    assert messages.tokens == counters.tokens == _REQUESTS * (_TOKENS - 1)
    assert messages.accepted is not None
    # Of each answer a draft may have gone past its end. Where the server fell behind, it joined steps.
    if split.source == MESSAGES:
        assert -0.02 * messages.tokens <= moved[1] - messages.accepted <= _REQUESTS * _DRAFT
    else:
        assert split.source == REQUESTS
        assert messages.accepted > moved[1]


def test_two_texts_of_other_drafts_have_one_step_time(drafting: Engine, model: Path, tmp_path: Path) -> None:
    more = "--random-output-len 1500 --num-prompts 4 --max-concurrency 1 --temperature"
    splits = [_measure(drafting, model, f"{more} {heat}", tmp_path / str(heat)) for heat in (0, 1)]
    (repeated, noise), (repeated_ms, noise_ms) = (
        [getattr(split, name).mean for split in splits] for name in ("acceptance_length", "step_ms")
    )
    assert repeated > 1.2 * noise
    assert repeated_ms == pytest.approx(noise_ms, rel=0.25)


def test_llamacpp_sends_each_token_alone_and_reports_each_requests_drafts(
    llama_server: tuple[Path, Path], tmp_path: Path
) -> None:
    server, model = llama_server
    drafts = ["--spec-type", "draft-simple", "--spec-draft-model", str(model), "--spec-draft-n-max", "3"]
    flags = "--prompt-format words --random-input-len 32 --random-output-len 60 --num-prompts 6"
    with running.llamacpp(server, model, ["--metrics", *drafts]) as engine:
        words = [*flags.split(), "--max-concurrency", "1", "--temperature", "0"]
        measured(["--base-url", engine.base_url, *words], tmp_path)
    split = measure_speculation(load_run(tmp_path))
    assert split is not None
    assert split.acceptance_length is not None
    assert split.source == REQUESTS
    assert split.acceptance_length.mean > 3  # its own draft guesses nearly every token
    assert split.sources[COUNTERS].accepted == split.sources[REQUESTS].accepted
    assert split.sources[MESSAGES].acceptance_length == pytest.approx(1.0, abs=0.02)
