"""Streams: the loads of streams that clients are measured on, and the bars for each."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bars.trials import Trial, Trials, details, held, interleaved, itl, ttft
from benchmarks.clients.adapters import Client, Installed, Load
from benchmarks.harness.page import Bar, Section, spread
from benchmarks.harness.process import Command, checkout_env, run

WIDE = Load("wide", streams=1024, requests=2048, output_tokens=128, interval_ms=20, ttft_ms=50)
MEDIUM = Load("medium", streams=256, requests=1024, output_tokens=128, interval_ms=10, ttft_ms=50)
SINGLE = Load("single", streams=1, requests=8, output_tokens=128, interval_ms=10, ttft_ms=50)
UNPACED = Load("unpaced", streams=512, requests=2048, output_tokens=256, interval_ms=0, ttft_ms=0)

_MOST_FLOORS = 3.5
_MOST_OF_RUST = 0.8
_MOST_GAP_ERROR_MS = 0.2
_NO_FLOOR = "no C compiler for the floor"
_NO_RUST = "no Rust client given"


def wide(installed: Installed, repeats: int) -> Section:
    """1024 paced streams: all concurrent, low CPU, true figures."""
    trials, clients = _run(WIDE, installed, repeats)
    ours = trials.of(installed.ours)
    peak = min((t.truth.peak_streams for t in ours), default=0)
    bars = [
        Bar("1024 streams: held at once (mean)", held(ours), "1024", peak == WIDE.streams)
        if ours
        else _unmeasured("1024 streams: held", "1024"),
        _floors("1024 streams: CPU", trials, installed),
        *_against_rust(trials, installed),
        _close("1024 streams: mean TTFT, true → reported", ours, "ttft", 0.01),
        _close("1024 streams: P99 ITL, true → reported", ours, "itl", 0.01),
        _late(ours),
    ]
    return _section(trials, clients, installed, bars)


def medium(installed: Installed, repeats: int) -> Section:
    """256 faster streams, which show the cost of the httpx transport."""
    trials, clients = _run(MEDIUM, installed, repeats, installed.portable)
    ours = trials.of(installed.ours)
    bars = [
        _close("256 streams: mean TTFT, true → reported", ours, "ttft", 0.01),
        _close("256 streams: P99 ITL, true → reported", ours, "itl", 0.005),
    ]
    return _section(trials, clients, installed, bars)


def single(installed: Installed, repeats: int) -> Section:
    """One stream."""
    trials, clients = _run(SINGLE, installed, repeats, installed.portable)
    ours = trials.of(installed.ours)
    what, limit = "one stream: mean TTFT, true → reported", "± 0.5 ms"
    bar = _unmeasured(what, limit)
    if ours:
        off_ms = [abs(_ttft_off_ms(t)) for t in ours]
        shown = f"{ttft(ours)}; off by {spread(off_ms, '{:.3f}')} ms"
        bar = Bar(what, shown, limit, statistics.median_high(off_ms) <= 0.5)
    bars = [bar, _close("one stream: P99 ITL, true → reported", ours, "itl", 0.01)]
    return _section(trials, clients, installed, bars)


def unpaced(installed: Installed, repeats: int) -> Section:
    """512 streams as fast as possible."""
    trials, clients = _run(UNPACED, installed, repeats)
    ours = trials.of(installed.ours)
    bars = [_floors("512 streams unpaced: CPU", trials, installed)]
    what = "512 streams unpaced: tokens per CPU second"
    for rust in installed.rust[:1]:
        others = trials.of(rust)
        limit = f"more than {rust.name}"
        if not (ours and others):
            bars.append(_unmeasured(what, limit))
            continue
        mine = statistics.median(t.tokens_per_cpu_s for t in ours)
        theirs = statistics.median(t.tokens_per_cpu_s for t in others)
        bars.append(Bar(what, f"{mine:,.0f}", f"{limit}: {theirs:,.0f}", mine > theirs))
    if not installed.rust:
        bars.append(Bar(what, _NO_RUST, "more than the Rust client", None))
    return _section(trials, clients, installed, bars)


def selftest(installed: Installed, repeats: int) -> Section:
    """1024 paced streams, as `loadgen selftest` measures itself on them."""
    argv = [sys.executable, "-m", "loadgen", "selftest", "--transport", "wire", "--seconds", "6"]
    argv += ["--streams", str(WIDE.streams), "--interval-ms", f"{WIDE.interval_ms:g}"]
    p99_ms, printed = [], ""
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            printed = run(Command(argv, {**checkout_env(), "XDG_CACHE_HOME": cache})).stdout
            kept = json.loads((Path(cache) / "loadgen" / "selftest.json").read_text("utf-8"))
        p99_ms.append(kept["calibrations"][0]["gap"]["p99_us"] / 1e3)
    what, limit = "1024 streams: P99 gap error, by the self-test", f"≤ {_MOST_GAP_ERROR_MS} ms"
    bar = Bar(what, spread(p99_ms, "{:.4f}") + " ms", limit, statistics.median(p99_ms) <= _MOST_GAP_ERROR_MS)
    _, head, figures = printed.strip().rpartition(f"{WIDE.streams} streams × ")
    lines = ["The last repeat:", "", "```", *f"{head}{figures}".splitlines()[:-1], "```"]
    return Section("Self-test (`loadgen selftest`)", [bar], lines)


def _run(load: Load, installed: Installed, repeats: int, *others: Client) -> tuple[Trials, Sequence[Client]]:
    every: list[Client | None] = [installed.ours, installed.floor, *installed.rust, installed.vllm, *others]
    clients = [client for client in every if client is not None]
    return interleaved(load, clients, repeats), clients


def _section(trials: Trials, clients: Sequence[Client], installed: Installed, bars: Sequence[Bar]) -> Section:
    words = trials.load.words
    return Section(
        words[0].upper() + words[1:], bars, details(trials, clients, installed.floor), trials.faults
    )


def _floors(what: str, trials: Trials, installed: Installed) -> Bar:
    limit = f"≤ {_MOST_FLOORS} × floor"
    if installed.floor is None:
        return Bar(what, _NO_FLOOR, limit, None)
    ratios = trials.cpu_ratios(installed.ours, installed.floor)
    if not ratios:
        return _unmeasured(what, limit)
    return Bar(what, spread(ratios, "{:.2f}") + " × floor", limit, statistics.median(ratios) <= _MOST_FLOORS)


def _against_rust(trials: Trials, installed: Installed) -> list[Bar]:
    what = "1024 streams: CPU"
    if not installed.rust:
        return [Bar(what, _NO_RUST, f"≤ {_MOST_OF_RUST} × the Rust client", None)]
    bars = []
    for rust in installed.rust[:1]:
        limit = f"≤ {_MOST_OF_RUST} × {rust.name}"
        ratios = trials.cpu_ratios(installed.ours, rust)
        if not ratios:
            bars.append(_unmeasured(what, limit))
            continue
        met = statistics.median(ratios) <= _MOST_OF_RUST
        bars.append(Bar(what, spread(ratios, "{:.2f}") + " ×", limit, met))
    return bars


def _close(what: str, ours: Sequence[Trial], figure: str, most: float) -> Bar:
    """Whether the median absolute error of a figure is at most `most`, relative.

    The worst one is shown with the verdict of its run.
    """
    limit = f"± {100 * most:g} %"
    if not ours:
        return _unmeasured(what, limit)

    def error(trial: Trial) -> float:
        return abs(trial.ttft_error if figure == "ttft" else trial.itl_error)

    shown, worst = ttft(ours) if figure == "ttft" else itl(ours), max(ours, key=error)
    assert worst.reported is not None
    measured = f"{shown}; worst {100 * error(worst):.2f} % ({worst.reported.verdict})"
    return Bar(what, measured, limit, statistics.median_high(map(error, ours)) <= most)


def _late(ours: Sequence[Trial]) -> Bar:
    what, limit = "1024 streams: bodies not ready when due", "0"
    if not ours:
        return _unmeasured(what, limit)
    late = max(t.reported.late_bodies for t in ours if t.reported is not None)
    return Bar(what, f"{late} in the worst run", limit, late == 0)


def _ttft_off_ms(trial: Trial) -> float:
    assert trial.reported is not None
    return trial.reported.mean_ttft_ms - trial.truth.mean_ttft_ms


def _unmeasured(what: str, limit: str) -> Bar:
    return Bar(what, "could not run, see below", limit, None)
