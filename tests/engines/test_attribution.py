"""Long prompts sent to a real vLLM while other answers stream: the long gaps waited for their chunks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engines.clients import loadgen
from engines.running import VLLM_ON_CPU
from loadgen.features.attribution.attribution import attribute_run
from loadgen.features.attribution.parts import ROWS
from loadgen.report import run_directory

pytestmark = pytest.mark.engine

_LONG = (15, 22, 29)
_CHUNKS = (
    "--dtype bfloat16 --max-model-len 8192 --enforce-eager --max-num-seqs 8 --max-num-batched-tokens 512"
)
_LONGEST = 4000  # characters, a token each: eight chunks


def _write_prompts(path: Path) -> None:
    """Short prompts, and a few that are computed in several steps, none with another's prefix."""
    draw = np.random.default_rng(44)
    with path.open("w") as file:
        for number in range(36):
            words = " ".join(map(str, [number, *draw.integers(0, 10_000, _LONGEST).tolist()]))
            prompt = words[: _LONGEST if number in _LONG else 64]
            file.write(json.dumps({"prompt": prompt, "output_tokens": 160}) + "\n")


def test_stalls_by_chunked_prefill_are_found_and_named(
    engines_python: Path, model: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    _write_prompts(prompts)
    launch = ["--launch", "vllm", "--server-python", str(engines_python), "--model", str(model)]
    data = ["--dataset-path", str(prompts), "--disable-shuffle", "--skip-chat-template"]
    load = ["--num-prompts", "36", "--max-concurrency", "6", "--num-warmups", "2", "--seed", "44", "--quiet"]
    load += ["--server-args", _CHUNKS]
    finished = loadgen([*launch, *data, *load], tmp_path, more=VLLM_ON_CPU)
    assert finished.code == 0, finished.err
    (directory,) = (tmp_path / "runs").glob("*-bench")
    run = run_directory.load(directory)
    found, first_ns = attribute_run(run), run.records.arrival_ns[run.records.start[:-1]]
    beyond_ns = found.gaps.whole_ns - found.gaps.parts[ROWS["decode_step"]]
    assert found.gaps.is_long
    assert found.gaps.parts[ROWS["others_prefill"]].sum() > 0.7 * beyond_ns.sum()  # the machine may be busy
    assert "others-prefill-stalls" in [finding.rule.code for finding in run.verdict.findings]
    # The gaps that are named lie where a long prompt waited for its first token.
    named = found.gaps.select(found.gaps.parts[ROWS["others_prefill"]] > 0)
    end_ns = run.records.arrival_ns[run.records.start[named.request] + named.message]
    within = [(run.records.sent_ns[at] < end_ns) & (end_ns <= first_ns[at] + 50_000_000) for at in _LONG]
    assert np.mean(np.any(within, axis=0)) > 0.8
