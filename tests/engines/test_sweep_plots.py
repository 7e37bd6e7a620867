"""`vllm bench sweep plot` and `plot_pareto` read a sweep of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.sweep_reader import read_by_vllm
from loadgen import cli

# Python 3.12 warns of any thread at a fork; the child takes none of their locks.
pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]


def test_vllm_reads_every_point_of_a_sweep(
    engines_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--input-len", "8", "--output-len", "4", "--num-prompts", "8", "--quiet")
    assert cli.main(["sweep", "--preset", "instant", "--concurrency", "1,2,4", *words]) == 0
    (directory,) = tmp_path.glob("runs/*-sweep-bench")
    assert read_by_vllm(engines_python, directory) == "0 1 2 4"
