"""Server counters: the server's own figures of the measured run, from scrapes before, in and after it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_type_hints

from pydantic import AliasChoices, BaseModel, Field

from loadgen.engines.engines import METRICS
from loadgen.server.prometheus import MetricsSnapshot, Series, has_restarted, have_fallen

Role = Literal["router", "prefill", "decode", "worker"]
ROLES: tuple[Role, ...] = get_args(Role)
ROUTER, PREFILL, DECODE, WORKER = ROLES
_PERCENTILES = (50, 90, 99)
_UNFINISHED = ("abort", "error")
_COUNTED = (
    "prompt_tokens", "generation_tokens", "preemptions", "drafts", "draft_tokens", "accepted_tokens",
    "kv_transfer_bytes", "kv_transfers", "kv_transfers_failed",
)  # fmt: skip
_GAUGES = ("running", "waiting", "kv_cache_usage")
_SEVERAL = (
    "/metrics is answered by several servers in turn, as behind a balancer: no counter is of the run; name "
    "each of them with --metrics-url"
)
_MOST = 100  # models, and reasons to end, that are kept


class ServerLatency(BaseModel, extra="forbid", frozen=True):
    """One of the server's histograms over the run: its mean, and each percentile's bucket."""

    count: int
    mean_ms: float  # sum / count
    brackets_ms: dict[str, tuple[float, float | None]]  # "50", "90", "99" → its bucket; None: no bound


class ServerSample(BaseModel, extra="forbid", frozen=True):
    """The server's gauges at one moment of the run."""

    at_s: float  # after the run began
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None  # 0 to 1
    preemptions: int | None = None  # since the run began


