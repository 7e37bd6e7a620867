"""Published runs as a reader would hand them on: the Thor page's blocks, and rows made by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from loadgen.report.load_identity import Load
from loadgen.study.run_summary import Reported

PUBLISHED = Path(__file__).parents[1] / "data" / "published"
_KEYS = {
    "Successful requests": "completed",
    "Maximum request concurrency": "max_concurrency",
    "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Request throughput (req/s)": "request_throughput",
    "Output token throughput (tok/s)": "output_throughput",
    "Total Token throughput (tok/s)": "total_token_throughput",
    **{
        f"{rank} {metric} (ms)": f"{rank.lower()}_{metric.lower()}_ms"
        for metric in ("TTFT", "TPOT", "ITL")
        for rank in ("Mean", "Median", "P99")
    },
}
# 40 requests of 512 in and 64 out, 4 at a time: 10 waves of 100 ms and 63 tokens of 10 ms each.
FIGURES: dict[str, Any] = {
    "completed": 40, "failed": 0, "duration": 7.35, "total_input_tokens": 20480, "total_output_tokens": 2560,
    "request_throughput": 5.44, "output_throughput": 348.30, "total_token_throughput": 3134.69,
    "mean_ttft_ms": 100.25, "median_ttft_ms": 99.75, "p99_ttft_ms": 120.33, "mean_tpot_ms": 10.02,
    "median_tpot_ms": 10.01, "p99_tpot_ms": 10.53, "mean_itl_ms": 10.02, "median_itl_ms": 9.89,
    "p99_itl_ms": 15.61,
}  # fmt: skip
LOAD = Load("high", 40, 512.0, 64.0, 64, 4)


def run(name: str = "m", load: Load = LOAD, told_by: str = "vllm", **figures: Any) -> Reported:
    """A healthy run with these figures instead; None takes one away."""
    told = {key: value for key, value in {**FIGURES, **figures}.items() if value is not None}
    return Reported(name, told, load, f"{name}-{load.name}.json", told_by=told_by)


def loaded(**fields: Any) -> Load:
    """The healthy run's load with these fields instead."""
    return replace(LOAD, **fields)


def thor() -> list[Reported]:
    """The sixteen blocks of the Thor page."""
    with (PUBLISHED / "jetson_thor_serving.csv").open(encoding="utf-8", newline="") as file:
        return [_row(line, cells) for line, cells in enumerate(csv.DictReader(file), 2)]


def _row(line: int, cells: dict[str, str]) -> Reported:
    figures = {key: _number(cells[label]) for label, key in _KEYS.items() if cells[label]}
    n = int(figures["completed"])
    load = Load(
        f"{cells['load']} load", requests=n, input_len=figures["total_input_tokens"] / n,
        output_len=figures["total_output_tokens"] / n, max_concurrency=figures.get("max_concurrency"),
    )  # fmt: skip
    return Reported(cells["model"], figures, load, f"page.md, line {line}", told_by="page", file="page.md")


def _number(text: str) -> Any:
    return int(text) if text.isdecimal() else float(text)
