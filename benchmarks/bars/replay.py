"""Replay: whether a trace is sent when its file says, next to a C program that only sends."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import psutil

from benchmarks.clients.adapters import Floor, Installed, Load
from benchmarks.harness import made_files, truth
from benchmarks.harness.page import Bar, Section, markdown, spread
from benchmarks.harness.process import Command, Cost, CouldNotRun, checkout_env, run
from loadgen.arrays import Int64
from loadgen.metrics.record import Records

_RATE_PER_S = 200.0
_REQUESTS = 2000  # ten seconds
_MOST_LATE_MS = 1.0
_TURNS = 5  # of ten seconds for each load
_BLOCKS = 8  # of a request at most, of 512 tokens each: 2,050 tokens in the mean
_ANSWER = 8
_TTFT_MS, _INTERVAL_MS = 20.0, 2.0
_FLOOR = Load(
    "evenly spaced", 400, _REQUESTS, _ANSWER, _INTERVAL_MS, _TTFT_MS, 2048, requests_per_s=_RATE_PER_S
)


@dataclass(frozen=True)
class Lateness:
    """How late the requests of one run were: received by the server's kernel − due, ms."""

    p50_ms: float
    p99_ms: float
    stolen: float  # share of the machine's time that its host gave to others
    late_bodies: int = 0
    verdict: str = ""

    @classmethod
    def of(
        cls, due_ns: Int64, received_ns: Int64, stolen: float, late_bodies: int = 0, verdict: str = ""
    ) -> Lateness:
        """From when each request was due and received; raises CouldNotRun where some were not."""
        if len(received_ns) != len(due_ns):
            raise CouldNotRun(f"the server answered {len(received_ns)} requests of {len(due_ns)}")
        late_ms = (np.sort(received_ns) - np.sort(due_ns)) / 1e6
        p50_ms, p99_ms = np.percentile(late_ms, (50, 99)).tolist()
        return cls(p50_ms, p99_ms, stolen, late_bodies, verdict)


def replay(installed: Installed, repeats: int) -> Section:
    """A trace of 200 requests per second, random prompts at the same rate, and the floor, taking turns."""
    late: dict[str, list[Lateness]] = {"trace": [], "Poisson": [], "floor": []}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "trace.jsonl"
        made_files.mooncake(file, _REQUESTS, _RATE_PER_S, most_blocks=_BLOCKS, output_len=_ANSWER)
        flags = {
            "trace": ["--trace", str(file), "--trace-format", "mooncake"],
            "Poisson": ["--request-rate", f"{_RATE_PER_S:g}", "--random-input-len", "2048",
                        "--random-output-len", str(_ANSWER)],
        }  # fmt: skip
        for _ in range(min(repeats, _TURNS)):
            for name, words in flags.items():
                late[name].append(_ours(words))
            if installed.floor is not None:
                late["floor"].append(_floor(installed.floor))
    bars = [_held(name, late[name], late["floor"]) for name in flags]
    head = ("load", "P50 lateness", "P99 lateness", "stolen by the host", "bodies not ready", "verdict")
    rows = [
        (
            name,
            spread([each.p50_ms for each in runs], "{:.3f}") + " ms",
            spread([each.p99_ms for each in runs], "{:.3f}") + " ms",
            spread([100 * each.stolen for each in runs], "{:.1f}") + " %",
            str(max(each.late_bodies for each in runs)),
            ", ".join(sorted({each.verdict for each in runs})),
        )
        for name, runs in late.items()
        if runs
    ]
    about = (
        f"{_REQUESTS} requests of 2,050 tokens in the mean, {_RATE_PER_S:g} a second. Lateness is from when a"
        " request was due to the kernel's receive timestamp at the server. The floor sends one"
        " prepared request again and again, evenly spaced: what it is late is the machine's."
    )
    return Section("Trace replay", bars, [about, "", *markdown(head, rows)])


def _held(name: str, runs: list[Lateness], floor: list[Lateness]) -> Bar:
    p99_ms = [each.p99_ms for each in runs]
    measured = spread(p99_ms, "{:.3f}") + " ms"
    if floor:
        measured += f"; floor {spread([each.p99_ms for each in floor], '{:.3f}')} ms"
    met = statistics.median_high(p99_ms) <= _MOST_LATE_MS
    return Bar(f"{name} at {_RATE_PER_S:g} req/s: P99 lateness", measured, f"≤ {_MOST_LATE_MS:g} ms", met)


@dataclass
class _Server:
    """A null server of one run, and once it has ended what it received and what the host took."""

    base_url: str
    received_ns: Int64
    stolen: float = 0.0

    def run(self, command: Command) -> Cost:
        """A client's run; raises CouldNotRun when it fails."""
        before = psutil.cpu_times()
        cost = run(command)
        after = psutil.cpu_times()
        self.stolen = (_stolen_s(after) - _stolen_s(before)) / max(1e-9, sum(after) - sum(before))
        return cost


def _stolen_s(times: object) -> float:
    return float(getattr(times, "steal", 0.0))  # Linux alone reports it


@contextmanager
def _server() -> Iterator[_Server]:
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "truth.jsonl"
        with truth.null_server(log, _TTFT_MS, _INTERVAL_MS) as server:
            running = _Server(server.base_url, np.zeros(0, np.int64))
            yield running
        rows = [msgspec.json.decode(line, type=truth.Row) for line in log.read_bytes().splitlines()]
        running.received_ns = np.array([row.received_ns for row in rows], np.int64)


def _ours(words: list[str]) -> Lateness:
    """One run of this checkout; raises CouldNotRun."""
    with tempfile.TemporaryDirectory() as out:
        argv = [sys.executable, "-m", "loadgen", "bench", "--model", "null", "--quiet", "--run-dir", out]
        argv += ["--num-prompts", str(_REQUESTS), "--seed", "1", *words]
        with _server() as server:
            server.run(Command([*argv, "--base-url", server.base_url], checkout_env()))
        (directory,) = (path.parent for path in Path(out).glob("*/result.json"))
        due_ns = Records.load(directory / "arrivals.npz").intended_ns
        facts = json.loads((directory / "result.json").read_text("utf-8"))["loadgen"]
    late_bodies, verdict = facts["client"]["late_bodies"], facts["verdict"]["level"]
    return Lateness.of(due_ns, server.received_ns, server.stolen, late_bodies, verdict)


def _floor(floor: Floor) -> Lateness:
    """One run of the floor; raises CouldNotRun."""
    with _server() as server:
        cost = server.run(floor.command(_FLOOR, server.base_url, Path()))
    begin_ns = int(json.loads(cost.stdout)["begin_ns"])
    due_ns = begin_ns + (np.arange(_REQUESTS) * 1e9 / _RATE_PER_S).astype(np.int64)
    return Lateness.of(due_ns, server.received_ns, server.stolen)
