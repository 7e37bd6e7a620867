"""Doubts of real processes, CPUs and the kernel are provoked by real runs; a clean one is not INVALID."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.provoked_processes import PROCESS_RUNS, PROCESSES_ALONE, engine
from loadgen import cli
from loadgen.report.run_directory import REPORT, RESULT

pytestmark = pytest.mark.whole


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files of its own; no process is left behind."""
    monkeypatch.chdir(tmp_path)
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def bench(base_url: str, words: str) -> tuple[int, dict[str, Any], str]:
    """Run the command; its exit code, what the result holds under our name, and the report."""
    code = cli.main(["bench", "--quiet", "--base-url", base_url, *shlex.split(words)])
    (directory,) = Path("runs").iterdir()
    ours = json.loads((directory / RESULT).read_text("utf-8"))["loadgen"]
    return code, ours, (directory / REPORT).read_text("utf-8")


def test_processes_provoke_what_virtual_time_cannot() -> None:
    assert set[str]().union(*(run.doubts for run in PROCESS_RUNS.values())) >= PROCESSES_ALONE


@pytest.mark.parametrize("name", PROCESS_RUNS)
def test_a_run_whose_processes_suffer_says_so(name: str) -> None:
    """What else a busy machine makes of it is not asserted: in virtual time the doubts are exact."""
    case = PROCESS_RUNS[name]
    with contextlib.ExitStack() as stack:
        words, base_url = case.words, stack.enter_context(case.server())
        if case.other is not None:
            words += f" --base-url {stack.enter_context(case.other())}"
        stack.enter_context(case.next_to())
        code, ours, report = bench(base_url, words)
    found = {doubt["name"]: doubt["evidence"] for doubt in ours["verdict"]["doubts"]}
    assert case.doubts <= set(found), found
    assert re.search(rf"\nverdict: {ours['verdict']['level']}\b", report)
    assert code == case.code


@pytest.mark.parametrize("load", ["--max-concurrency 16", "--request-rate 15"])
def test_a_clean_run_is_checked_in_full_and_not_invalid(load: str) -> None:
    with engine() as base_url:
        words = f"--random-input-len 64 --random-output-len 5 --num-prompts 40 --num-warmups wave {load}"
        code, ours, _ = bench(base_url, f"{words} --strict")
    assert (code, ours["verdict"]["level"] in ("VALID", "SUSPECT")) == (0, True)
