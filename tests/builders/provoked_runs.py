"""Runs against a real server whose data is doubtful: bursts of a clock, lost blocks, noise, a queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builders.provocations import Provocation, engine, exposed, known, metered
from builders.provoked_answers import OF_SLOTS
from builders.provoked_talks import OF_SESSIONS
from loadgen.roofline.checkpoint import Checkpoint
from loadgen.server.engine_config import EngineConfig

_FOUR = "--random-input-len 64 --random-output-len 10 --num-prompts 8 --max-concurrency 4"


@contextmanager
def _trace(_: str) -> Iterator[None]:
    """A trace whose clock goes in steps of three seconds is there, and one of few long prompts."""
    rows = [
        {
            "timestamp": 3000 * (i // 4),
            "input_length": 600,
            "output_length": 4,
            "hash_ids": [2 * i, 2 * i + 1],
        }
        for i in range(96)
    ]
    Path("trace.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    others = enumerate(rows[4:], 4)
    short = [*rows[:4], *(row | {"input_length": 48, "hash_ids": [2 * i]} for i, row in others)]
    Path("short.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in short), "utf-8")
    yield


OF_DATA = {
    "a trace whose clock goes in steps, its prompts cut": Provocation(
        engine(),
        "--trace trace.jsonl --speed-up 60 --trace-max-input-len 64 --trace-too-long clip",
        {"trace-grid", "lengths-cut"},
        may=frozenset({"sends-late", "overload", "queued", "early-ends"}),
        beside=_trace,
    ),
    "a trace whose clock goes in steps, of which four prompts are cut": Provocation(
        engine(),
        "--trace short.jsonl --speed-up 60 --trace-max-input-len 64 --trace-too-long clip",
        {"trace-grid", "few-lengths-cut"},
        may=frozenset({"sends-late", "overload", "queued", "early-ends"}),
        beside=_trace,
    ),
    "a prefix of a block and a half": Provocation(
        engine(), f"{_FOUR} --random-prefix-len 24", {"reuse-not-as-expected"}
    ),
    "drafts of random tokens": Provocation(
        engine(),
        _FOUR,
        {"random-acceptance"},
        played=known(lambda facts: {"as_run": EngineConfig(speculative="ngram, 3 tokens")}),
    ),
    "experts that get random tokens": Provocation(
        engine(),
        _FOUR,
        {"random-routing"},
        played=known(lambda facts: {"checkpoint": Checkpoint(path="/m", config_digest="0", experts=8)}),
    ),
    "the server goes on with what was cancelled": Provocation(
        metered(lambda answers, _: exposed(answers, 5 * answers)),
        "--random-input-len 5 --random-output-len 5 --num-prompts 16 --max-concurrency 4 "
        "--cancel-rate 50% --cancel-after 50ms --seed 1",
        {"no-abort"},
    ),
    "every request is cancelled": Provocation(
        engine(),
        "--random-input-len 64 --random-output-len 50 --num-prompts 40 --max-concurrency 4 "
        "--cancel-rate 100% --cancel-after 1tok",
        {"all-cancelled"},
        code=1,
    ),
    "the speed of prefill in a queue": Provocation(
        engine("--max-num-seqs", "2"),
        "--random-input-len 64 --random-output-len 10 --num-prompts 18 --max-concurrency 6 "
        "--percentile-metrics ttft,prefill_speed",
        {"server-limit", "few-per-slot", "prefill-while-queued"},
    ),
    **OF_SLOTS,
    **OF_SESSIONS,
}
