"""Starved: the packet ring next to reading every token, on a quiet machine and next to a busy loop."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.bars.streams import UNPACED, WIDE
from benchmarks.bars.trials import Trial, Trials, details, interleaved, itl, ttft
from benchmarks.clients.adapters import Client, Installed, Load
from benchmarks.harness.page import Bar, Section, markdown, spread
from loadgen.features.ring.ring_choice import explain_refusal

_LOADS = (
    (WIDE, "1024 streams", 0.0002),
    (replace(WIDE, name="wide-busy", busy_core=True), "1024 streams, busy loop", 0.0005),
    (replace(WIDE, name="wide-nagle", nagle=True), "1024 streams, Nagle's algorithm on", 0.0005),
    (UNPACED, "512 unpaced", 0.005),
)
_MOST_FLOORS, _MOST_OF_WIRE, _LEAST_TIMES = 1.2, 0.8, 2.0
_REPEATS = 9  # next to a busy loop single runs differ
_UNMET = "could not run, see below"


def ring(installed: Installed, repeats: int) -> Section:
    """Every segment's timestamp from a packet ring, against the same client reading every token."""
    title = "Packet ring (`--transport ring` against `--transport wire`)"
    if why_not := explain_refusal():
        return Section(title, [Bar("packet ring", why_not, "", None)], [])
    bars: list[Bar] = []
    lines: list[str] = []
    loads: list[tuple[str, str, str]] = []
    faults: list[str] = []
    for load, name, most in _LOADS:
        trials, clients = _run(load, installed, max(repeats, _REPEATS) if repeats > 1 else 1)
        ours, wire = trials.of(installed.ring), trials.of(installed.wire)
        bars.append(_figure(f"{name}: mean TTFT", ours, wire, ttft, lambda t: t.ttft_error, most))
        bars.append(_figure(f"{name}: P99 ITL", ours, wire, itl, lambda t: t.itl_error, most))
        if load is WIDE:
            bars += _costs(name, trials, installed)
        if load is UNPACED:
            bars.append(_per_cpu_s(name, ours, wire))
        table = details(trials, clients, installed.floor)
        lines = lines or table[:2]
        lines += [row.replace("| ", f"| {name}: ", 1) for row in table[2:] if row.startswith("|")]
        noise = " ".join(line for line in table[2:] if line[:1] not in ("", "|"))
        loads.append((name, load.words, noise))
        faults += trials.faults
    return Section(title, bars, [*lines, "", *markdown(("load", "what", ""), loads)], faults)


def _run(load: Load, installed: Installed, repeats: int) -> tuple[Trials, Sequence[Client]]:
    every = (installed.ring, installed.wire, installed.floor)
    clients = [client for client in every if client is not None]
    return interleaved(load, clients, repeats), clients


def _figure(
    what: str,
    ours: Sequence[Trial],
    wire: Sequence[Trial],
    shown: Callable[[Sequence[Trial]], str],
    error: Callable[[Trial], float],
    most: float,
) -> Bar:
    """Whether the median absolute error is at most `most`, relative; the errors of reading every token."""
    limit = f"± {100 * most:g} %"
    if not (ours and wire):
        return Bar(what, _UNMET, limit, None)
    middle = statistics.median_high(abs(error(trial)) for trial in ours)
    theirs = spread([100 * error(trial) for trial in wire], "{:+.2f}")
    return Bar(what, f"{shown(ours)}; wire {theirs} %", limit, middle <= most)


def _costs(name: str, trials: Trials, installed: Installed) -> list[Bar]:
    ours, wire = trials.of(installed.ring), trials.of(installed.wire)
    floors = trials.cpu_ratios(installed.ring, installed.floor)
    what, limit = f"{name}: CPU, start-up included", f"≤ {_MOST_FLOORS} × floor"
    met = statistics.median(floors) <= _MOST_FLOORS if floors else None
    bars = [Bar(what, spread(floors, "{:.2f}") + " × floor" if floors else _UNMET, limit, met)]
    both = [
        (mine.cpu_s + mine.server_cpu_s) / (other.cpu_s + other.server_cpu_s)
        for mine, other in zip(ours, wire, strict=False)
    ]
    what, limit = f"{name}: CPU of client, server and kernel", f"≤ {_MOST_OF_WIRE} × wire"
    met = statistics.median(both) <= _MOST_OF_WIRE if both else None
    bars.append(Bar(what, spread(both, "{:.2f}") + " × wire" if both else _UNMET, limit, met))
    return bars


def _per_cpu_s(name: str, ours: Sequence[Trial], wire: Sequence[Trial]) -> Bar:
    what, limit = f"{name}: tokens per CPU second", f"≥ {_LEAST_TIMES:g} × wire"
    pairs = zip(ours, wire, strict=False)
    times = [mine.tokens_per_cpu_s / other.tokens_per_cpu_s for mine, other in pairs]
    if not times:
        return Bar(what, _UNMET, limit, None)
    return Bar(what, spread(times, "{:.2f}") + " × wire", limit, statistics.median(times) >= _LEAST_TIMES)
