"""Published objectives: the latency limits that others hold servers to, by name.

MLPerf Inference, server and interactive scenarios: `loadgen/mlperf.conf` of mlcommons/inference as of
2026-08, P99 of TTFT and TPOT, or of the whole answer.
"""

from __future__ import annotations

SOURCE = "MLPerf Inference"
# metric, percentile, limit in milliseconds
Row = tuple[str, float, float]


def _streamed(ttft_ms: float, tpot_ms: float) -> tuple[Row, ...]:
    return ("ttft", 99.0, ttft_ms), ("tpot", 99.0, tpot_ms)


PUBLISHED: dict[str, tuple[Row, ...]] = {
    "mlperf/llama2-70b": _streamed(2000, 200),
    "mlperf/llama2-70b-interactive": _streamed(450, 40),
    "mlperf/llama3.1-405b": _streamed(6000, 175),
    "mlperf/llama3.1-405b-interactive": _streamed(4500, 80),
    "mlperf/llama3.1-8b": _streamed(2000, 100),
    "mlperf/llama3.1-8b-interactive": _streamed(500, 30),
    "mlperf/mixtral-8x7b": _streamed(2000, 200),
    "mlperf/deepseek-r1": _streamed(2000, 80),
    "mlperf/deepseek-r1-interactive": _streamed(1500, 15),
    "mlperf/gpt-oss-120b": _streamed(3000, 80),
    "mlperf/gpt-oss-120b-interactive": _streamed(2000, 15),
    "mlperf/qwen3-vl": (("e2el", 99.0, 12_000),),
}
