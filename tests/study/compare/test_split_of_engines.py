"""Split of engines: two acceptance lengths at one step time, and two step times at one acceptance length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes.virtual_servers import engine_server
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.study.compare.model import Split
from loadgen.study.judging_api import compare

LOAD = (
    "input_len = 16\noutput_len = 48\nnum_prompts = 200\nmax_concurrency = 4\nignore_eos = true\n"
    "continuous_usage = true\n"
)


def measure_engine(name: str, step_ms: float, acceptance: str) -> None:
    """Measure two runs on the embedded engine with this step time and these chances."""
    limits = {"max_model_len": 512, "max_num_batched_tokens": 1024, "kv_cache_tokens": 100_000}
    preset = {"name": name, "model": name, "source": "made", "timing": {"weights_ms": step_ms}, **limits}
    flags = ("--preset-json", json.dumps(preset), "--acceptance", acceptance)
    words = ["--profile", "./load.toml", "--repeat", "2", "--quiet"]
    with VirtualServing(engine_server(*flags)) as server:
        assert cli.main(["bench", "--base-url", server.base_url, *words]) == 0


def test_steps_are_told_from_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("load.toml").write_text(LOAD, "utf-8")
    measure_engine("base", 10.0, "0.4,0.2")
    measure_engine("drafts", 10.0, "0.8,0.5")
    measure_engine("steps", 5.0, "0.4,0.2")
    (table,) = compare(["runs"], baseline="base").tables
    drafts, steps = (line.split for line in table.lines[1:])
    assert isinstance(drafts, Split)
    assert isinstance(steps, Split)
    # 1 + 0.8 + 0.8 · 0.5 tokens a step ÷ 1 + 0.4 + 0.4 · 0.2, but for steps that an answer's end cuts short.
    assert drafts.drafts.mean == pytest.approx(2.2 / 1.48, rel=0.04)
    assert drafts.steps.mean == pytest.approx(1.0)
    assert steps.drafts.mean == pytest.approx(1.0, rel=0.04)  # other draws
    assert steps.steps.mean == pytest.approx(2.0)
