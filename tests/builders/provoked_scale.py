"""Runs against real servers that were divided, and went wrong: a worker dies, servers differ, clocks do."""

from __future__ import annotations

from builders import provocations as made
from builders.made_cases import MS, START_NS, shards
from builders.provocations import Provocation, known, null

_DIVIDED = "--random-input-len 8 --num-warmups 4 --max-concurrency 4 --workers 2"

OF_SCALE = {
    "a worker that dies": Provocation(
        null(),
        f"{_DIVIDED} --num-warmups 0 --random-output-len 20 --num-prompts 40",
        {"load-lost", "rest-of-the-load"},
        beside=made.killed,
        may=frozenset({"concurrency-not-held", "throughput-trend"}),
        code=1,
    ),
    "two servers, of which one takes longer": Provocation(
        null(),
        f"{_DIVIDED} --random-output-len 2 --num-prompts 200",
        {"targets-unequal"},
        also=null(ttft_ms=80),
    ),
    "shards that began apart, by clocks that are hardly known": Provocation(
        null(),
        "--random-input-len 8 --random-output-len 20 --num-prompts 8 --max-concurrency 4",
        {"shards-started-apart", "clock-offset"},
        played=known(
            lambda facts: {
                "shards": shards(
                    {"began_ns": START_NS},
                    {"began_ns": START_NS + 900 * MS},
                    {"began_ns": START_NS, "error_ns": 25 * MS, "reference": "wall clock"},
                )
            }
        ),
    ),
}
