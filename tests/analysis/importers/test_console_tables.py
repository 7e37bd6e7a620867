"""Console tables: what a client prints of one run, drawn in a terminal, is one row of figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.analysis.importers import tables

GENAI_PERF = """
                    NVIDIA GenAI-Perf | LLM Metrics
┏━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━━┳━━━━━━━━┳━━━━━━━━┓
┃                         Statistic ┃    avg ┃    min ┃    max ┃    p99 ┃
┡━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━━╇━━━━━━━━╇━━━━━━━━┩
│          Time to first token (ms) │  16.26 │  12.39 │  17.25 │  17.09 │
│          Inter token latency (ms) │   1.85 │   1.55 │   2.04 │   2.02 │
│              Request latency (ms) │ 499.20 │ 451.01 │ 554.61 │ 548.69 │
│ Output token throughput (per sec) │ 520.87 │    N/A │    N/A │    N/A │
│      Request throughput (per sec) │   1.99 │    N/A │    N/A │    N/A │
└───────────────────────────────────┴────────┴────────┴────────┴────────┘
"""
AIPERF = """
                NVIDIA AIPerf | LLM Metrics
┏━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━┳━━━━━━━━┓
┃               Metric ┃    avg ┃   min ┃    p50 ┃
┡━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━╇━━━━━━━━┩
│  Time to First Token │  18.26 │ 11.22 │  17.00 │
│                 (ms) │        │       │        │
│         Output Token │ 1,320. │   N/A │    N/A │
│           Throughput │     50 │       │        │
│         (tokens/sec) │        │       │        │
└──────────────────────┴────────┴───────┴────────┘
"""
EVALSCOPE = """
Percentile results:
+------------+----------+---------+----------+-------------+
| Percentile | TTFT (s) | ITL (s) | TPOT (s) | Latency (s) |
+------------+----------+---------+----------+-------------+
|    10%     |  0.0389  | 0.0100  |  0.0102  |   1.3521    |
|    50%     |  0.0491  | 0.0110  |  0.0112  |   1.4521    |
|    99%     |  0.0691  | 0.0150  |  0.0132  |   1.6521    |
+------------+----------+---------+----------+-------------+
"""


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (
            GENAI_PERF,
            {
                "mean_ttft_ms": 16.26, "p99_ttft_ms": 17.09, "mean_itl_ms": 1.85, "mean_e2el_ms": 499.2,
                "max_e2el_ms": 554.61, "output_throughput": 520.87, "request_throughput": 1.99,
            },
        ),
        (AIPERF, {"mean_ttft_ms": 18.26, "median_ttft_ms": 17.0}),
        (
            EVALSCOPE,
            {
                "p10_ttft_ms": 38.9, "median_ttft_ms": 49.1, "p99_itl_ms": 15.0, "median_tpot_ms": 11.2,
            },
        ),
    ],
    ids=["genai-perf", "aiperf", "evalscope"],
)  # fmt: skip
def test_a_clients_table_of_statistics_is_one_run(page: str, expected: dict[str, Any]) -> None:
    (run,) = tables.read(page, Path("page.md"))
    assert {key: run.figures.get(key) for key in expected} == expected
