"""Merged shards: two commands at one instant, one of them by another clock, are merged as one run."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fakes.counting_api import CountingApi
from fakes.scripted_server import ScriptedServer
from loadgen import cli
from loadgen.report import run_directory

pytestmark = pytest.mark.whole
AHEAD_S = 1000  # CLOCK_MONOTONIC in the second one's time namespace
ELSEWHERE = ["unshare", "--time", "--monotonic", str(AHEAD_S), "--fork"]
FLAGS = (
    "--random-input-len 8 --random-output-len 3 --num-prompts 40 --request-rate 40 --seed 5 --run-dir runs"
)
LEAD_S = 15


def has_time_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*ELSEWHERE, "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_time_namespaces(), reason="no time namespace can be made here")
def test_a_shard_of_another_clock_is_merged_to_the_nanosecond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with ScriptedServer(CountingApi(tokenize=True, owner="vllm")) as server:
        start = f"--base-url {server.base_url} --start-at {time.time() + LEAD_S:.0f}"
        loadgen = [sys.executable, "-m", "loadgen", "bench", "--quiet", *shlex.split(f"{FLAGS} {start}")]
        shards = [
            subprocess.Popen([*place, *loadgen, "--shard", f"{number}/2"], stdout=subprocess.DEVNULL)
            for number, place in enumerate(([], ELSEWHERE))
        ]
        assert [shard.wait(60) for shard in shards] == [0, 0]
    runs = sorted(str(path) for path in Path("runs").iterdir())
    assert cli.main(["merge", *runs, "--output", "both"]) == 0
    both = run_directory.load(Path("both"))
    first, second = both.facts.shards
    assert (first.offset_ns, first.reference, second.reference) == (0, "", "wall clock")
    assert abs(second.offset_ns + AHEAD_S * 10**9) < 10**6
    assert both.records.ok.all()
    assert both.records.index.tolist() == list(range(40))
    due_ns = both.records.intended_ns
    assert (np.diff(due_ns) > -(10**6)).all()  # one schedule, of both clocks
    assert both.metrics.duration_s < LEAD_S
