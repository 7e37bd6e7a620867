"""llama-benchy report: batches at depth as its JSON, which Spark Arena's `sparkrun` and our importer read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from loadgen.study.speed.batch_rows import BatchRow

# Keys of its metrics, and the samples that each is the mean of: a kind, of batches or of requests.
_SPEEDS = {
    "pp_throughput": ("pp", False), "pp_req_throughput": ("pp", True),
    "tg_throughput": ("tg", False), "tg_req_throughput": ("tg", True),
    "peak_throughput": ("peak", False), "peak_req_throughput": ("peak", True),
}  # fmt: skip
# est_ppt is ttfr less the network's latency, which is not measured here (latency_mode "none").
_TIMES = {"ttfr": "ttfr_ms", "est_ppt": "ttfr_ms", "e2e_ttft": "ttft_ms"}


def make_benchy_report(rows: Sequence[BatchRow], began: datetime, version: str) -> dict[str, Any]:
    """Make the report of rows, of which one has a batch; tests and figures without a sample are left out."""
    measured = [row for row in rows if row.batches]
    return {
        "version": version,
        "timestamp": began.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
        "latency_mode": "none",
        "latency_ms": 0.0,
        "model": measured[0].served,
        "prefix_caching_enabled": any(row.test.depth for row in rows),
        "max_concurrency": max(row.test.concurrency for row in rows),
        "benchmarks": [_make_benchmark(row) for row in measured],
    }


def _make_benchmark(row: BatchRow) -> dict[str, Any]:
    """Make the entry of a test: its sizes, and each metric with mean, population's deviation and values."""
    test = row.test
    samples = {key: row.list_samples(kind, of_each) for key, (kind, of_each) in _SPEEDS.items()}
    samples |= {key: row.list_times(field) for key, field in _TIMES.items()}
    if not samples["ttfr"]:  # a request's prefill is by est_ppt, and unknown where that is
        samples["pp_req_throughput"] = []
        if test.concurrency == 1:
            samples["pp_throughput"] = []
    return {
        "concurrency": test.concurrency,
        "context_size": test.depth,
        "prompt_size": test.prompt,
        "response_size": test.answer,
        "is_context_prefill_phase": test.is_context,
        **{
            key: {"mean": float(np.mean(values)), "std": float(np.std(values)), "values": values}
            for key, values in samples.items()
            if values
        },
    }
