"""Saturated run: what holds of a run that was ended early, since the server fell further and further behind.

Its latencies are those of the requests that were answered in time, and go with the moment at which it ended.
"""

from __future__ import annotations

from loadgen.figures.vllm_keys import Figures
from loadgen.report.run_directory import Result

SATURATED = "saturated"
LEGEND = (
    f"{SATURATED}: ended early, since the server fell further and further behind: tok/s is of every token "
    "that arrived, latencies never settled"
)


def figures(run: Result) -> Figures:
    """By vLLM's keys: output tokens a second of all requests, and failures, of which one cut off is none."""
    metrics = run.metrics
    if not metrics.duration_s:
        return {}
    return {
        "output_throughput": float(run.records.tokens.sum()) / metrics.duration_s,
        "failed": metrics.failed,
    }
