"""Stalls on purpose, in virtual time: what the log says is what the tokens' times show, to the nanosecond."""

from __future__ import annotations

import random
from collections.abc import Sequence as Several
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.loops import loop_over, loop_over_named, read_tables
from loadgen_servers.engine.cli import engine_of, parser
from loadgen_servers.engine.scheduler import Limits, Sequence
from loadgen_servers.engine.stalling import (
    InjectionFile,
    RequestRow,
    StallingScheduler,
    StallRow,
    make_draws,
    read_injections,
)
from loadgen_servers.engine.step_times import FittedTiming

TABLES = read_tables("stalling")

MS = 1_000_000
STEP_MS = 10


class Played:
    """A run of requests (arrival ms, prompt, output) on steps of 10 ms, whose tokens leave as a step ends."""

    def __init__(self, asked: dict[str, Any], requests: Several[tuple[int, int, int]]) -> None:
        rows: list[StallRow | RequestRow] = []
        file = InjectionFile.model_validate(asked)
        self.scheduler = StallingScheduler(
            Limits(8, 1000, 10_000), FittedTiming(overhead_ms=STEP_MS), draws=make_draws(file), skip=file.skip
        )
        self.scheduler.log = rows.append
        self.preempted = self._play(requests)
        self.stalls: list[list[Any]] = [
            [row.kind, row.from_ns / MS, row.to_ns / MS, row.requests, row.prefilled]
            for row in rows
            if isinstance(row, StallRow)
        ]
        self.requests = {row.number: row for row in rows if isinstance(row, RequestRow)}

    def _play(self, requests: Several[tuple[int, int, int]]) -> int:
        left, now_ns = list(requests), 0
        while left or self.scheduler.running or self.scheduler.held or self.scheduler.waiting:
            while left and left[0][0] * MS <= now_ns:
                at_ms, prompt, output = left.pop(0)
                blocks = tuple(range(100 * len(left), 100 * len(left) + prompt // 16))
                self.scheduler.add(Sequence(prompt, output, prompt + output, at_ms * MS, blocks=blocks))
            step = self.scheduler.begin(now_ns)
            if step is None:
                wakes_ns = [left[0][0] * MS] if left else []
                held_ns = self.scheduler.wakes_ns()
                now_ns = min([*wakes_ns, *([] if held_ns is None else [held_ns])], default=now_ns)
                continue
            now_ns = step.end_ns
            self.scheduler.end(step, now_ns)
        return self.scheduler.preemptions

    def wrote_ms(self, number: int) -> list[float]:
        return [ns / MS for ns in self.requests[number].wrote_ns]


TWO = [(0, 10, 6), (0, 10, 6)]  # both decode from 10 to 60 ms
LATER = [(0, 10, 10), (35, 40, 2)]  # the second one is prefilled from 40 ms on


@loop_over_named(("injected", "requests", "stalls", "wrote_ms"), TABLES["stalls"])
def test_tokens_come_when_the_log_says(
    injected: dict[str, Any],
    requests: list[tuple[int, int, int]],
    stalls: list[Any],
    wrote_ms: list[list[float]],
) -> None:
    one = {key: value for key, value in injected.items() if key != "skip"}
    played = Played({"skip": injected.get("skip", 0), "injections": [one] if one else []}, requests)
    assert played.stalls == stalls
    assert [played.wrote_ms(number) for number in sorted(played.requests)] == wrote_ms
    assert played.preempted == sum(kind == "preemption" for kind, *_ in stalls)


def test_waits_are_where_vllm_counts_them() -> None:
    asked = [{"kind": "http", "ms": 5, "requests": [0]}, {"kind": "queue", "ms": 20, "requests": [0]}]
    row = Played({"injections": asked}, [(0, 10, 1)]).requests[0]
    assert (row.received_ns, row.queued_ns, row.scheduled_ns, row.wrote_ns) == (0, 5 * MS, 25 * MS, [35 * MS])


def test_a_seed_draws_the_same_stalls() -> None:
    asked = {
        "injections": [
            {"kind": "slow_step", "ms": [1, 9], "per_s": 20},
            {"kind": "queue", "ms": 3, "share": 0.5},
        ]
    }
    requests = [(at, 10, 5) for at in range(0, 1000, 20)]
    drawn = {seed: Played({"seed": seed, **asked}, requests).stalls for seed in (1, 2)}
    assert drawn[1] == Played({"seed": 1, **asked}, requests).stalls
    assert drawn[1] != drawn[2]
    waits = [stall for stall in drawn[1] if stall[0] == "queue"]
    slow = [stall for stall in drawn[1] if stall[0] == "slow_step"]
    assert 15 <= len(waits) <= 35
    assert 10 <= len(slow) <= 30
    assert all(1 <= to_ms - from_ms <= 9 for _, from_ms, to_ms, *_ in slow)


REFUSED = TABLES["refused"]


@loop_over(("text", "words"), REFUSED.values())
def test_a_file_that_is_none_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "inject.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^--inject .*") as error:
        read_injections(path)
    assert words in str(error.value)


def test_the_flags_make_a_log_of_their_own(tmp_path: Path) -> None:
    injected, log = tmp_path / "inject.json", tmp_path / "truth.jsonl"
    injected.write_text('{"injections": [{"kind": "preemption", "ms": 5, "share": 1}]}')
    options = parser().parse_args(["--inject", str(injected), "--log", str(log)])
    scheduler = engine_of(options).keywords["scheduler"]  # type: ignore[attr-defined]
    scheduler.log(StallRow("queue", 1, 2, [3]))
    assert msgspec.json.decode(log.read_bytes(), type=StallRow) == StallRow("queue", 1, 2, [3])
    with pytest.raises(ValueError, match="exclude each other"):
        engine_of(parser().parse_args(["--inject", str(injected), "--acceptance", "0.5"]))


def test_random_stalls_lose_no_request() -> None:
    for seed in range(40):
        drawn = random.Random(seed)
        asked = [
            {"kind": "preemption", "ms": [5, 200], "per_s": drawn.choice([1, 20])},
            {"kind": "slow_step", "ms": 80, "per_s": 1},
            {"kind": "queue", "ms": [20, 100], "share": 0.2},
            {"kind": "prefill", "ms": 100, "steps": 3, "share": 0.1},
        ]
        at_ms = sorted(drawn.uniform(0, 2000) for _ in range(20))
        requests = [(round(at), drawn.choice([16, 64, 400]), drawn.choice([1, 2, 10, 40])) for at in at_ms]
        played = Played({"seed": seed, "injections": asked}, requests)
        assert {number: len(row.wrote_ns) for number, row in played.requests.items()} == dict(
            enumerate(output for *_, output in requests)
        )
        assert played.scheduler.cache.in_use == 0
