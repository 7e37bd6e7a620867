"""Sweep reader: vLLM's own code for the plots of its sweeps, on a sweep of ours."""

from __future__ import annotations

import subprocess
from pathlib import Path

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


def read_by_vllm(python: Path, directory: Path) -> str:
    """How many points vLLM skips, and the users of each that it reads; raises CalledProcessError."""
    argv = [str(python), "-c", _READ, str(directory)]
    return _output(argv).splitlines()[-1]


def planned_by_vllm(python: Path, directory: Path, verb: str) -> str:
    """What `vllm bench sweep plot` or `plot_pareto` would draw; raises CalledProcessError."""
    return _output([str(python.with_name("vllm")), "bench", "sweep", verb, str(directory), "--dry-run"])


def _output(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True).stdout
