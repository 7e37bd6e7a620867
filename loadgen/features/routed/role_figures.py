"""Role figures: what each server behind a router did of a run, and how evenly the load was divided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from loadgen.base.tables import Table
from loadgen.base.text import format_count, list_first
from loadgen.features.routed.reconciled_roles import describe_end
from loadgen.report.run_directory import Result
from loadgen.report.section import PartColumn, ReportOptions, make_part_table
from loadgen.server.server_counters import DECODE, PREFILL, ROUTER, WORKER, RoleWindow

_MOST_NAMED = 8  # servers in a line
_COLUMNS = (
    PartColumn("requests", "requests", short="reqs"),
    PartColumn("prompt_tokens", "prompt tokens", short="prompt"),
    PartColumn("generation_tokens", "generated tokens", short="generated"),
    PartColumn("work_share", "share"),
    PartColumn("cached_share", "cached"),
    PartColumn("queue_ms", "queue ms", 2),
    PartColumn("peak_running", "running", short="run"),
    PartColumn("peak_waiting", "waiting", short="wait"),
    PartColumn("peak_kv_share", "KV cache", short="KV"),
)
# Each role's share of the load is measured in these tokens.
_WORK = {PREFILL: "prompt_tokens", DECODE: "generation_tokens", WORKER: "generation_tokens"}


class RoleFigures(msgspec.Struct, frozen=True):
    """What one server behind a router counted; None for what it does not count."""

    role: str
    name: str
    requests: int | None  # finished
    prompt_tokens: int | None
    generation_tokens: int | None
    work_share: float | None  # of its role's tokens: of the prompt for prefill, else generated; 0 to 1
    cached_share: float | None  # of the prompt tokens that were looked up, those found; 0 to 1
    queue_ms: float | None  # mean
    peak_running: float | None
    peak_waiting: float | None
    peak_kv_share: float | None  # of its KV cache in use, 0 to 1
    ended_s: float | None  # after the run began; None: it went on

    @property
    def label(self) -> str:
        """The role and the short name."""
        return f"{self.role} {self.name}"


class RoleBalance(msgspec.Struct, frozen=True):
    """How evenly the servers of a role shared one quantity."""

    role: str
    quantity: str
    servers: int
    most_over_mean: float  # 1: evenly
    variation: float  # the standard deviation of all of them / their mean


def divide_by_role(run: Result) -> list[RoleFigures]:
    """Compute the figures of each server of --metrics-url, in its order; [] without any."""
    every = run.facts.role_windows
    return [
        RoleFigures(
            role=server.role,
            name=server.name,
            requests=server.window.finished,
            prompt_tokens=server.window.prompt_tokens,
            generation_tokens=server.window.generation_tokens,
            work_share=_divide(
                _read_work(server), sum(_read_work(each) or 0 for each in every if each.role == server.role)
            ),
            cached_share=_divide(server.window.prefix_hits, server.window.prefix_queries),
            queue_ms=server.window.queue.mean_ms if server.window.queue is not None else None,
            peak_running=server.peak_running,
            peak_waiting=server.peak_waiting,
            peak_kv_share=server.peak_kv_cache_usage,
            ended_s=server.ended_s,
        )
        for server in every
    ]


def measure_balance(run: Result) -> list[RoleBalance]:
    """Measure how evenly the servers of each role shared requests and tokens.

    Left out are roles of one server, or of which one ended, and counts that are 0 or that one lacks.
    """
    balances = []
    for role, work in _WORK.items():
        every = [each for each in run.facts.role_windows if each.role == role]
        if any(each.ended_s is not None for each in every):
            continue
        rows = [each.window for each in every]
        for quantity in (work, "finished"):
            values = [getattr(window, quantity) for window in rows]
            if len(rows) < 2 or None in values or not sum(values):
                continue
            counts, mean = np.array(values, np.float64), float(np.mean(values))
            name = "requests" if quantity == "finished" else quantity
            balances.append(
                RoleBalance(role, name, len(rows), float(counts.max()) / mean, float(counts.std()) / mean)
            )
    return balances


def _read_work(server: RoleWindow) -> int | None:
    count: int | None = getattr(server.window, _WORK[server.role]) if server.role != ROUTER else None
    return count


def _divide(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def make_role_table(result: Result) -> Table:
    """Make the table of the servers behind the router."""
    rows = ((row.label, row) for row in result.derive(divide_by_role))
    return make_part_table("Server", "by_role", _COLUMNS, rows)


def summarize_roles(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on servers that ended, and on how evenly the servers of each role shared the load."""
    yield from _describe_ends(result.facts.role_windows)
    yield from _describe_balance(result)


def _describe_balance(result: Result) -> Iterator[str]:
    for each in result.derive(measure_balance):
        what = f"balance of {each.servers} × {each.role}, {each.quantity.replace('_', ' ')}"
        yield f"{what}: most / mean {each.most_over_mean:.2f}, CV {each.variation:.2f}"


def describe_roles(result: Result, options: ReportOptions) -> Iterator[str]:
    """Yield lines on servers without figures and that ended, on balance, queues and transfers."""
    every = result.facts.role_windows
    for server in every:
        if server.window.error:
            yield f"{server.label}: no figures: {server.window.error}"
    yield from _describe_ends(every)
    window = result.facts.window
    for server in every:
        if server.role == ROUTER and server.window.finished is not None:
            counts = [f"{server.window.finished} requests", f"{result.whole.requests} of this run"]
            if window is not None and window.finished is not None:
                counts.append(f"{window.finished} by the engines")
            yield f"{server.label}: {', '.join(counts)}"
    yield from _describe_balance(result)
    queues = [
        f"{row.label} {row.queue_ms:.2f} ms"
        for row in result.derive(divide_by_role)
        if row.queue_ms is not None
    ]
    if queues:
        yield f"mean time in the queue: {list_first(queues, _MOST_NAMED)}"
    for server in every:
        own, parts = server.window, []
        if own.kv_transfers:
            parts.append(format_count(own.kv_transfers, "transfer"))
        if own.kv_transfer_s is not None:
            parts.append(f"mean {own.kv_transfer_s.mean_ms:.2f} ms")
        if own.kv_transfer_bytes:
            parts.append(f"{own.kv_transfer_bytes / 1e6:.1f} MB")
        if own.kv_transfers_failed:
            parts.append(f"{own.kv_transfers_failed} failed")
        if parts:
            yield f"KV transfer, {server.label}: {', '.join(parts)}"


def _describe_ends(every: Sequence[RoleWindow]) -> Iterator[str]:
    for server in every:
        if server.ended_s is not None:
            counted = f"its counts, also in the totals, are of {server.counted_s or 0.0:.1f} s"
            yield f"{describe_end(server)}; {counted}"
