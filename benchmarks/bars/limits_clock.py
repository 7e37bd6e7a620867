"""Limits by the clock: whole searches over HTTP, of an engine whose limit is known by a formula."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.bars.limits import MOST_RUNS, WHAT
from benchmarks.clients.adapters import Installed
from benchmarks.harness.page import Bar, Section
from benchmarks.harness.process import Command, CouldNotRun, checkout_env, run
from benchmarks.simulated.queue import utilisation_at
from loadgen.study.limit_record import LimitEstimate, LimitRecord

_SERVICE_MS = 40.0  # long next to what a virtual machine's host takes from it at a time
_SERVICES = 3.0  # that a request may wait
_PERCENTILE = 90
_SEARCHES, _GOOD = 10, 9  # in virtual time 97 in 100 such searches come within 5 %
_FIRST_SEED = 22_100
_OFF = 4.0  # the first load is at most so many times too high or too low
_WITHIN = 0.05
_BUDGET_S = 720
_LEAST_S = 20  # of a run
_LIMIT_S = 1200.0
_PRESET = {
    "name": "one-slot",
    "model": "one-slot",
    "source": "made for this benchmark",
    "max_model_len": 1024,
    "max_num_batched_tokens": 1024,
    "kv_cache_tokens": 100_000,
    "timing": {"overhead_ms": _SERVICE_MS},
}
_REQUESTS = ("--input-len", "8", "--output-len", "1", "--vocab-size", "1000")


@dataclass(frozen=True)
class _Queue:
    """The engine as it is over HTTP: what it ends in a second when busy, and TTFT of a request alone."""

    url: str
    capacity_per_s: float
    alone_ms: float

    @property
    def limit_ms(self) -> float:
        """Of TTFT: the longest wait, and what the request takes alone."""
        return self.alone_ms + 1e3 * _SERVICES / self.capacity_per_s

    @property
    def truth_per_s(self) -> float:
        """The rate at which as many requests wait longer as the percentile allows (M/D/1)."""
        return utilisation_at(1 - _PERCENTILE / 100, _SERVICES) * self.capacity_per_s


@dataclass(frozen=True)
class _Found:
    """A search's record, next to the truth."""

    record: LimitRecord
    truth_per_s: float

    @property
    def limit(self) -> LimitEstimate:
        return self.record.limit or LimitEstimate(value=None, low=None, high=None)

    @property
    def close(self) -> bool:
        value = self.limit.value
        return value is not None and abs(math.log(value / self.truth_per_s)) <= math.log1p(_WITHIN)

    @property
    def covers(self) -> bool:
        """An end of the interval that is not known covers all on its side."""
        high = math.inf if self.limit.high is None else self.limit.high
        return (self.limit.low or 0.0) <= self.truth_per_s <= high

    @property
    def words(self) -> str:
        return f"{_shown(self.limit.value)} ({_shown(self.limit.low)}–{_shown(self.limit.high)})"


def limits_clock(installed: Installed, repeats: int) -> Section:
    """Ten seeded searches on the real clock, at the same time, each of its own engine; once."""
    seeds = range(_FIRST_SEED, _FIRST_SEED + _SEARCHES)
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        scratch = Path(name)
        urls = [running.enter_context(_engine()) for _ in seeds]
        queue = _measured(urls[0], scratch)
        queues = [replace(queue, url=url) for url in urls]
        with ThreadPoolExecutor(_SEARCHES) as pool:
            found = list(pool.map(partial(_searched, scratch), queues, seeds))
    close, covered = sum(each.close for each in found), sum(each.covers for each in found)
    most = max(len(each.record.runs) for each in found)
    met = min(close, covered) >= _GOOD and most <= MOST_RUNS
    limit = f"≥ {_GOOD}, ≥ {_GOOD}, ≤ {MOST_RUNS}"
    bars = [Bar(f"limit by the clock: {WHAT} (of {_SEARCHES})", f"{close}, {covered}, {most}", limit, met)]
    lines = [
        f"The embedded engine with one slot and steps of {_SERVICE_MS:g} ms, over HTTP, Poisson arrivals.",
        f"When busy it ended {queue.capacity_per_s:.1f} requests/s; one alone took {queue.alone_ms:.2f} ms.",
        f"P{_PERCENTILE} of TTFT may be {queue.limit_ms:.2f} ms, a wait of {_SERVICES:g} services:",
        f"by M/D/1 that is so up to **{queue.truth_per_s:.1f} requests/s**. Runs of {_LEAST_S} s at least,",
        f"{_BUDGET_S} s a search; ten searches and ten engines share the CPUs.",
        "",
        f"Limits found, with their 95 % intervals: {', '.join(each.words for each in found)}.",
    ]
    return Section("The limit by the clock", bars, lines)


@contextmanager
def _engine() -> Iterator[str]:
    """An engine of one slot and constant service; its address."""
    argv = [sys.executable, "-m", "loadgen", "engine", "--preset-json", json.dumps(_PRESET)]
    argv += ["--max-num-seqs", "1", "--exit-with-stdin"]
    env = {**os.environ, **checkout_env()}
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        line = engine.stdout.readline()
        if not line:
            raise CouldNotRun("the engine did not start")
        try:
            yield str(json.loads(line)["base_url"])
        finally:
            engine.terminate()


def _measured(url: str, scratch: Path) -> _Queue:
    """The queue that the engine is, by two runs of a closed loop."""
    alone, busy = (_benched(url, scratch, streams) for streams in (1, 8))
    return _Queue(url, busy["request_throughput"], alone["mean_ttft_ms"])


def _benched(url: str, scratch: Path, streams: int) -> Mapping[str, float]:
    path = scratch / f"{streams}.json"
    flags = ("--max-concurrency", f"{streams}", "--num-prompts", "500", "--save-result")
    _loadgen("bench", url, *flags, "--result-filename", str(path), "--run-dir", str(scratch / "bench"))
    figures: Mapping[str, float] = json.loads(path.read_text("utf-8"))
    return figures


def _searched(scratch: Path, queue: _Queue, seed: int) -> _Found:
    start = queue.truth_per_s * _OFF ** np.random.default_rng(seed).uniform(-1, 1)
    directory = scratch / f"{seed}"
    asked = ("--slo", f"ttft p{_PERCENTILE} < {queue.limit_ms:.3f}ms", "--over", "rate")
    costs = ("--start", f"{start:.4g}", "--budget", f"{_BUDGET_S}s", "--min-duration", f"{_LEAST_S}s")
    _loadgen("limit", queue.url, *asked, *costs, "--seed", f"{seed}", "--run-dir", str(directory))
    (path,) = directory.glob("*/limit.json")
    return _Found(LimitRecord.model_validate_json(path.read_text("utf-8")), queue.truth_per_s)


def _loadgen(command: str, url: str, *flags: str) -> None:
    argv: Sequence[str] = (sys.executable, "-m", "loadgen", command, "--base-url", url, *_REQUESTS, *flags)
    run(Command(argv, checkout_env()), _LIMIT_S)


def _shown(load: float | None) -> str:
    return "–" if load is None else f"{load:.4g}"
