"""Sweep reader: vLLM's own code for the plots of its sweeps, on sweeps of ours."""

from __future__ import annotations

import subprocess
from pathlib import Path

# What `plot_pareto` computes, and what it and `plot` would draw: to draw, vLLM lacks packages. In one
# process, since vLLM takes many seconds to import.
_READ = """
import sys
from pathlib import Path
from vllm.benchmarks.sweep.plot import _json_load_bytes
from vllm.benchmarks.sweep.plot_pareto import _prepare_records
from vllm.entrypoints.cli.main import main
for directory in sys.argv[1:]:
    summaries = sorted(Path(directory).rglob("**/summary.json"))
    runs = [run for path in summaries for run in _json_load_bytes(path)]
    points, skipped = _prepare_records(runs, user_count_var="max_concurrency", gpu_count_var=None)
    assert all(point["total_token_throughput"] > 0 and point["median_ttft_ms"] > 0 for point in points)
    print("SWEEP", skipped, *(f"{point['user_count_estimate']:g}" for point in points))
    for verb in ("plot", "plot_pareto"):
        sys.argv = ["vllm", "bench", "sweep", verb, directory, "--dry-run"]
        print("VERB", verb)
        main()
"""


def read_by_vllm(python: Path, *directories: Path) -> list[str]:
    """How many points of each sweep vLLM skips, and the users of the others; raises CalledProcessError.

    Fails unless `vllm bench sweep plot` and `plot_pareto` would each draw a figure of each sweep.
    """
    argv = [str(python), "-c", _READ, *map(str, directories)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True)
    points = []
    for sweep in ran.stdout.split("SWEEP ")[1:]:
        of_sweep, *drawn = sweep.split("VERB ")
        assert ["[END FIGURE]" in figures for figures in drawn] == [True, True], sweep
        points.append(of_sweep.strip())
    return points