class ServerWindow(BaseModel, extra="forbid", frozen=True):
    """The change of the server's counters over a run; None for a quantity it does not count."""

    # The reason why there are no figures; `trouble` in stored results.
    error: str = Field(
        default="", validation_alias=AliasChoices("error", "trouble"), serialization_alias="trouble"
    )
    names: str = ""  # which engine's or router's metric names: vllm, sglang, …
    models: tuple[str, ...] = ()  # with traffic behind this port; the figures are of the requested one
    reset: bool = False  # a counter went backwards: restarted, or several servers; no figures then
    settled: bool = True  # at the end nothing ran and the counters stood still
    sampled_from_ns: int | None = None  # when sampling began, by CLOCK_MONOTONIC; None: not stored
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    # Ended, by reason; under "" without a reason, or if none ended; empty where they are not counted.
    requests: dict[str, int] = {}
    prefix_queries: int | None = None  # prompt tokens looked up
    prefix_hits: int | None = None  # prompt tokens found
    preemptions: int | None = None
    drafts: int | None = None  # speculative decoding: steps with draft tokens to verify
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    accepted_by_position: tuple[int, ...] = ()  # in the draft
    accept_length: float | None = None  # tokens a step, of the last steps: a gauge of SGLang's
    running_before: float | None = None
    waiting_before: float | None = None
    running_after: float | None = None
    waiting_after: float | None = None
    ttft: ServerLatency | None = None
    itl: ServerLatency | None = None
    e2e: ServerLatency | None = None
    queue: ServerLatency | None = None
    prefill: ServerLatency | None = None  # first scheduled → first token
    decode: ServerLatency | None = None  # first token → last
    inference: ServerLatency | None = None  # first scheduled → last token
    kv_transfer_s: ServerLatency | None = None  # of the KV cache of one request, from prefill to decode
    kv_transfer_bytes: int | None = None
    kv_transfers: int | None = None
    kv_transfers_failed: int | None = None
    samples: tuple[ServerSample, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the counters were read before and after, and none went backwards."""
        return not (self.error or self.reset)

    @property
    def finished(self) -> int | None:
        """Requests that ended without an abort or an error; None where they are not counted."""
        if not (self.is_known and self.requests):
            return None
        return sum(count for reason, count in self.requests.items() if reason not in _UNFINISHED)

    def peak(self, gauge: str) -> float | None:
        """Return the greatest sample of a gauge; None without samples."""
        return max((value for s in self.samples if (value := getattr(s, gauge)) is not None), default=None)


class RoleWindow(BaseModel, extra="forbid", frozen=True):
    """The change of one server's counters over a run, its samples as their peaks."""

    role: Role
    name: str  # short: of its host, with the port
    url: str  # without secrets
    window: ServerWindow
    peak_running: float | None = None
    peak_waiting: float | None = None
    peak_kv_cache_usage: float | None = None  # 0 to 1
    ended_s: float | None = None  # after the run began: from then on it did not answer, or had restarted
    ended_why: str = ""  # what was wrong with its last scrape; "" where it restarted
    counted_s: float | None = None  # when it was last scraped before that; 0: only before the run
    restarted: bool = False  # it answered again, its counters begun afresh; the window is of before that

    @property
    def label(self) -> str:
        """The role and the short name."""
        return f"{self.role} {self.name}"


TIMED = tuple(name for name, kind in get_type_hints(ServerWindow).items() if kind == ServerLatency | None)


def make_window(
    before: MetricsSnapshot,
    after: MetricsSnapshot,
    samples: Sequence[tuple[float, MetricsSnapshot]] = (),
    model: str = "",
    settled: bool = True,
) -> ServerWindow:
    """Compute the change between two snapshots, and include the samples taken between them.

    Where the server counts per model and `model` is one of them, the figures of that one only.
    """
    error = before.error or after.error
    if not error and before.names != after.names:
        error = f"/metrics had {before.names}'s names before the run and {after.names}'s after it"
    if error:
        return ServerWindow(error=error)
    ours = model if any(owner == model for owner, _, _ in (*after.counters, *after.gauges)) else ""
    moved = {series: value - before.counters.get(series, 0.0) for series, value in after.counters.items()}
    models = sorted({owner for (owner, _, _), change in moved.items() if change > 0 and owner})
    every = [before, *(snapshot for _, snapshot in samples), after]
    # Snapshots during the run have only some counters.
    reset = have_fallen(before.counters, after.counters) or any(
        itertools.starmap(has_restarted, itertools.pairwise(every))
    )
    if reset and _are_several(every):
        return ServerWindow(error=_SEVERAL)
    return ServerWindow(
        names=after.names,
        models=tuple(models[:_MOST]),
        reset=reset,
        settled=settled,
        samples=tuple(
            ServerSample(
                at_s=round(at_s, 3),
                **{gauge: snapshot.gauge(gauge, ours) for gauge in _GAUGES},
                preemptions=_count_since(before, snapshot, "preemptions", ours),
            )
            for at_s, snapshot in samples
        ),
        running_before=before.gauge("running", ours),
        waiting_before=before.gauge("waiting", ours),
        running_after=after.gauge("running", ours),
        waiting_after=after.gauge("waiting", ours),
        accept_length=after.gauge("accept_length", ours),
        **({} if reset else _make_figures(moved, after.names, ours)),
    )


def _count_since(before: MetricsSnapshot, now: MetricsSnapshot, quantity: str, model: str) -> int | None:
    """Count a counter's change between two snapshots; None if it is not counted, or went backwards."""
    then, later = (
        [
            value
            for (owner, name, _), value in each.counters.items()
            if name == quantity and model in ("", owner)
        ]
        for each in (before, now)
    )
    if not later and quantity not in METRICS[before.names].lazy:
        return None
    change = int(sum(later) - sum(then))
    return change if change >= 0 else None


def _are_several(snapshots: Sequence[MetricsSnapshot]) -> bool:
    """Whether snapshots whose counters went backwards are of several servers in turn, not of a restart.

    A start time is older than an earlier one. Without start times, series that only grow explain all
    snapshots, and are no more than the times that counters went backwards: they come back to where they were.
    """
    started = [time for each in snapshots if (time := each.gauge("started")) is not None]
    if started:
        return any(later < earlier for earlier, later in itertools.pairwise(started))
    falls = sum(has_restarted(earlier, later) for earlier, later in itertools.pairwise(snapshots))
    lanes: list[MetricsSnapshot] = []  # the last of each series
    for snapshot in snapshots:
        grown = [at for at, last in enumerate(lanes) if not has_restarted(last, snapshot)]
        if grown:  # the nearest: with the least growth
            nearest = min(grown, key=lambda at: _measure_growth(lanes[at], snapshot))
            lanes[nearest] = snapshot
        else:
            lanes.append(snapshot)
    return 1 < len(lanes) <= falls


def _measure_growth(earlier: MetricsSnapshot, later: MetricsSnapshot) -> float:
    return sum(value - earlier.counters.get(series, value) for series, value in later.counters.items())


def _make_figures(moved: Mapping[Series, float], names: str, model: str) -> dict[str, Any]:
    """Make the figures of a ServerWindow from what each counter `moved` by, of one model or ("") of all."""
    parts: dict[str, dict[str, float]] = {quantity: {"": 0.0} for quantity in METRICS[names].lazy}
    for (owner, quantity, part), change in moved.items():
        if model in ("", owner):
            sums = parts.setdefault(quantity, {})
            sums[part] = sums.get(part, 0.0) + change
    counted = {quantity: int(sum(values.values())) for quantity, values in parts.items()}
    hits = counted.get("prefix_hits")
    if hits is not None and "computed_tokens" in counted:  # llama.cpp counts the two apart
        counted.setdefault("prompt_tokens", counted["computed_tokens"] + hits)
    # SGLang looks up every prompt, and does not count the lookups.
    queries = counted.get("prefix_queries", None if hits is None else counted.get("prompt_tokens"))
    reasons = parts.get("requests", {})
    ended = sorted(((int(n), reason) for reason, n in reasons.items() if n), reverse=True)
    kept = {reason: n for n, reason in ended[:_MOST]}
    accepted = parts.get("accepted_by_position", {})
    # If a position is missing or is not a number, none is shown.
    ordered = [accepted[place] for each in range(len(accepted)) if (place := str(each)) in accepted]
    return {
        **{quantity: counted.get(quantity) for quantity in _COUNTED},
        "prefix_hits": hits,
        "prefix_queries": queries,
        "requests": kept or ({"": 0} if reasons else {}),
        "accepted_by_position": tuple(map(int, ordered)) if len(ordered) == len(accepted) else (),
        **{quantity: _make_latency(parts.get(quantity, {})) for quantity in TIMED},
    }


def _make_latency(parts: Mapping[str, float]) -> ServerLatency | None:
    """Make mean and percentile brackets from a histogram's counts up to each bound (s), and its sum.

    None where nothing was timed, or it is inconsistent: counts that fall with the bound, a negative sum.
    """
    below = sorted((float(bound), count) for bound, count in parts.items() if bound != "sum")
    counts, total_s = [count for _, count in below], parts.get("sum", -1.0)
    if not counts or counts[-1] <= 0 or total_s < 0 or counts != sorted(counts):
        return None
    count = counts[-1]
    return ServerLatency(
        count=int(count),
        mean_ms=total_s / count * 1e3,
        brackets_ms={str(p): _find_bracket(below, p * count / 100) for p in _PERCENTILES},
    )


def _find_bracket(below: Sequence[tuple[float, float]], rank: float) -> tuple[float, float | None]:
    """Find the bounds (ms) of the histogram bucket that holds the value of this rank."""
    place = next(i for i, (_, count) in enumerate(below) if count >= rank)
    low, high = below[place - 1][0] if place else 0.0, below[place][0]
    return round(low * 1e3, 6), None if math.isinf(high) else round(high * 1e3, 6)
