"""Sessions that no one measured: turns of conversations over slots, every figure of which is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from builders.made_cases import START_NS
from builders.made_cases import run as case
from builders.made_runs import MS, run
from loadgen.plan import profile
from loadgen.records.record import Record, Records
from loadgen.report.run_directory import Result
from loadgen.transport.failure import Failure
from loadgen.verdict.evidence import RunEvidence

TTFT_MS, TPOT_MS, OUTPUT, DELAY_MS = 40, 10, 5, 100
TURN_MS = TTFT_MS + (OUTPUT - 1) * TPOT_MS  # 80: as long as each answer takes
ADDED = 50  # prompt tokens by which each turn is longer than the one before


def turn_of(index: int, slot: int, due_ns: int, turn: int, late_ms: float = 0.0) -> Record:
    """An answered turn, counted from 0, whose history is cached."""
    sent_ns = due_ns + int(late_ms * MS)
    arrival_ns = sent_ns + (TTFT_MS + np.arange(OUTPUT) * TPOT_MS) * MS
    return Record(
        index, slot, due_ns, sent_ns, int(arrival_ns[-1]), arrival_ns=arrival_ns.astype(np.int64),
        tokens=np.ones(OUTPUT, np.int64), planned_output=OUTPUT, input_tokens=ADDED * (turn + 1),
        output_tokens=OUTPUT, cached_tokens=ADDED * turn, usage=True, visible_ns=int(arrival_ns[0]),
        reads=OUTPUT + 2, unstamped_reads=1, lag_sum_ns=0, lag_max_ns=0, finish_reason="length",
    )  # fmt: skip


def rows_of(
    turns: Sequence[int],
    slots: int = 2,
    failures: Mapping[tuple[int, int], Failure] | None = None,
    delay_ms: float = DELAY_MS,
    late_ms: float = 0.0,
    rest_ms: float = 0.0,
) -> list[Record]:
    """A closed loop of sessions with these turns; `failures` by session, from 0, and turn, from 1.

    A failed turn has no tokens, and ends its session. Later turns leave `late_ms` after their time; a slot
    rests between two sessions.
    """
    rows: list[Record] = []
    free_ns = [START_NS] * slots
    begins = np.cumsum([0, *turns])
    for session, count in enumerate(turns):
        slot = int(np.argmin(free_ns))
        due_ns = free_ns[slot]
        for turn in range(count):
            row = turn_of(int(begins[session]) + turn, slot, due_ns, turn, late_ms if turn else 0.0)
            failure = (failures or {}).get((session, turn + 1))
            if failure is not None:
                empty = np.zeros(0, np.int64)
                row = replace(
                    row, failure=failure, arrival_ns=empty, tokens=empty, input_tokens=-1, output_tokens=-1,
                    cached_tokens=-1, usage=False, finish_reason="",
                )  # fmt: skip
            rows.append(row)
            free_ns[slot] = row.end_ns + int(rest_ms * MS)
            if failure is not None:
                break
            due_ns = row.end_ns + int(delay_ms * MS)
    return rows


def made(turns: Sequence[int], rows: Sequence[Record], slots: int = 2, **facts: Any) -> Result:
    """A run of sessions with these turns as planned."""
    keys = {"name": "made", "input_len": 64, "output_len": OUTPUT, "num_prompts": sum(turns)}
    keys |= {"max_concurrency": slots, **facts.pop("keys", {})}
    planned = {"profile": profile.build(keys), "requests": sum(turns), "session_turns": tuple(turns)}
    return Result(run(**{"window": None, **planned, **facts}).facts, Records.from_records(rows))


def judged(turns: Sequence[int], rows: list[Record], slots: int = 8, **facts: Any) -> RunEvidence:
    """The same as a case to be judged, which nothing else speaks against."""
    keys = {
        "num_prompts": sum(turns), "max_concurrency": slots, "output_len": OUTPUT, **facts.pop("keys", {}),
    }  # fmt: skip
    clean = {"requests": sum(turns), "session_turns": tuple(turns), "window": None}
    return case(rows, keys, **{**clean, **facts})
