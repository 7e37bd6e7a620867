"""Data: planning files of a million rows."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.clients.adapters import Installed
from benchmarks.harness import made_files
from benchmarks.harness.page import Bar, Section, markdown
from benchmarks.harness.process import ROOT, Command, Cost, CouldNotRun, checkout_env, run

_ROWS = 1_000_000
_MOST_S, _MOST_MIB = 30.0, 1024.0
_RATE_PER_S = 200.0

_FILES: dict[str, tuple[Callable[[Path], None], str, dict[str, str]]] = {
    "trace, 20 hash ids a row": (
        lambda path: made_files.mooncake(path, _ROWS, _RATE_PER_S),
        "trace",
        {"trace_format": "mooncake"},
    ),
    "whole chat bodies": (
        lambda path: made_files.bodies(path, _ROWS),
        "dataset_path",
        {"backend": "openai-chat"},
    ),
    "prompts of vLLM's `custom`": (lambda path: made_files.prompts(path, _ROWS), "dataset_path", {}),
}


def million_rows(installed: Installed, repeats: int) -> Section:
    """The plan of a file of a million rows, from opening it to the plan's digest; each file once."""
    bars, rows, faults = [], [], []
    for what, (make, key, more) in _FILES.items():
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "rows.jsonl"
            make(file)
            size_mb = file.stat().st_size / 1e6
            try:
                cost = _planned({key: str(file), "num_prompts": _ROWS, **more})
            except CouldNotRun as error:
                bars.append(Bar(f"a million rows: {what}", "could not run, see below", "", None))
                faults.append(f"a million rows, {what}: {error}")
                continue
        mib, made = cost.peak_rss_bytes / 2**20, json.loads(cost.stdout.splitlines()[-1])
        assert made["requests"] == _ROWS, f"{what}: {made['requests']} requests are planned"
        seconds, peak = f"{cost.wall_s:.1f} s", f"{mib:.0f} MiB"
        met, limit = cost.wall_s <= _MOST_S and mib <= _MOST_MIB, f"≤ {_MOST_S:g} s, ≤ {_MOST_MIB:g} MiB"
        bars.append(Bar(f"a million rows planned, peak RSS: {what}", f"{seconds}, {peak}", limit, met))
        each_us = 1e6 * made["bodies_s"] / 1000
        rows.append((what, f"{size_mb:.0f}", f"{cost.wall_s:.1f}", f"{made['plan_s']:.1f}", f"{mib:.0f}",
                     f"{each_us:.0f}"))  # fmt: skip
    head = ("file", "MB", "process s", "plan s", "peak RSS MiB", "µs a body")
    return Section("A million rows", bars, markdown(head, rows), faults)


def _planned(keys: dict[str, object]) -> Cost:
    script = ROOT / "benchmarks" / "planned.py"
    return run(Command([sys.executable, str(script), json.dumps(keys)], checkout_env()))
