"""Runs that were divided, among shards or several servers, and what makes each doubt of theirs in them."""

from __future__ import annotations

from builders.made_cases import MS, START_NS, TARGETS, closed, open_loop, rate, run, shards
from loadgen.verdict.evidence import RunEvidence

# The run, and the words that its evidence must have.
OF_SHARDS: dict[str, tuple[RunEvidence, str]] = {
    "load-lost": (run(lost=("shard 1/2 is missing: its 160 requests are lost",)),
                  "shard 1/2 is missing: its 160 requests are lost"),
    "rest-of-the-load": (
        run(lost=("worker 1 was killed",)),
        "320 of 320 requests succeeded: their latencies are under less load"),
    "shards-started-apart": (
        run(shards=shards({"began_ns": START_NS}, {"began_ns": START_NS + 900 * MS})),
        "2 shards began 900 ms apart"),
    "clock-offset": (
        run(shards=shards({}, {"error_ns": 25 * MS, "reference": "wall clock"})),
        "shard 1/2 at an offset that is known to ± 25 ms to the clock of the first one"),
    "targets-unequal": (
        run(closed(slower_ms=lambda slot: 30.0 * (slot % 2)), targets=TARGETS),
        "median TTFT of http://b:8000 is 80 ms, of the others 50 ms, and higher in each of 10"),
}  # fmt: skip
# What a run that nothing speaks against may show.
AT_EASE = {
    "shards that began as their clocks agree": run(
        shards=shards({"began_ns": START_NS}, {"began_ns": START_NS + 9 * MS, "error_ns": 2 * MS})
    ),
    "shards of a rate": run(
        open_loop(), rate(100), shards=shards({"began_ns": START_NS}, {"began_ns": START_NS + 99 * MS})
    ),
}
