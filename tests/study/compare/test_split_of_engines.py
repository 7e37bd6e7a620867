"""Split of engines: two acceptance lengths at one step time, and two step times at one acceptance length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.campaign_files import the_directory, written
from builders.serving_scripts import engine_command
from loadgen import cli
from loadgen.study.compare.model import Split
from loadgen.study.judging_api import compare

LOAD = (
    "input_len = 16\noutput_len = 48\nnum_prompts = 24\nmax_concurrency = 4\nignore_eos = true\n"
    "continuous_usage = true\n"
)


def engine(name: str, step_ms: float, acceptance: str) -> dict[str, str]:
    """A checkpoint of a campaign: the embedded engine with this step time and these chances."""
    limits = {"max_model_len": 512, "max_num_batched_tokens": 1024, "kv_cache_tokens": 100_000}
    preset = {"name": name, "model": name, "source": "made", "timing": {"weights_ms": step_ms}, **limits}
    flags = ("--preset-json", json.dumps(preset), "--acceptance", acceptance)
    return {"name": name, "launch_command": engine_command(*flags)}


@pytest.mark.whole
def test_a_campaign_tells_steps_from_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arms = (
        engine("base", 10.0, "0.4,0.2"),
        engine("drafts", 10.0, "0.8,0.5"),
        engine("steps", 5.0, "0.4,0.2"),
    )
    path = written(tmp_path, *arms, baseline="base", profiles=["./load.toml"])
    (tmp_path / "load.toml").write_text(LOAD, "utf-8")
    assert cli.main(["campaign", str(path), "--allow-launch", "--quiet"]) == 0
    (table,) = compare([the_directory()]).tables
    drafts, steps = (line.split for line in table.lines[1:])
    assert isinstance(drafts, Split)
    assert isinstance(steps, Split)
    # 1 + 0.8 + 0.8 · 0.5 tokens a step ÷ 1 + 0.4 + 0.4 · 0.2, but for steps that an answer's end cuts short.
    assert drafts.drafts.mean == pytest.approx(2.2 / 1.48, rel=0.04)
    assert drafts.steps.mean == pytest.approx(1.0, rel=0.15)
    assert steps.drafts.mean == pytest.approx(1.0, rel=0.04)  # another model's name draws other steps
    assert steps.steps.mean == pytest.approx(2.0, rel=0.15)
