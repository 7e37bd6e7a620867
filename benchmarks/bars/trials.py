"""Trials: every client on the same load in turns, each compared with its own server's log."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.clients.adapters import Client, Load, Reported
from benchmarks.harness import truth
from benchmarks.harness.page import markdown, spread
from benchmarks.harness.process import CouldNotRun, other_processes_cpu_s, run

_LOOP = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
_QUIET = 0.02  # of a core, used by other processes: no more is not worth a word


@dataclass(frozen=True)
class Trial:
    """One client's run on one load."""

    cpu_s: float
    wall_s: float
    first_request_s: float  # from right before the process start to the arrival of its first request
    truth: truth.Truth
    reported: Reported | None
    disturbance: float  # CPU that neither client nor server used meanwhile, in cores
    server_cpu_s: float = 0.0  # the kernel's work for both is in this and in the client's

    @property
    def ttft_error(self) -> float:
        """Reported mean TTFT against the log, relative."""
        assert self.reported is not None
        return self.reported.mean_ttft_ms / self.truth.mean_ttft_ms - 1

    @property
    def itl_error(self) -> float:
        """Reported P99 ITL against the log, relative."""
        assert self.reported is not None
        return self.reported.p99_itl_ms / self.truth.p99_itl_ms - 1

    @property
    def tokens_per_cpu_s(self) -> float:
        return self.truth.tokens / self.cpu_s


@dataclass
class Trials:
    """Every trial of one load by client name, one per repeat; a client that failed has none."""

    load: Load
    by_client: dict[str, list[Trial]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def of(self, client: Client | None) -> list[Trial]:
        """A client's trials; empty for one that is not installed or did not run."""
        return [] if client is None else self.by_client.get(client.name, [])

    def cpu_ratios(self, client: Client, unit: Client | None) -> list[float]:
        """CPU of one client over that of another, in each repeat."""
        pairs = zip(self.of(client), self.of(unit), strict=False)
        return [mine.cpu_s / other.cpu_s for mine, other in pairs]


def trial(client: Client, load: Load) -> Trial:
    """Run one client once against a null server of its own; raises CouldNotRun."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        log = out / "truth.jsonl"
        begin_s, others_s = time.monotonic(), other_processes_cpu_s()
        with truth.null_server(log, load.ttft_ms, load.interval_ms, load.nagle) as server, _beside(load):
            cost = run(client.command(load, server.base_url, out))
        disturbance = (other_processes_cpu_s() - others_s) / (time.monotonic() - begin_s)
        true = truth.read(log)
        if true.requests != load.requests:
            raise CouldNotRun(f"the server answered {true.requests} requests of {load.requests}")
        reported = client.reported(out)
    first_s = (true.first_ns - cost.spawned_ns) / 1e9
    return Trial(cost.cpu_s, cost.wall_s, first_s, true, reported, max(0.0, disturbance), server.cpu_s)


@contextmanager
def _beside(load: Load) -> Iterator[None]:
    """A loop that never rests on one core, of the same priority as everyone, where the load has one."""
    if not load.busy_core:
        yield
        return
    core = str(max(os.sched_getaffinity(0)))
    loop = subprocess.Popen([sys.executable, "-c", _LOOP, core])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def interleaved(load: Load, clients: Sequence[Client], repeats: int) -> Trials:
    """Every client once per repeat, a different one first each time; a client that fails is left out."""
    trials = Trials(load)
    failed: set[str] = set()
    for repeat in range(repeats):
        turn = repeat % len(clients)
        for client in [*clients[turn:], *clients[:turn]]:
            if client.name in failed:
                continue
            try:
                done = trial(client, load)
            except CouldNotRun as error:
                failed.add(client.name)
                trials.by_client.pop(client.name, None)
                trials.faults.append(f"{client.name}, {load.words}: {error}")
                continue
            trials.by_client.setdefault(client.name, []).append(done)
            print(
                f"{load.name} {repeat + 1}/{repeats}: {client.name}: {done.cpu_s:.2f} s CPU, "
                f"{done.wall_s:.2f} s, others {done.disturbance:.2f} of a core",
                file=sys.stderr,
                flush=True,
            )
    return trials


def details(trials: Trials, clients: Sequence[Client], floor: Client | None) -> list[str]:
    """One row per client: cost, true and reported figures, concurrent streams."""
    head = (
        "client",
        "CPU s",
        "× floor",
        "mean TTFT, true → reported",
        "P99 ITL, true → reported",
        "streams held, peak (mean)",
    )
    rows = []
    for client in clients:
        done = trials.of(client)
        if not done:
            continue
        ratios = trials.cpu_ratios(client, floor)
        rows.append(
            (
                client.name,
                spread([t.cpu_s for t in done], "{:.2f}"),
                spread(ratios, "{:.2f}") if ratios else "–",
                ttft(done),
                itl(done),
                held(done),
            )
        )
    everyone = [t.disturbance for done in trials.by_client.values() for t in done]
    if not everyone:
        return []
    noise = (
        ["", f"Other processes: {spread(everyone, '{:.2f}')} of a core."] if max(everyone) > _QUIET else []
    )
    return [*markdown(head, rows), *noise]


def ttft(done: Sequence[Trial]) -> str:
    """True and reported mean TTFT of the trial with the median absolute error."""
    return _against(done, lambda t: t.ttft_error, lambda t: t.truth.mean_ttft_ms, lambda r: r.mean_ttft_ms)


def itl(done: Sequence[Trial]) -> str:
    """True and reported P99 ITL of the trial with the median absolute error."""
    return _against(done, lambda t: t.itl_error, lambda t: t.truth.p99_itl_ms, lambda r: r.p99_itl_ms)


def held(done: Sequence[Trial]) -> str:
    """Concurrent streams in the server: peak (mean)."""
    peak = min(t.truth.peak_streams for t in done)
    return f"{peak} ({_median(done, lambda t: t.truth.mean_streams):.0f})"


def _against(
    done: Sequence[Trial],
    error: Callable[[Trial], float],
    true_ms: Callable[[Trial], float],
    reported_ms: Callable[[Reported], float],
) -> str:
    """`true → reported (error)` of the trial with the (upper) median absolute error."""
    if any(t.reported is None for t in done):
        return "–"
    middle = sorted(done, key=lambda t: abs(error(t)))[len(done) // 2]
    assert middle.reported is not None
    return f"{true_ms(middle):.3f} → {reported_ms(middle.reported):.3f} ms ({100 * error(middle):+.2f} %)"


def _median(done: Sequence[Trial], value: Callable[[Trial], float]) -> float:
    return statistics.median(value(t) for t in done)
