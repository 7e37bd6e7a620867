"""The fingerprint of a real server: the same model answers the same, and tells its tokens where it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.clients import load_run, measured
from engines.running import Engine
from loadgen.facts.run_facts import Fingerprint
from loadgen.features.fingerprint.answer_check import ANSWER_TOKENS, PROMPTS, describe_difference

pytestmark = pytest.mark.engine


def _taken(engine: Engine, words: list[str], directory: Path) -> Fingerprint:
    directory.mkdir()
    flags = ["--base-url", engine.base_url, "--profile", "smoke", "--quiet", "--fingerprint", *words]
    finished = measured(flags, directory)
    assert f"fingerprint: {len(PROMPTS)} of {len(PROMPTS)} greedy prompts completed" in finished.out
    found = load_run(directory).facts.fingerprint
    assert found is not None
    return found


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_two_runs_on_one_vllm_have_the_same_answers_token_by_token(
    backend: str, vllm: Engine, model: Path, tmp_path: Path
) -> None:
    words = ["--backend", backend, "--tokenizer", str(model)]
    first, second = (_taken(vllm, words, tmp_path / name) for name in ("first", "second"))
    assert first == second
    lengths = [len(answer.token_ids) for answer in first.answers]
    assert max(lengths) == ANSWER_TOKENS
    assert min(lengths) > 0  # one may end early: nobody asked to ignore its end


def test_transformers_serve_answers_the_same_fingerprint_again(
    transformers_serve: Engine, model: Path, tmp_path: Path
) -> None:
    words = ["--model", str(model), "--tokenizer", str(model)]
    first, second = (_taken(transformers_serve, words, tmp_path / name) for name in ("first", "second"))
    assert first == second
    assert describe_difference(first, second, "it") == "the same outputs as it to all 12 prompts"
