"""Block: the "Serving Benchmark Result" text, from figures under vLLM's result keys.

A layout is data: rows and sections that name a key. A row whose figure is absent is left out, so
the figures alone decide what is printed, whether they come from Metrics or from someone's file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from loadgen.metrics import Distribution, Metrics

Figures = Mapping[str, Any]
STREAMED = ("ttft", "tpot", "itl")
UNLIMITED = math.inf


@dataclass(frozen=True)
class BlockFacts:
    """What the block shows of how the run was asked for."""

    request_rate_per_s: float = UNLIMITED
    max_concurrency: int | None = None
    selected: tuple[str, ...] = STREAMED  # --percentile-metrics


def figures(metrics: Metrics, facts: BlockFacts) -> dict[str, Any]:
    """Everything the block prints, under vLLM's result keys."""
    return {
        **traffic(facts),
        **throughputs(metrics),
        **peaks(metrics),
        **latencies(metrics, facts),
    }


def traffic(facts: BlockFacts) -> dict[str, Any]:
    """The load as configured; an unlimited rate is the word "inf", as in vLLM's file."""
    rate = facts.request_rate_per_s
    return {
        "request_rate": "inf" if math.isinf(rate) else float(rate),
        "max_concurrency": facts.max_concurrency,
    }


def throughputs(metrics: Metrics) -> dict[str, Any]:
    """Counts and rates over the whole run."""
    return {
        "duration": metrics.duration_s,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.total_input_tokens,
        "total_output_tokens": metrics.total_output_tokens,
        "request_throughput": metrics.request_throughput_per_s,
        "request_goodput": metrics.goodput_per_s,
        "output_throughput": metrics.output_throughput_per_s,
        "total_token_throughput": metrics.total_throughput_per_s,
    }


def peaks(metrics: Metrics) -> dict[str, Any]:
    """The busiest second and the most requests at once; rtfx is for audio, which is never sent."""
    return {
        "max_output_tokens_per_s": metrics.peak_output_throughput_per_s,
        "max_concurrent_requests": metrics.peak_concurrency,
        "rtfx": 0.0,
    }


def latencies(metrics: Metrics, facts: BlockFacts) -> dict[str, float | None]:
    """Mean, median, std and percentiles of each selected metric, in milliseconds.

    vLLM's conditions: queue time only under --max-concurrency, E2EL with it only at a finite rate too.
    A run that was not streamed shows E2EL whatever was selected. A distribution of nothing is None
    (vLLM's 0.00 would be a latency that nobody had), and its section is left out.
    """
    shown = set(facts.selected) if metrics.streamed else {*facts.selected, "e2el"}
    if facts.max_concurrency is None:
        shown -= {"client_queue_time", "e2el_including_client_queue"}
    if math.isinf(facts.request_rate_per_s):
        shown.discard("e2el_including_client_queue")
    statistics: dict[str, float | None] = {}
    for key, distribution in metrics.selectable.items():
        if key in shown:
            statistics.update(_statistics(key, distribution))
    return statistics


def percentile_name(percentile: float) -> str:
    """The percentile as keys and labels spell it: 99, 99.9."""
    return str(int(percentile)) if percentile == int(percentile) else str(percentile)


def _statistics(key: str, distribution: Distribution) -> dict[str, float | None]:
    values: dict[str, float | None] = {
        f"mean_{key}_ms": distribution.mean_ms,
        f"median_{key}_ms": distribution.median_ms,
        f"std_{key}_ms": distribution.std_ms,
        **{f"p{percentile_name(p)}_{key}_ms": value for p, value in distribution.percentiles_ms.items()},
    }
    return values if distribution.n else dict.fromkeys(values)


@dataclass(frozen=True)
class Row:
    """One line: printed when the figure is a number (and, with `positive`, above zero)."""

    label: str
    key: str
    spec: str = ""
    positive: bool = False


