"""Runs whose data is doubtful: for each doubt a run, and the words of its evidence."""

from __future__ import annotations

from typing import Any

from builders import made_data
from builders.made_cases import INPUT, changed, closed, observed, open_loop, run
from loadgen.facts.run_facts import ImageProbe
from loadgen.plan.planned_requests import DataFacts
from loadgen.server.checkpoint import Checkpoint
from loadgen.server.engine_config import EngineConfig
from loadgen.server.server_counters import ServerLatency
from loadgen.verdict.evidence import RunEvidence

FILE = {"dataset_path": "rows.jsonl"}
TRACE = {"trace": "trace.jsonl", "max_concurrency": None}
EAGLE = EngineConfig(speculative="eagle, 3 tokens")
EXPERTS = Checkpoint(path="/m", config_digest="0", experts=128)
QUEUE = ServerLatency(count=320, mean_ms=20.0, brackets_ms=dict.fromkeys(("50", "90", "99"), (0.0, 30.0)))
BURSTS = {"grid_s": 3.0, "instants": 40}


def of_file(data: DataFacts, cached: int | None = None, **facts: Any) -> RunEvidence:
    """A closed loop of a file's rows, of each of which so many tokens were cached."""
    rows = closed() if cached is None else changed(closed(), cached_tokens=cached)
    hits = {} if cached is None else {"window": observed(prefix_hits=320 * cached)}
    return run(rows, FILE, **{"data": data, "prompt_format": "text", **hits, **facts})


def of_trace(**schedule: Any) -> RunEvidence:
    """A trace sent at its own times."""
    return run(open_loop(), TRACE, data=made_data.trace(**schedule), prompt_format="corpus")


def of_images(more: int, **changes: Any) -> RunEvidence:
    """A closed loop with an image in each request, which has so many prompt tokens more than its text."""
    images = made_data.images(**changes)
    rows = changed(closed(), input_tokens=INPUT + more)
    return run(
        rows,
        {"image_size": "64x64", "backend": "openai-chat"},
        data=DataFacts(images=images),
        image_probes=(ImageProbe(index=0, text_tokens=INPUT),),
        window=None,
    )


OF_DATA: dict[str, tuple[RunEvidence, str]] = {
    "trace-grid": (
        of_trace(**BURSTS),
        "40 instants for 320 requests: the trace's timestamps are multiples of 3 s, so requests left in "
        "bursts that never were",
    ),
    "random-acceptance": (
        run(as_run=EAGLE, window=observed(draft_tokens=900, accepted_tokens=90)),
        "random tokens measure noise: speculative decoding (eagle, 3 tokens), 10 % of 900 draft tokens "
        "accepted, which is not that of text",
    ),
    "prefill-while-queued": (
        run(None, {"percentile_metrics": "ttft,prefill_speed"}, window=observed(queue=QUEUE)),
        "20 of 50 ms mean TTFT in the queue: prefill_speed is not the speed of prefill",
    ),
    "reuse-not-as-expected": (
        of_file(made_data.data(reusable=0.4), cached=30),
        "30 % of the prompt tokens cached (the server's counters), 40 % expected: its cache is small, cold "
        "or off",
    ),
    "lengths-cut": (of_file(made_data.data(clipped=40)), "40 of 320 requests were clipped"),
    "few-lengths-cut": (of_file(made_data.data(clipped=20)), "20 of 320 requests were clipped"),
    "random-routing": (
        run(checkpoint=EXPERTS),
        "random tokens measure noise: the model has 128 experts, and routing is not that of text",
    ),
    "images-ignored": (
        of_images(0),
        "0 tokens for 1 image, by the server's count of a prompt less that of the same text alone",
    ),
    "images-repeated": (of_images(64, distinct=40), "320 images, of 40 different ones"),
}
