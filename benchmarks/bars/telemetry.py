"""Telemetry: the cost and the figures of a run with spans, metrics and a page for Prometheus, and without."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from benchmarks.bars.streams import WIDE
from benchmarks.bars.trials import Trial, details, interleaved, itl, ttft
from benchmarks.clients.adapters import Installed
from benchmarks.harness.page import Bar, Section, spread
from benchmarks.harness.process import checkout_env

_MOST_ERROR = 0.01
_PORT = 19_464
_SCRAPE_S = 1.0


def telemetry(installed: Installed, repeats: int) -> Section:
    """1024 paced streams, with --otel and --prometheus and without, in turns."""
    with _collecting() as url, _scraping():
        flags = ("--otel", url, "--prometheus", str(_PORT))
        on = replace(installed.ours, name="loadgen --otel --prometheus", more=flags)
        trials = interleaved(WIDE, [installed.ours, on], repeats)
    off, followed = trials.of(installed.ours), trials.of(on)
    what = "1024 streams, spans and scrapes"
    bars = [
        _error(f"{what}: mean TTFT, true → reported", off, followed, "ttft"),
        _error(f"{what}: P99 ITL, true → reported", off, followed, "itl"),
        _cost(f"{what}: CPU", trials.cpu_ratios(on, installed.ours)),
    ]
    return Section("Telemetry", bars, details(trials, [installed.ours, on], None), trials.faults)


def _error(what: str, off: Sequence[Trial], on: Sequence[Trial], figure: str) -> Bar:
    """Whether the reported figure is true with telemetry; the errors without it next to it."""
    limit = f"± {100 * _MOST_ERROR:g} %"
    if not (off and on):
        return Bar(what, "could not run, see below", limit, None)
    mine, theirs = ([getattr(each, f"{figure}_error") for each in trials] for trials in (on, off))
    shown = (ttft if figure == "ttft" else itl)(on)
    without = spread([100 * error for error in theirs], "{:+.2f}")
    return Bar(what, f"{shown}; without {without} %", limit, max(map(abs, mine)) <= _MOST_ERROR)


def _cost(what: str, ratios: Sequence[float]) -> Bar:
    if not ratios:
        return Bar(what, "could not run, see below", "", None)
    return Bar(what, f"{spread(ratios, '{:.2f}')} × without", "≤ 2 × without", statistics.median(ratios) <= 2)


@contextmanager
def _collecting() -> Iterator[str]:
    """Run a collector in a process of its own; yields its URL."""
    argv = [sys.executable, "-m", "benchmarks.harness.collector"]
    with subprocess.Popen(argv, env=checkout_env(), stdout=subprocess.PIPE, text=True) as collector:
        assert collector.stdout is not None
        try:
            yield f"http://127.0.0.1:{collector.stdout.readline().strip()}"
        finally:
            collector.kill()


@contextmanager
def _scraping() -> Iterator[None]:
    """Scrape the page every second, while there is one."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(_SCRAPE_S):
            with (
                suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{_PORT}/metrics", timeout=5) as got,
            ):
                got.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
