"""Bottleneck: where the evidence of a run that fails points to, by the server's own figures first."""

from __future__ import annotations

import math
from collections.abc import Callable

from loadgen.figures.figure_table import JUDGED
from loadgen.figures.objectives import Objective
from loadgen.report.limit_record import Bottleneck
from loadgen.report.run_directory import Result
from loadgen.server.server_counters import ServerWindow

_FULL = 0.95  # of the KV cache
_NO_QUEUE_TIME = "the server reports no queue time"

Cause = tuple[Bottleneck, str]
Pointer = Callable[[Result, Objective], Cause | None]


def pointed_to(run: Result, objective: Objective) -> Cause:
    """The cause and its figures: the first pointer of the table that finds one."""
    for pointer in _POINTERS:
        if (found := pointer(run, objective)) is not None:
            return found
    return "unknown", _NO_QUEUE_TIME


def _window(run: Result) -> ServerWindow | None:
    """What the server's counters show of a run; None where they show nothing."""
    window = run.facts.window
    return None if window is None or window.error or window.reset else window


def _kv_cache(run: Result, objective: Objective) -> Cause | None:
    if (window := _window(run)) is None:
        return None
    usage = window.peak("kv_cache_usage")
    preempted = window.preemptions or 0
    if not preempted and (usage is None or usage < _FULL):
        return None
    full = "" if usage is None else f"KV cache {100 * usage:.0f} % full at most, "
    return "kv-cache", f"{full}{preempted} preemptions"


def _decode(run: Result, objective: Objective) -> Cause | None:
    """The time of a token: long where many are decoded at a time, or prefills come between."""
    if JUDGED[objective.metric].phase != "token":
        return None
    busy = run.metrics.mean_concurrency
    if math.isnan(run.metrics.tpot.mean_ms):
        return None
    return "decode", f"mean TPOT {run.metrics.tpot.mean_ms:.4g} ms with {busy:.3g} requests in flight"


def _longest_phase(run: Result, objective: Objective) -> Cause | None:
    """The longest part of the mean latency: the queue, prefill (TTFT without the queue), or decode."""
    queue_ms, ttft_ms = _queue_ms(run), run.metrics.ttft.mean_ms
    if queue_ms is None:
        return None
    phases_ms: dict[Bottleneck, float] = {"queue": queue_ms, "prefill": max(ttft_ms - queue_ms, 0.0)}
    name, whole_ms = "TTFT", ttft_ms
    if JUDGED[objective.metric].phase != "first":
        name, whole_ms = "E2EL", run.metrics.e2el.mean_ms
        phases_ms["decode"] = whole_ms - ttft_ms
    if not all(map(math.isfinite, phases_ms.values())):
        return None
    parts = ", ".join(f"{part_ms:.4g} {phase}" for phase, part_ms in phases_ms.items())
    return max(phases_ms, key=lambda phase: phases_ms[phase]), f"mean {name} {whole_ms:.4g} ms: {parts}"


def _queue_ms(run: Result) -> float | None:
    """The mean time in the server's queue; 0 where no request was ever seen waiting, None if unknown."""
    if (window := _window(run)) is None:
        return None
    if window.queue is not None and window.queue.count:
        return window.queue.mean_ms
    return 0.0 if window.peak("waiting") == 0 else None


def _waiting(run: Result, objective: Objective) -> Cause | None:
    """Requests waited, though the server does not report for how long."""
    window = _window(run)
    waiting = None if window is None else window.peak("waiting")
    return ("queue", f"{waiting:.0f} requests waiting at most") if waiting else None


_POINTERS: tuple[Pointer, ...] = (_kv_cache, _decode, _longest_phase, _waiting)


def headroom(run: Result) -> dict[str, object]:
    """How many times the load of a run the client could have measured: by its self-test, else by its CPU.

    `headroom_at_least`: the self-test did not find its capacity.
    """
    client, calibration = run.facts.client, run.facts.calibration
    if calibration is not None and run.metrics.messages_per_s > 0:
        times: float | None = calibration.headroom(run.metrics.messages_per_s, client.workers)
        return {"headroom": times, "headroom_at_least": not calibration.capacity_bounded}
    times = client.wall_s / client.busiest_s if client.busy_cores > 0 else None
    return {"headroom": times, "headroom_at_least": False}
