"""`loadgen history`: what it prints of a file and of runs, and what it refuses."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from builders import made_runs
from builders.loops import read_tables
from builders.made_runs import WHEN
from loadgen import cli
from loadgen.study import bundle_command

TABLES = read_tables("history_command")

RECORDED = Path(__file__).parents[2] / "data" / "histories"
SLOWER = str(RECORDED / "slower.jsonl")


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["history", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["history", *words]) == 2
    out, error = capsys.readouterr()
    (line,) = error.splitlines()
    assert out == ""
    return line


def keep(place: Path, seed: int, **facts: Any) -> str:
    """A run directory of ours, a day later than the one of the seed before."""
    began = WHEN + timedelta(days=seed)
    facts = {"started": began, "finished": began + timedelta(minutes=1), **facts}
    (place / f"run-{seed}").mkdir(parents=True)
    return str(made_runs.keep(made_runs.run(seed=seed, **facts), place / f"run-{seed}"))


def test_the_run_that_changed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(shown(capsys, SLOWER).split())
    assert "tok/s: slower (-4.6 %) from 7ca651ecd79a small on (2026-11-27 01:11), between" in text
    assert "TPOT ms: slower (+4.9 %) from 7ca651ecd79a small on" in text
    assert "7ca651ecd79a small VALID 423.37 ▼ 16.03 8.97 ▲ 20.83" in text
    text = shown(capsys, SLOWER, "--metric", "p99_itl_ms,tok/s")
    assert ["time", "what", "verdict", "p99_itl_ms", "tok/s"] in [line.split() for line in text.splitlines()]
    assert "A change is found in 5 % of histories" in text
    assert shown(capsys, SLOWER, "--metric", "itl_p99,throughput") == text  # as a gate names them


def test_bundles_of_a_directory_are_measurements(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for seed in range(2):
        run = keep(tmp_path / "runs", seed, metadata=(f"commit=c{seed}",))
        bundle_command.write_bundle([Path(run)], tmp_path / "kept" / f"{seed}.bundle", False)
    told = json.loads(shown(capsys, str(tmp_path / "kept"), "--json"))
    assert [each["commit"] for each in told["entries"]] == ["c0", "c1"]
    assert shown(capsys, str(tmp_path / "kept")) == shown(capsys, str(tmp_path / "runs"))


def test_what_cannot_be_a_history_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = Path(SLOWER).read_text().splitlines()
    for name, text in {
        "empty.jsonl": "",
        "cut.jsonl": f"{lines[0]}\n{lines[1][:50]}\n",
        "machine.jsonl": f"{lines[0]}\n{lines[1].replace('small-gpu', 'other')}",
        "load.jsonl": f"{lines[0]}\n{lines[1].replace('requests 48', 'requests 49')}",
    }.items():
        Path(name).write_text(text)
    Path("none").mkdir()
    keep(tmp_path / "two", 0)
    keep(tmp_path / "two", 1, requests=32)
    for given, why in TABLES["refused"]:
        words = [SLOWER if word == "SLOWER" else word for word in given]
        assert refused(capsys, *words, "--json").startswith(f"loadgen: {why.replace('SLOWER', SLOWER)}")
        assert refused(capsys, *words).startswith(f"loadgen: {why.replace('SLOWER', SLOWER)}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cut.jsonl", "empty.jsonl", "load.jsonl", "machine.jsonl", "none", "two",
    ]  # fmt: skip
