"""Replay: whether a trace is sent when its file says, and what of its lateness is the machine's."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.clients.adapters import Floor, Installed, Load
from benchmarks.harness import made_files, truth
from benchmarks.harness.page import Bar, Section, markdown, spread
from benchmarks.harness.process import Command, Cost, CouldNotRun, checkout_env, run
from loadgen.base.arrays import Int64
from loadgen.records.record import Records

_RATE_PER_S = 200.0
_REQUESTS = 2000  # ten seconds
_MOST_LATE_MS = 1.0
_TURNS = 5  # of ten seconds for each load
_BLOCKS = 8  # of a request at most, of 512 tokens each: 2,050 tokens in the mean
_ANSWER = 8
_TTFT_MS, _INTERVAL_MS = 20.0, 2.0
_LONGEST_S = 60  # of watching one run
_RECOVERED_NS = 10_000_000  # after a slow moment what was due in it has been sent
_ABOUT = (
    f"{_REQUESTS} requests of 2,050 tokens on average, {_RATE_PER_S:g} per second. Lateness runs from when a"
    " request was due to the kernel's receive timestamp at the server. In a slow moment, and"
    f" {_RECOVERED_NS / 1e6:g} ms after it, a loop of arithmetic takes over three times its best."
)
_FLOOR = Load(
    "evenly spaced", 400, _REQUESTS, _ANSWER, _INTERVAL_MS, _TTFT_MS, 2048, requests_per_s=_RATE_PER_S
)


@dataclass(frozen=True)
class Seen:
    """What the server and the machine show of one run."""

    received_ns: Int64  # when the server's kernel received each request, sorted
    slow_ns: Int64 | None  # when it computed at less than a third of its speed, sorted; None: not watched
    stolen: float  # share of the machine's time that its host gave to others


@dataclass(frozen=True)
class Lateness:
    """How late the requests of one run were: received by the server's kernel − due, ms."""

    p50_ms: float
    p99_ms: float
    away_p99_ms: float  # of the requests that no slow moment came right before
    away: float  # their share
    stolen: float
    rate_error: float  # of the rate at which they were received, against the one at which they were due
    late_bodies: int = 0
    verdict: str = ""

    @classmethod
    def of(cls, due_ns: Int64, seen: Seen, late_bodies: int = 0, verdict: str = "") -> Lateness:
        """From when each request was due; raises CouldNotRun where some were not received."""
        due_ns, received_ns = np.sort(due_ns), seen.received_ns
        if len(received_ns) != len(due_ns):
            raise CouldNotRun(f"the server answered {len(received_ns)} requests of {len(due_ns)}")
        late_ms = (received_ns - due_ns) / 1e6
        away = np.zeros(len(due_ns), bool)
        if seen.slow_ns is not None:
            before = np.searchsorted(seen.slow_ns, due_ns - _RECOVERED_NS)
            away = np.searchsorted(seen.slow_ns, received_ns, "right") == before
        p50_ms, p99_ms = np.percentile(late_ms, (50, 99)).tolist()
        away_p99_ms = float(np.percentile(late_ms[away], 99)) if away.any() else float("nan")
        rate_error = int(due_ns[-1] - due_ns[0]) / max(int(received_ns[-1] - received_ns[0]), 1) - 1
        share = float(away.mean())
        return cls(p50_ms, p99_ms, away_p99_ms, share, seen.stolen, rate_error, late_bodies, verdict)


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
                late[name].append(ours(words, _REQUESTS, installed.slow_moments))
            if installed.floor is not None:
                late["floor"].append(_floor(installed.floor, installed.slow_moments))
    bars = [_held(name, late[name], late["floor"]) for name in flags]
    head = ("load", "P50 lateness", "P99", "P99 away from slow moments", "their share", "stolen by the host",
            "bodies not ready", "verdict")  # fmt: skip
    rows = [
        (
            name,
            spread([each.p50_ms for each in runs], "{:.3f}") + " ms",
            spread([each.p99_ms for each in runs], "{:.3f}") + " ms",
            spread([each.away_p99_ms for each in runs], "{:.3f}") + " ms",
            spread([100 * each.away for each in runs], "{:.0f}") + " %",
            spread([100 * each.stolen for each in runs], "{:.1f}") + " %",
            str(max(each.late_bodies for each in runs)),
            ", ".join(sorted({each.verdict for each in runs})),
        )
        for name, runs in late.items()
        if runs
    ]
    return Section("Trace replay", bars, [_ABOUT, "", *markdown(head, rows)])


