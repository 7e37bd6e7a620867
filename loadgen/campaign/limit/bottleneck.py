"""Bottleneck: where the evidence of a run that fails points to, by the server's own figures first."""

from __future__ import annotations

from collections.abc import Callable

from loadgen.metrics.objectives import Objective
from loadgen.results.limit_record import Bottleneck
from loadgen.results.run_directory import Result

_FULL = 0.95  # of the KV cache
_QUEUED = 0.5  # of the mean TTFT
_DECODED = frozenset({"tpot", "itl", "token_time", "e2el_per_token"})

Pointer = Callable[[Result, Objective], tuple[Bottleneck, str] | None]


def pointed_to(run: Result, objective: Objective) -> tuple[Bottleneck, str]:
    """The cause and its figures: the first of the table that the run shows, else what the objective times."""
    for pointer in _POINTERS:
        if (found := pointer(run, objective)) is not None:
            return found
    return "unknown", ""


def _kv_cache(run: Result, objective: Objective) -> tuple[Bottleneck, str] | None:
    window = run.facts.window
    if window is None or window.error or window.reset:
        return None
    usage = window.peak("kv_cache_usage")
    preempted = window.preemptions or 0
    if not preempted and (usage is None or usage < _FULL):
        return None
    full = "" if usage is None else f"KV cache {100 * usage:.0f} % full at most, "
    return "kv-cache", f"{full}{preempted} preemptions"


def _queue(run: Result, objective: Objective) -> tuple[Bottleneck, str] | None:
    """Requests wait before the server begins with them: it reports so, or more of them wait than end."""
    window = run.facts.window
    if objective.metric in _DECODED or window is None or window.error or window.reset:
        return None
    waiting = window.peak("waiting")
    if window.queue is not None and window.queue.count and run.metrics.ttft.mean_ms > 0:
        queue_ms, ttft_ms = window.queue.mean_ms, run.metrics.ttft.mean_ms
        if queue_ms < _QUEUED * ttft_ms:
            return None
        return "queue", f"mean queue time {queue_ms:.4g} ms of {ttft_ms:.4g} ms TTFT"
    return ("queue", f"{waiting:.0f} requests waiting at most") if waiting else None


def _prefill(run: Result, objective: Objective) -> tuple[Bottleneck, str] | None:
    if objective.metric not in ("ttft", "ttfvt"):
        return None
    return (
        "prefill",
        f"mean TTFT {run.metrics.ttft.mean_ms:.4g} ms, of which the server reports no long queue",
    )


def _decode(run: Result, objective: Objective) -> tuple[Bottleneck, str] | None:
    """The time of a token: long where many are decoded at a time, or prefills come between."""
    if objective.metric not in _DECODED:
        return None
    busy = run.metrics.mean_concurrency
    return "decode", f"mean TPOT {run.metrics.tpot.mean_ms:.4g} ms with {busy:.3g} requests in flight"


_POINTERS: tuple[Pointer, ...] = (_kv_cache, _queue, _decode, _prefill)


def headroom(run: Result) -> float | None:
    """How many times the load of a run the client could have measured: by its self-test, else by its CPU."""
    client, calibration = run.facts.client, run.facts.calibration
    if calibration is not None and run.metrics.messages_per_s > 0:
        return calibration.headroom(run.metrics.messages_per_s, client.workers)
    busiest_s = client.busiest_cpu_s or client.cpu_s
    return client.wall_s / busiest_s if busiest_s > 0 and client.wall_s > 0 else None
