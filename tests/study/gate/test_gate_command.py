"""`loadgen gate` over given runs: its exit codes, what it writes, and what it refuses before it does."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from builders import made_runs
from builders.loops import loop_over, read_tables
from loadgen import cli
from loadgen.base.errors import ExitCode
from loadgen.study.history import history_command
from loadgen.study.history.history_command import read_history

TABLES = read_tables("gate_command")
SEEDS = range(4)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    for name in ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT"):
        monkeypatch.delenv(name, raising=False)


def kept(place: str, speed: float = 1.0, seeds: range = SEEDS, **told: Any) -> str:
    """A directory of runs, the k-th with the k-th prompts, of 160 requests, whose figures hardly vary."""
    told = {"requests": 160, "tokens": 6, "concurrency": 8, **told}
    for seed in seeds:
        run = made_runs.run(speed=speed, seed=seed, plan_digest=f"plan-{seed}", **told)
        directory = Path(place, f"run-{seed}")
        directory.mkdir(parents=True)
        made_runs.keep(run, directory)
    return place


def gate(*words: str) -> int:
    return cli.main(["gate", *words])


@pytest.mark.parametrize(("new", "words", "code", "first"), TABLES["outcomes"])
def test_the_exit_code_is_the_outcome(
    new: dict[str, Any], words: list[str], code: int, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate(kept("new", **{"speed": 1.001, **new}), kept("base"), *words) == code
    assert capsys.readouterr().out.startswith(first[:78])


def test_two_repeats_are_undecided_with_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(kept("new", 0.97, range(2)), kept("base", seeds=range(2))) == ExitCode.UNDECIDED
    first = capsys.readouterr().out.splitlines()[0]
    assert re.fullmatch(r"gate: undecided: about \d+ (to \d+ )?pairs? more would decide", first)


def test_it_writes_where_pipelines_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    monkeypatch.setenv("GITHUB_SHA", "c0ffee")
    Path("summary.md").write_text("before", "utf-8")
    words = ["--json", "--junit", "gate.xml", "--history", "h.jsonl", "--label", "v2"]
    assert gate(kept("new", 0.8), kept("base"), *words) == ExitCode.SLOWER
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert (told["outcome"], told["exit_code"], told["pairs"]) == ("slower", 5, 4)
    assert '<failure type="slower"' in Path("gate.xml").read_text("utf-8")
    before, heading, *_ = Path("summary.md").read_text("utf-8").splitlines()
    assert (before, heading) == ("before", "### gate: slower by more than 3 %: tok/s (4 pairs)")
    (entry,) = read_history("h.jsonl")
    assert (entry.label, entry.commit, entry.verdict, entry.runs) == ("v2", "c0ffee", "slower", 4)


def test_an_output_that_cannot_be_written_makes_4_of_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("summary").mkdir()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary")
    assert gate(kept("new", 1.001), kept("base")) == ExitCode.UNWRITTEN
    assert "loadgen: cannot write summary: " in capsys.readouterr().err


@pytest.mark.parametrize(("slower", "code"), [(1.001, ExitCode.UNWRITTEN), (0.9, ExitCode.SLOWER)])
def test_a_disk_that_takes_no_history_costs_no_verdict(
    slower: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(handle: int, entry: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(history_command, "_append_line", full)
    assert gate(kept("new", slower), kept("base"), "--history", "h.jsonl") == code
    shown = capsys.readouterr()
    assert "loadgen: cannot write h.jsonl: No space left on device" in shown.err
    assert "tok/s" in shown.out


@loop_over(("words", "message"), TABLES["refused"])
def test_bad_input_is_one_line_and_2_and_nothing_is_written(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path("base").exists():
        kept("new", 0.9, seeds=range(2))
        kept("base", seeds=range(2))
        kept("copy", seeds=range(2))
        Path("bare").mkdir()
        Path("broken.json").write_text('{"vllm": 1', "utf-8")
        Path("torn.jsonl").write_text("{}\n", "utf-8")
    before = sorted(Path().rglob("*"))
    capsys.readouterr()
    assert gate(*words) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert message in shown.err
    assert sorted(Path().rglob("*")) == before


def test_a_history_of_another_load_is_refused_before_anything_is_written() -> None:
    kept("base")
    Path("h.jsonl").touch()
    assert gate(kept("new", 1.001), "base", "--history", "h.jsonl") == 0
    one = Path("h.jsonl").read_bytes()
    others = kept("other", tokens=9), kept("others", 1.001, tokens=9)
    assert gate(*others, "--history", "h.jsonl", "--junit", "j.xml") == ExitCode.USAGE
    assert (Path("h.jsonl").read_bytes(), Path("j.xml").exists()) == (one, False)
