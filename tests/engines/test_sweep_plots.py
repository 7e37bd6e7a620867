"""`vllm bench sweep plot` and `plot_pareto` read a sweep of ours."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from loadgen import cli

# Python 3.12 warns of any thread at a fork; the child takes none of their locks.
pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]

# What `plot` draws and `plot_pareto` computes; drawing itself needs packages that vLLM does not bring.
_READ = """
import sys
from pathlib import Path
from vllm.benchmarks.sweep.plot import _json_load_bytes
from vllm.benchmarks.sweep.plot_pareto import _prepare_records
runs = [run for path in sorted(Path(sys.argv[1]).rglob("**/summary.json")) for run in _json_load_bytes(path)]
points, skipped = _prepare_records(runs, user_count_var="max_concurrency", gpu_count_var=None)
assert all(point["total_token_throughput"] > 0 and point["median_ttft_ms"] > 0 for point in points)
print(skipped, *(f"{point['user_count_estimate']:g}" for point in points))
"""


def test_vllm_reads_every_point_of_a_sweep(
    engines_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--input-len", "8", "--output-len", "4", "--num-prompts", "8", "--quiet")
    assert cli.main(["sweep", "--preset", "instant", "--concurrency", "1,2,4", *words]) == 0
    (directory,) = tmp_path.glob("runs/*-sweep-bench")
    argv = [str(engines_python), "-c", _READ, str(directory)]
    read = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True).stdout
    assert read.splitlines()[-1] == "0 1 2 4"
    for verb in ("plot", "plot_pareto"):
        argv = [str(engines_python.with_name("vllm")), "bench", "sweep", verb, str(directory), "--dry-run"]
        shown = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True).stdout
        assert "[END FIGURE]" in shown
