"""Truth: a new null server, and the true figures from its log."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.harness.process import CouldNotRun, checkout_env
from loadgen.base.arrays import Int64

_STOP_S = 60.0


class Row(msgspec.Struct):
    """One request in the log: kernel timestamp of its arrival, CLOCK_MONOTONIC before each token's write."""

    received_ns: int
    wrote_ns: list[int]


@dataclass(frozen=True)
class Truth:
    """The true figures of one client's run."""

    requests: int
    tokens: int
    first_ns: int  # when the first request arrived
    mean_ttft_ms: float  # from a request's arrival to right before its first token's write
    p99_itl_ms: float  # of all gaps between a request's writes
    peak_streams: int  # requests that were in the server at once
    mean_streams: float  # over the time from the first arrival to the last write


@dataclass
class NullServer:
    """A null server that runs, and once it has ended the CPU seconds that it used."""

    base_url: str
    cpu_s: float = 0.0


@contextmanager
def null_server(log: Path, ttft_ms: float, interval_ms: float, nagle: bool = False) -> Iterator[NullServer]:
    """A null server; the log is written when the context ends. Raises CouldNotRun."""
    argv = [sys.executable, "-m", "loadgen_servers.null", "--log", str(log)]
    argv += ["--ttft-ms", str(ttft_ms), "--interval-ms", str(interval_ms)]
    argv += ["--nagle"] * nagle
    server = subprocess.Popen(argv, env={**os.environ, **checkout_env()}, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        with server.stdout as pipe:
            line = pipe.readline()
            if not line:
                raise CouldNotRun("the null server did not start")
            running = NullServer(str(json.loads(line)["base_url"]))
            yield running
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            server.send_signal(signal.SIGTERM)
            server.wait(_STOP_S)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            running.cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    finally:
        server.kill()
        server.wait()


def rows_of(log: Path) -> list[Row]:
    """The requests of a log."""
    return [msgspec.json.decode(line, type=Row) for line in log.read_bytes().splitlines()]


def read(*logs: Path) -> Truth:
    """The figures from the logs of a run's servers; raises CouldNotRun when no request got its last token."""
    rows = [row for log in logs for row in rows_of(log)]
    if not rows:
        raise CouldNotRun("the null server finished no request")
    received = np.array([row.received_ns for row in rows], np.int64)
    writes = [np.array(row.wrote_ns, np.int64) for row in rows]
    first = np.array([wrote[0] for wrote in writes], np.int64)
    last = np.array([wrote[-1] for wrote in writes], np.int64)
    gaps = np.concatenate([np.diff(wrote) for wrote in writes])
    return Truth(
        requests=len(rows),
        tokens=sum(len(wrote) for wrote in writes),
        first_ns=int(received.min()),
        mean_ttft_ms=float((first - received).mean()) / 1e6,
        p99_itl_ms=float(np.percentile(gaps, 99)) / 1e6 if len(gaps) else 0.0,
        peak_streams=_peak(received, last),
        mean_streams=float((last - received).sum() / max(1, last.max() - received.min())),
    )


def _peak(begin: Int64, end: Int64) -> int:
    """The most intervals open at once; one that ends as another begins does not overlap it."""
    times = np.concatenate([end, begin])
    steps = np.concatenate([np.full(len(end), -1), np.full(len(begin), 1)])
    order = np.argsort(times, kind="stable")
    return int(np.cumsum(steps[order]).max())