def _held(name: str, runs: list[Lateness], floor: list[Lateness]) -> Bar:
    p99_ms = [each.p99_ms for each in runs]
    away_ms = spread([each.away_p99_ms for each in runs], "{:.3f}")
    measured = f"{spread(p99_ms, '{:.3f}')} ms; away from slow moments {away_ms} ms"
    if floor:
        measured += f"; floor {spread([each.p99_ms for each in floor], '{:.3f}')} ms"
    met = statistics.median_high(p99_ms) <= _MOST_LATE_MS
    return Bar(f"{name} at {_RATE_PER_S:g} req/s: P99 lateness", measured, f"≤ {_MOST_LATE_MS:g} ms", met)


@contextmanager
def _server() -> Iterator[tuple[str, list[int]]]:
    """A null server's address, and what it has received once the context has ended."""
    with tempfile.TemporaryDirectory() as name:
        log, received_ns = Path(name) / "truth.jsonl", list[int]()
        with truth.null_server(log, _TTFT_MS, _INTERVAL_MS) as server:
            yield server.base_url, received_ns
        received_ns += sorted(row.received_ns for row in truth.rows_of(log))


def ours(words: list[str], requests: int, slow_moments: Path | None) -> Lateness:
    """One run of this checkout; raises CouldNotRun."""
    with tempfile.TemporaryDirectory() as out:
        argv = [sys.executable, "-m", "loadgen", "bench", "--model", "null", "--quiet", "--run-dir", out]
        argv += ["--num-prompts", str(requests), "--seed", "1", *words]
        _, seen = _run(lambda url: Command([*argv, "--base-url", url], checkout_env()), slow_moments)
        (directory,) = (path.parent for path in Path(out).glob("*/result.json"))
        due_ns = Records.load(directory / "arrivals.npz").intended_ns
        facts = json.loads((directory / "result.json").read_text("utf-8"))["loadgen"]
    return Lateness.of(due_ns, seen, facts["client"]["late_bodies"], facts["verdict"]["level"])


def _floor(floor: Floor, slow_moments: Path | None) -> Lateness:
    """One run of the floor; raises CouldNotRun."""
    cost, seen = _run(lambda url: floor.command(_FLOOR, url, Path()), slow_moments)
    begin_ns = int(json.loads(cost.stdout)["begin_ns"])
    return Lateness.of(begin_ns + (np.arange(_REQUESTS) * 1e9 / _RATE_PER_S).astype(np.int64), seen)


def _run(command: Callable[[str], Command], slow_moments: Path | None) -> tuple[Cost, Seen]:
    """A client's run against a null server of its own; raises CouldNotRun when it fails."""
    with _server() as (url, received_ns), _watched(slow_moments) as slow_ns:
        before = psutil.cpu_times()
        cost = run(command(url))
        after = psutil.cpu_times()
    stolen = (_stolen_s(after) - _stolen_s(before)) / max(1e-9, sum(after) - sum(before))
    slow = None if slow_moments is None else np.array(slow_ns, np.int64)
    return cost, Seen(np.array(received_ns, np.int64), slow, stolen)


@contextmanager
def _watched(slow_moments: Path | None) -> Iterator[list[int]]:
    """The machine's slow moments once the context has ended; none where the program could not be compiled."""
    slow_ns: list[int] = []
    if slow_moments is None:
        yield slow_ns
        return
    with subprocess.Popen([str(slow_moments), str(_LONGEST_S)], stdout=subprocess.PIPE) as watch:
        try:
            yield slow_ns
        finally:
            watch.terminate()  # also where the run failed: leaving the context waits for it
        assert watch.stdout is not None
        slow_ns += map(int, watch.stdout.read().split())


def _stolen_s(times: object) -> float:
    return float(getattr(times, "steal", 0.0))  # Linux alone reports it
