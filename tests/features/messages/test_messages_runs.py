"""Runs over Anthropic's messages, from the command line to the embedded engine, in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over
from fakes.virtual_serving import virtual_engines
from loadgen import cli
from loadgen.records.record import Records
from loadgen.report.run_directory import ARRIVALS, RESULT

WORDS = """bench --quiet --preset h20/qwen3-8b-fp8 --random-input-len 64 --random-output-len 16 --seed 1
    --max-concurrency 2 --num-warmups 0"""


def run(api: str, place: Path, *more: str) -> tuple[dict[str, Any], Records]:
    """The result and the records of a run."""
    with virtual_engines():
        code = cli.main([*WORDS.split(), "--backend", api, "--run-dir", str(place), *more])
    assert code == 0
    (place,) = place.iterdir()
    return json.loads((place / RESULT).read_text("utf-8")), Records.load(place / ARRIVALS)


@loop_over(
    "more",
    [
        ("--num-prompts", "6"),
        ("--num-prompts", "6", "--disable-stream"),
        ("--num-prompts", "6", "--transport", "httpx"),
        ("--turns", "2", "--num-sessions", "3", "--assistant", "live", "--random-prefix-len", "32"),
    ],
)
def test_a_run_is_that_of_chat(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (chat, own), (result, records) = (
        run(api, tmp_path / api, *more) for api in ("openai-chat", "anthropic-messages")
    )
    for name in ("completed", "failed", "total_input_tokens", "total_output_tokens"):
        assert result[name] == chat[name], name
    assert records.output_tokens.tolist() == own.output_tokens.tolist()
    assert records.input_tokens.tolist() == own.input_tokens.tolist()
    assert records.finish_reasons == own.finish_reasons
    if "--disable-stream" not in more:
        assert result["mean_ttft_ms"] == pytest.approx(chat["mean_ttft_ms"], rel=0.02)
        assert result["mean_itl_ms"] == pytest.approx(chat["mean_itl_ms"], rel=0.02)
