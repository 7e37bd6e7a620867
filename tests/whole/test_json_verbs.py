"""--json of each verb that prints a table: one object on standard output, with its keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders import made_runs

pytestmark = pytest.mark.whole
SMOKE = "--profile smoke --num-prompts 4"
HISTORY = Path(__file__).parents[1] / "data" / "histories" / "slower.jsonl"
LOG = Path(__file__).parents[1] / "data" / "logs" / "litellm-1.110.jsonl"
VERBS = {
    f"bench {SMOKE}": {"output_throughput", "loadgen"},
    f"bench {SMOKE} --repeat 2": {"runs"},
    f"sweep {SMOKE} --concurrency 1,2": {"points", "axis"},
    "ladder --profile smoke --depth 0,64 -p 16 -n 4": {"rows"},
    "campaign": {"campaigns"},
    "report made/run": {"output_throughput", "loadgen"},
    "report made": {"runs", "comparisons"},
    "compare made": {"comparisons"},
    "audit made": {"runs"},
    f"history {HISTORY}": {"metrics", "entries"},
    "profiles": {"profiles"},
    "profiles smoke": {"name", "input_len"},
    "engine --list-presets": {"presets"},
    "data --profile smoke": {"kind"},
    "data describe --profile smoke": {"workloads", "fidelity"},
    f"data learn {LOG} -o w.jsonl.gz": {"workload", "calls", "fidelity"},
    "selftest --seconds 2 --no-save": {"modes", "selftests"},
}


@pytest.mark.parametrize("words", VERBS)
def test_one_object_is_all_that_is_on_standard_output(words: str, tmp_path: Path) -> None:
    for name in ("run", "other"):
        (tmp_path / "made" / name).mkdir(parents=True)
        made_runs.keep(made_runs.run(seed=len(name)), tmp_path / "made" / name)
    command = [sys.executable, "-m", "loadgen", *words.split(), "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env={**os.environ, "NO_COLOR": "1"}
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout, parse_constant=pytest.fail)
    assert VERBS[words] <= told.keys()
