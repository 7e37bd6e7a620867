"""Data: planning files of a million rows, and whether a trace is sent when it says."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.clients.adapters import Installed
from benchmarks.harness import made_files, truth
from benchmarks.harness.page import Bar, Section, markdown, spread
from benchmarks.harness.process import ROOT, Command, Cost, CouldNotRun, checkout_env, run
from loadgen.metrics.record import Records

_ROWS = 1_000_000
_MOST_S, _MOST_MIB = 30.0, 1024.0
_RATE_PER_S = 200.0
_REQUESTS = 2000  # ten seconds
_MOST_LATE_MS = 1.0
_PAIRS = 2  # of a trace and random prompts, ten seconds each
_BLOCKS = 8  # of a request at most, of 512 tokens each: 2,050 tokens in the mean
_ANSWER = 8
_TTFT_MS, _INTERVAL_MS = 20.0, 2.0

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
        bars += [
            Bar(f"a million rows planned: {what}", seconds, f"≤ {_MOST_S:g} s", cost.wall_s <= _MOST_S),
            Bar(f"a million rows, peak RSS: {what}", peak, f"≤ {_MOST_MIB:g} MiB", mib <= _MOST_MIB),
        ]
        each_us = 1e6 * made["bodies_s"] / 1000
        rows.append((what, f"{size_mb:.0f}", f"{cost.wall_s:.1f}", f"{made['plan_s']:.1f}", f"{mib:.0f}",
                     f"{each_us:.0f}"))  # fmt: skip
    head = ("file", "MB", "process s", "plan s", "peak RSS MiB", "µs a body")
    return Section("A million rows", bars, markdown(head, rows), faults)


def _planned(keys: dict[str, object]) -> Cost:
    script = ROOT / "benchmarks" / "planned.py"
    return run(Command([sys.executable, str(script), json.dumps(keys)], checkout_env()))


@dataclass(frozen=True)
class Lateness:
    """How late the requests of one run were, P99 in ms."""

    sent_ms: float  # by the client's clock: sent − due
    received_ms: float  # by the server's kernel: received − due
    verdict: str
    late_bodies: int


def replay(installed: Installed, repeats: int) -> Section:
    """A trace of 200 requests per second next to random prompts at the same rate, taking turns."""
    late: dict[str, list[Lateness]] = {"trace": [], "Poisson": []}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "trace.jsonl"
        made_files.mooncake(file, _REQUESTS, _RATE_PER_S, most_blocks=_BLOCKS, output_len=_ANSWER)
        flags = {
            "trace": ["--trace", str(file), "--trace-format", "mooncake"],
            "Poisson": ["--request-rate", f"{_RATE_PER_S:g}", "--random-input-len", "2048",
                        "--random-output-len", str(_ANSWER)],
        }  # fmt: skip
        for _ in range(min(repeats, _PAIRS)):
            for name, words in flags.items():
                late[name].append(_late(words))
    bars = [_held("trace at 200 req/s: P99 lateness", late["trace"])]
    bars.append(_held("Poisson at 200 req/s: P99 lateness", late["Poisson"]))
    head = ("load", "P99 sent − due", "P99 received − due", "bodies not ready", "verdict")
    rows = [
        (
            name,
            spread([run.sent_ms for run in runs], "{:.3f}") + " ms",
            spread([run.received_ms for run in runs], "{:.3f}") + " ms",
            str(max(run.late_bodies for run in runs)),
            ", ".join(run.verdict for run in runs),
        )
        for name, runs in late.items()
    ]
    count = f"{_REQUESTS} requests of 2,050 tokens in the mean; received: the server's kernel timestamp."
    return Section("Trace replay", bars, [count, "", *markdown(head, rows)])


def _held(what: str, runs: list[Lateness]) -> Bar:
    p99_ms = [run.received_ms for run in runs]
    met = statistics.median_high(p99_ms) <= _MOST_LATE_MS
    return Bar(what, spread(p99_ms, "{:.3f}") + " ms", f"≤ {_MOST_LATE_MS:g} ms", met)


def _late(words: list[str]) -> Lateness:
    """One run against a null server of its own; raises CouldNotRun."""
    with tempfile.TemporaryDirectory() as name:
        out, log = Path(name), Path(name) / "truth.jsonl"
        argv = [sys.executable, "-m", "loadgen", "bench", "--model", "null", "--quiet", "--run-dir", str(out)]
        argv += ["--num-prompts", str(_REQUESTS), "--seed", "1", *words]
        with truth.null_server(log, _TTFT_MS, _INTERVAL_MS) as server:
            run(Command([*argv, "--base-url", server.base_url], checkout_env()))
        (directory,) = (path.parent for path in out.glob("*/result.json"))
        records = Records.load(directory / "arrivals.npz")
        received = [
            msgspec.json.decode(line, type=truth.Row).received_ns for line in log.read_bytes().splitlines()
        ]
        facts = json.loads((directory / "result.json").read_text("utf-8"))["loadgen"]
    if len(received) != _REQUESTS:
        raise CouldNotRun(f"the server answered {len(received)} requests of {_REQUESTS}")
    due_ns = np.sort(records.intended_ns)
    waits_ns = records.sent_ns - records.intended_ns, np.sort(np.array(received, np.int64)) - due_ns
    sent_ms, received_ms = (float(np.percentile(wait_ns, 99)) / 1e6 for wait_ns in waits_ns)
    return Lateness(sent_ms, received_ms, facts["verdict"]["level"], facts["client"]["late_bodies"])
