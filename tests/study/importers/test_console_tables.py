"""Console tables: what a client prints of one run, drawn in a terminal, is one row of figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.study.audit.findings import audit_runs
from loadgen.study.importers.pasted import pasted_tables
from loadgen.verdict.verdict import Level

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
│             Request Count (count) │    100 │    N/A │    N/A │    N/A │
│    Error Request Count (requests) │     20 │    N/A │    N/A │    N/A │
│            Output sequence length │ 260.00 │ 258.00 │ 262.00 │ 262.00 │
│          Time To Second Token(ms) │   1.50 │   1.00 │   2.00 │   2.00 │
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
SUMMARY = """
# Qwen3-8B

Benchmarking summary:
+-----------------------------------+-----------+
| Key                               |     Value |
+===================================+===========+
| Time taken for tests (s)          |  289      |
+-----------------------------------+-----------+
| Number of concurrency             |    5      |
+-----------------------------------+-----------+
| Total requests                    |  100      |
+-----------------------------------+-----------+
| Succeed requests                  |  100      |
+-----------------------------------+-----------+
| Failed requests                   |    0      |
+-----------------------------------+-----------+
| Output token throughput (tok/s)   |  514.391  |
+-----------------------------------+-----------+
| Request throughput (req/s)        |    0.346  |
+-----------------------------------+-----------+
| Average latency (s)               |   14.1385 |
+-----------------------------------+-----------+
| Average time to first token (s)   |    0.0413 |
+-----------------------------------+-----------+
| Average time per output token (s) |    0.0095 |
+-----------------------------------+-----------+
| Average inter-token latency (s)   |    0.0095 |
+-----------------------------------+-----------+
| Average input tokens per request  |   94.75   |
+-----------------------------------+-----------+
| Average output tokens per request | 1486.59   |
+-----------------------------------+-----------+
"""
LOADS = """
# Qwen3-8B
┏━━━━━━┳━━━━━━┳━━━━━━━━━━┳━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━┳━━━━━━━━━━┓
┃      ┃      ┃      Avg ┃      P99 ┃     Avg ┃     Avg ┃     Gen. ┃   Success┃
┃Conc. ┃  RPS ┃  Lat.(s) ┃  Lat.(s) ┃ TTFT(s) ┃ TPOT(s) ┃   toks/s ┃      Rate┃
┡━━━━━━╇━━━━━━╇━━━━━━━━━━╇━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━╇━━━━━━━━━━┩
│    1 │ 0.17 │    6.014 │    6.101 │   0.041 │   0.012 │    83.20 │    100.0%│
│   20 │ 1.80 │   11.014 │   12.101 │   0.241 │   0.021 │   900.20 │     50.0%│
└──────┴──────┴──────────┴──────────┴─────────┴─────────┴──────────┴──────────┘
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
                "mean_ttft_ms": 16.26, "p99_ttft_ms": 17.09, "min_ttft_ms": 12.39, "mean_tpot_ms": 1.85,
                "mean_itl_ms": None, "mean_e2el_ms": 499.2, "max_e2el_ms": 554.61,
                "output_throughput": 520.87, "request_throughput": 1.99, "completed": 100, "failed": 20,
            },
        ),
        (AIPERF, {"mean_ttft_ms": 18.26, "median_ttft_ms": 17.0}),
        (EVALSCOPE,
         {"p10_ttft_ms": 38.9, "median_ttft_ms": 49.1, "p99_itl_ms": 15.0, "median_tpot_ms": 11.2}),
    ],
    ids=["genai-perf", "aiperf", "evalscope"],
)  # fmt: skip
def test_a_clients_table_of_statistics_is_one_run(page: str, expected: dict[str, Any]) -> None:
    (run,) = pasted_tables.read_tables(page, Path("page.md"))[0]
    assert {key: run.figures.get(key) for key in expected} == expected


def test_what_is_not_known_of_a_clients_table_is_named() -> None:
    (run,) = pasted_tables.read_tables(GENAI_PERF, Path("page.md"))[0]
    assert run.load.output_len == 260
    assert "not read: 'Time To Second Token(ms)'" in run.remarks


def test_evalscopes_summary_is_a_run_with_its_counts_and_lengths() -> None:
    (run,) = pasted_tables.read_tables(SUMMARY, Path("page.md"))[0]
    assert run.figures == {
        "duration": 289, "completed": 100, "failed": 0, "output_throughput": 514.391,
        "request_throughput": 0.346,
        "mean_e2el_ms": 14138.5, "mean_ttft_ms": 41.3, "mean_tpot_ms": 9.5, "mean_itl_ms": 9.5,
    }  # fmt: skip
    assert (run.load.input_len, run.load.output_len, run.load.max_concurrency) == (95, 1487, 5)
    (audited,) = audit_runs([run], None, None)
    assert audited.level is Level.VALID


def test_failures_are_found_in_evalscopes_tables() -> None:
    lost = SUMMARY.replace("  100      |\n+--", "   60      |\n+--").replace("|    0      |", "|   40      |")
    lost = lost.replace("0.346", "0.208").replace(
        "Total requests                    |   60", "Total requests | 100"
    )
    (summary,) = audit_runs(pasted_tables.read_tables(lost, Path("page.md"))[0], None, None)
    alone, loaded = audit_runs(pasted_tables.read_tables(LOADS, Path("page.md"))[0], None, None)
    found = [[each.rule.code for each in one.findings] for one in (summary, alone, loaded)]
    assert ["many-failures" in codes for codes in found] == [True, False, True]
    assert (loaded.reported.figures["p99_e2el_ms"], loaded.reported.figures["output_throughput"]) == (
        12101,
        900.2,
    )
