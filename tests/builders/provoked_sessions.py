"""Doubts of sessions: a run of conversations that provokes each, and those that provoke none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from builders.made_cases import client, observed
from builders.made_sessions import OUTPUT, TURN_MS, judged, rows_of
from loadgen.figures.metrics import compute_metrics
from loadgen.records.record import Record
from loadgen.report.run_directory import Result
from loadgen.transport.failure import Failure, FailureKind
from loadgen.verdict.evidence import RunEvidence

MS = 1_000_000
TURNS = [8] * 40  # of 40 sessions over 8 slots
CUT = Failure(FailureKind.TRUNCATED, "cut")
LONG = Failure(FailureKind.CONTEXT_LIMIT, "400: maximum context length is 4096 tokens")


def ended(failure: Failure, sessions: int, turn: int) -> Mapping[tuple[int, int], Failure]:
    """The first sessions end at this turn."""
    return {(session, turn): failure for session in range(sessions)}


def of_users(behind: bool, **facts: Any) -> RunEvidence:
    """Eight users, who wait for the response before each turn, or for its time."""
    pause_ms = 0.0 if behind else 20.0
    rows = rows_of(TURNS, 8, delay_ms=pause_ms, rest_ms=pause_ms)
    rate = 1000.0 / (TURN_MS + pause_ms) * (1.25 if behind else 1.0)
    return judged(
        TURNS, rows, keys={"turns": 8, "backend": "openai-chat", "users": 8, "user_rate": rate}, **facts
    )


def with_tail() -> RunEvidence:
    """One session of 100 turns goes on after the others."""
    turns = [*[8] * 40, 120]
    case = judged(turns, rows_of(turns, 8))
    counted = Result(case.facts, case.records).counted
    return RunEvidence(case.facts, case.records, case.metrics, compute_metrics(counted, case.facts.ask()))


def uncached(rows: list[Record]) -> list[Record]:
    """The same of a server that computes each turn from its beginning."""
    return [replace(row, cached_tokens=0) for row in rows]


def counted(rows: list[Record], hits: int) -> RunEvidence:
    """A run whose server counts this many cached tokens."""
    prompts = sum(row.input_tokens for row in rows)
    window = observed(
        prompt_tokens=prompts, generation_tokens=OUTPUT * len(rows), requests={"length": len(rows)},
        prefix_queries=prompts, prefix_hits=hits,
    )  # fmt: skip
    return judged(TURNS, rows, window=window)


def cached_of(rows: list[Record]) -> int:
    return sum(row.cached_tokens for row in rows)


_ROWS = rows_of(TURNS, 8)
OF_SESSIONS: dict[str, tuple[RunEvidence, str]] = {
    "sessions-ended-early": (
        judged(TURNS, rows_of(TURNS, 8, ended(CUT, 3, 7))),
        "3 of 40 sessions (7.5 %) ended early: 3 later turns were not sent"),
    "users-waited": (
        of_users(behind=True),
        "240 of 320 turns (75 %) waited for the response before them"),
    "turns-late": (judged(TURNS, rows_of(TURNS, 8, late_ms=12.0)),
                   "later turns were sent 12.00 ms late by P99, 12.00 ms at most"),
    "reconnected": (judged(TURNS, _ROWS, client=client(reconnects=4)),
                    "4 of 320 turns went over a new connection"),
    "context-limit": (
        judged(TURNS, rows_of(TURNS, 8, ended(LONG, 20, 7))),
        "20 of 40 sessions ended at the model's context limit"),
    "session-forgotten": (
        judged(TURNS, uncached(_ROWS)),
        "of 56000 prompt tokens that sessions had sent in their turn before, 0 (0 %) were cached (usage)"),
    "cached-tokens-differ": (
        counted(_ROWS, cached_of(_ROWS) * 9 // 10),
        "77.8 % of the prompt tokens cached by usage, 70 % by the server's counters"),
    "sessions-ran-dry": (
        with_tail(),
        "figures are of the first 6.7 of 28.2 s: then the first slot had no session left"),
}  # fmt: skip
AT_EASE_IN_SESSIONS = {
    "sessions in a closed loop": judged(TURNS, _ROWS),
    "sessions whose server counts as usage does": counted(_ROWS, cached_of(_ROWS)),
    "users at their rate": of_users(behind=False),
    "one session of forty that a failed turn ended": judged(TURNS, rows_of(TURNS, 8, ended(CUT, 1, 4))),
}