@dataclass(frozen=True)
class Section:
    """One latency metric: a ruled header, then its mean, median and every percentile there is."""

    header: str
    name: str
    key: str


@dataclass(frozen=True)
class Layout:
    """What a block looks like."""

    title: str
    rows: tuple[Row, ...]
    sections: tuple[Section, ...]
    width: int = 50
    label_width: int = 40
    value_width: int = 10


_VLLM_0_32 = Layout(
    title=" Serving Benchmark Result ",
    rows=(
        Row("Successful requests:", "completed"),
        Row("Failed requests:", "failed"),
        Row("Maximum request concurrency:", "max_concurrency"),
        Row("Request rate configured (RPS):", "request_rate", ".2f"),
        Row("Benchmark duration (s):", "duration", ".2f"),
        Row("Total input tokens:", "total_input_tokens"),
        Row("Total generated tokens:", "total_output_tokens"),
        Row("Request throughput (req/s):", "request_throughput", ".2f"),
        Row("Request goodput (req/s):", "request_goodput", ".2f"),
        Row("Output token throughput (tok/s):", "output_throughput", ".2f"),
        Row("Peak output token throughput (tok/s):", "max_output_tokens_per_s", ".2f"),
        Row("Peak concurrent requests:", "max_concurrent_requests", ".2f"),
        Row("RTFx (Inverse Real-Time Factor):", "rtfx", ".2f", positive=True),
        Row("Total token throughput (tok/s):", "total_token_throughput", ".2f"),
    ),
    sections=(
        Section("Time to First Token", "TTFT", "ttft"),
        Section("Time per Output Token (excl. 1st token)", "TPOT", "tpot"),
        Section("Inter-token Latency", "ITL", "itl"),
        Section("End-to-end Latency", "E2EL", "e2el"),
        Section("Client-side Queueing", "Client Queue Time", "client_queue_time"),
        Section(
            "Queue-inclusive End-to-end Latency", "E2EL incl. Client Queue", "e2el_including_client_queue"
        ),
        Section("Time per Token (gaps shared by tokens)", "Token Time", "token_time"),  # ours
    ),
)

# As vLLM printed it until the end of 2025, and as it stands on the pages of that time.
_VLLM_2025 = replace(
    _VLLM_0_32,
    rows=tuple(
        replace(row, label=row.label.replace("Total token throughput", "Total Token throughput"))
        for row in _VLLM_0_32.rows
        if row.key not in ("failed", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx")
    ),
)
LAYOUTS = {"vllm-0.32": _VLLM_0_32, "vllm-2025": _VLLM_2025}


def render(figures: Figures, layout: Layout = _VLLM_0_32) -> str:
    """The block as text, trailing spaces kept, without a final newline."""
    lines = [layout.title.center(layout.width, "=")]
    for row in layout.rows:
        value = figures.get(row.key)
        if isinstance(value, int | float) and (value > 0 or not row.positive):
            lines.append(_line(layout, row.label, value, row.spec))
    for section in layout.sections:
        lines += _section_lines(figures, layout, section)
    return "\n".join([*lines, "=" * layout.width])


def _section_lines(figures: Figures, layout: Layout, section: Section) -> list[str]:
    if figures.get(f"mean_{section.key}_ms") is None:
        return []
    statistics = [("Mean", f"mean_{section.key}_ms"), ("Median", f"median_{section.key}_ms")]
    pattern = re.compile(rf"p([\d.]+)_{section.key}_ms")
    statistics += [(f"P{found[1]}", key) for key in figures if (found := pattern.fullmatch(key))]
    return [
        section.header.center(layout.width, "-"),
        *(
            _line(layout, f"{word} {section.name} (ms):", figures[key], ".2f")
            for word, key in statistics
            if key in figures
        ),
    ]


def _line(layout: Layout, label: str, value: float, spec: str) -> str:
    return f"{label:<{layout.label_width}} {value:<{layout.value_width}{spec}}"
