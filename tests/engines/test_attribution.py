"""Long prompts sent to a real vLLM while other answers stream: the long gaps waited for their chunks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engines.clients import load_run, measured
from engines.running import VLLM_ON_CPU
from loadgen.base.arrays import Int64
from loadgen.features.attribution.attribution import ROWS, PartRows, attribute_run
from loadgen.records.record import Records
from loadgen.report.run_directory import Result

pytestmark = [pytest.mark.engine, pytest.mark.alone]

_LONG = (15, 22, 29)
_CHUNKS = (
    "--dtype bfloat16 --max-model-len 8192 --enforce-eager --max-num-seqs 8 --max-num-batched-tokens 512"
)
_LONGEST = 4000  # characters, a token each: eight chunks
_ATTEMPTS = 3  # of which one is not mostly disturbed by what else the machine does
_UNDISTURBED = 0.75  # of the time beyond typical steps, while a long prompt waits


def _write_prompts(path: Path) -> None:
    """Short prompts, and a few that are computed in several steps, none with another's prefix."""
    draw = np.random.default_rng(44)
    with path.open("w") as file:
        for number in range(36):
            words = " ".join(map(str, [number, *draw.integers(0, 10_000, _LONGEST).tolist()]))
            prompt = words[: _LONGEST if number in _LONG else 64]
            file.write(json.dumps({"prompt": prompt, "output_tokens": 160}) + "\n")


def _send_prompts(prompts: Path, engines_python: Path, model: Path, place: Path) -> Result:
    """Send the prompts to a vLLM that computes them in chunks."""
    launch = ["--launch", "vllm", "--server-python", str(engines_python), "--model", str(model)]
    data = ["--dataset-path", str(prompts), "--disable-shuffle", "--skip-chat-template"]
    load = ["--num-prompts", "36", "--max-concurrency", "6", "--num-warmups", "2", "--seed", "44", "--quiet"]
    load += ["--server-args", _CHUNKS]
    measured([*launch, *data, *load], place, more=VLLM_ON_CPU)
    return load_run(place)


def _find_times(records: Records, gaps: PartRows) -> tuple[Int64, Int64]:
    """Find when gaps begin and end (ns)."""
    end_ns = records.arrival_ns[records.start[gaps.request] + gaps.message]
    return end_ns - gaps.whole_ns, end_ns


def test_stalls_by_chunked_prefill_are_found_and_named(
    engines_python: Path, model: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    _write_prompts(prompts)
    for attempt in range(_ATTEMPTS):
        place = tmp_path / str(attempt)
        place.mkdir()
        run = _send_prompts(prompts, engines_python, model, place)
        found, first_ns = attribute_run(run), run.records.arrival_ns[run.records.start[:-1]]
        gaps, begin_ns, end_ns = found.gaps, *_find_times(run.records, found.gaps)
        beyond_ns = gaps.whole_ns - gaps.parts[ROWS["decode_step"]]
        waits = [(run.records.sent_ns[at] < end_ns) & (begin_ns < first_ns[at]) for at in _LONG]
        waited = np.any(waits, axis=0)
        if beyond_ns[waited].sum() > _UNDISTURBED * beyond_ns.sum():
            break
    others_ns = gaps.parts[ROWS["others_prefill"]]
    assert gaps.is_long
    assert others_ns[waited].sum() > 0.9 * beyond_ns[waited].sum()
    assert others_ns.sum() > 0.7 * beyond_ns.sum()
    assert "others-prefill-stalls" in [finding.rule.code for finding in run.verdict.findings]
    # The gaps that are named lie where a long prompt waited for its first token.
    within = [(run.records.sent_ns[at] < end_ns) & (end_ns <= first_ns[at] + 50_000_000) for at in _LONG]
    assert np.mean(np.any(within, axis=0)[others_ns > 0]) > 0.8
