"""Turn figures: what the requests of each turn got, and those of main lines and of sub-agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from loadgen.base.arrays import Bool, Int64
from loadgen.figures.distribution import Distribution
from loadgen.figures.metrics import count_cached_tokens, measure_part
from loadgen.figures.per_request import PerRequest
from loadgen.figures.session_rows import find_sessions
from loadgen.records.record import Records
from loadgen.report.run_directory import Result

_OWN_ROW = 4  # turns that have a row of their own; after them 5 to 8, 9 to 16, and so on
_P99 = (99.0,)


class PartFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of some requests of sessions; latencies (ms) over successes, NaN without any."""

    requests: int
    failed: int
    mean_input_tokens: float | None  # by usage, else as planned; None: not known
    cached_tokens: int  # of successes that report them
    cached_of: int  # prompt tokens of these
    cached_share: float | None  # cached_tokens / cached_of, 0 to 1; None: no response reports any
    mean_output_tokens: float | None
    mean_ttft_ms: float
    median_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    mean_e2el_ms: float


class TurnFigures(PartFigures, frozen=True, kw_only=True):
    """The figures of one turn or range of turns."""

    first: int  # turn, counted from 1
    last: int

    @property
    def name(self) -> str:
        """The turn, or range of turns, as `3` or `5–8`."""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


class BranchFigures(PartFigures, frozen=True, kw_only=True):
    """The figures of the requests of one depth and role."""

    depth: int  # 0 the main line, 1 its sub-agents, 2 theirs
    role: str  # "main", "subagent", or as the recording names it
    mean_queued_ms: float  # sent - due, of those that were sent; NaN without any
    p99_queued_ms: float

    @property
    def name(self) -> str:
        """The role, and how deep it lies where that is not 0, as `explore (2)`."""
        return f"{self.role} ({self.depth})" if self.depth else self.role


def divide_by_turn(run: Result) -> list[TurnFigures]:
    """Compute the figures of turns 1, 2, 3, 4, 5–8, 9–16, …; [] without sessions."""
    records, turns = run.counted, run.facts.session_turns
    if not turns:
        return []
    sessions = find_sessions(records, turns)
    each, turn = PerRequest.from_records(records, run.ask), sessions.turn
    rows, first = [], 1
    while first <= turn.max(initial=0):
        last = first if first <= _OWN_ROW else 2 * (first - 1)
        if (part := (turn >= first) & (turn <= last)).any():
            rows.append(TurnFigures(first=first, last=last, **_measure_requests(part, records, each)))
        first = last + 1
    return rows


def divide_by_branch(run: Result) -> list[BranchFigures]:
    """Compute the figures of each depth and role, the main line first; [] where sessions have one line."""
    waits, records = run.waits, run.counted
    if waits is None:
        return []
    each = PerRequest.from_records(records, run.ask)
    depths, roles = waits.depths[records.index], waits.roles[records.index]
    queued_ns = records.sent_ns - records.intended_ns
    rows = []
    for depth, role in sorted(set(zip(depths.tolist(), roles.tolist(), strict=True))):
        part = (depths == depth) & (roles == role)
        queued = Distribution.from_ns(queued_ns[part & records.sent], _P99)
        rows.append(
            BranchFigures(
                depth=depth,
                role=waits.role_names[role],
                mean_queued_ms=queued.mean_ms,
                p99_queued_ms=queued.p99_ms,
                **_measure_requests(part, records, each),
            )
        )
    return rows


def list_roles(run: Result) -> Sequence[str]:
    """List the role of each request, as the recording names it, of a run whose sessions have branches."""
    waits = run.waits
    assert waits is not None
    return [waits.role_names[role] for role in waits.roles[run.records.index].tolist()]


def list_depths(run: Result) -> Sequence[int]:
    """List how deep each request lies, 0 on the main line, of a run whose sessions have branches."""
    waits = run.waits
    assert waits is not None
    depths: list[int] = waits.depths[run.records.index].tolist()
    return depths


def _measure_requests(part: Bool, records: Records, each: PerRequest) -> dict[str, Any]:
    """Compute the fields of PartFigures of the requests that `part` marks, bool[requests]."""
    ok = part & each.ok
    hits, looked_up, _ = count_cached_tokens(records, part)
    return {
        "requests": int(part.sum()),
        "failed": int((part & each.failed).sum()),
        "mean_input_tokens": _compute_known_mean(each.input_tokens[ok]),
        "cached_tokens": hits,
        "cached_of": looked_up,
        "cached_share": hits / looked_up if looked_up else None,
        "mean_output_tokens": _compute_known_mean(each.output_tokens[ok]),
        **measure_part(PartFigures, each, part),
    }


def _compute_known_mean(counts: Int64) -> float | None:
    """Return the mean of the counts that are 0 or more; None without any."""
    known = counts[counts >= 0]
    return float(np.mean(known)) if len(known) else None
