"""vLLM's keys: a run's figures as `vllm bench serve` names them in its result file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from loadgen.figures.figure_table import COUNTS, DEFAULT_METRICS, OF_PROMPTS, PEAKS, SELECTABLE
from loadgen.figures.metrics import Metrics

Figures = Mapping[str, Any]
# Tokens per second of all requests together while prompts are computed, and while answers are.
PREFILL, DECODING = "prefill_throughput", "decode_throughput"


class BlockFacts(msgspec.Struct, frozen=True):
    """The settings of the load that the printed result block shows."""

    request_rate_per_s: float = math.inf
    max_concurrency: int | None = None
    selected: tuple[str, ...] = DEFAULT_METRICS  # --percentile-metrics


def list_figures(metrics: Metrics, facts: BlockFacts) -> dict[str, Any]:
    """Collect all that the result block prints, under vLLM's result keys."""
    return {
        **describe_traffic(facts),
        **list_throughputs(metrics),
        **list_peaks(metrics),
        **list_latencies(metrics, facts),
    }


def drop_unknown(figures: Mapping[str, Any], metrics: Metrics) -> dict[str, Any]:
    """Drop the figures that rest on prompt tokens if some prompts' tokens are unknown (they count 0)."""
    return {key: figures[key] for key in figures if not metrics.unknown_inputs or key not in OF_PROMPTS}


def list_known_throughputs(metrics: Metrics) -> dict[str, Any]:
    """Collect counts and rates of the whole run; None for those that rest on unknown prompt tokens.

    A file has null for them: vLLM's own readers take the keys that they name as columns, which must be there.
    """
    every = list_throughputs(metrics)
    return {**dict.fromkeys(every), **drop_unknown(every, metrics)}


def describe_traffic(facts: BlockFacts) -> dict[str, Any]:
    """Return the requested load under vLLM's keys; an unlimited rate is the text "inf"."""
    rate = facts.request_rate_per_s
    word = "inf" if math.isinf(rate) else float(rate)
    return {"request_rate": word, "max_concurrency": facts.max_concurrency}


def list_throughputs(metrics: Metrics) -> dict[str, Any]:
    """Collect the counts and rates of the whole run under vLLM's keys."""
    return {figure.key: getattr(metrics, figure.field_name) for figure in COUNTS}


def list_peaks(metrics: Metrics) -> dict[str, Any]:
    """Collect the peak tokens per second and peak concurrency under vLLM's keys; rtfx (audio) is 0."""
    return {**{figure.key: getattr(metrics, figure.field_name) for figure in PEAKS}, "rtfx": 0.0}


def list_latencies(metrics: Metrics, facts: BlockFacts) -> dict[str, float | None]:
    """Collect mean, median, std and percentiles (ms) of each selected metric under vLLM's keys.

    vLLM's conditions: queue time only under --max-concurrency, E2EL with it only at a finite rate too. A run
    in which no token was timed always shows E2EL. A distribution of nothing is None (vLLM's 0.00 would be a
    latency that no request had), and its section is left out.
    """
    shown = {*facts.selected} if metrics.times_tokens else {*facts.selected, "e2el"}
    values: dict[str, float | None] = {}
    for key, distribution in (metrics.selectable | metrics.selectable_rates).items():
        figure = SELECTABLE[key]
        hidden = figure.needs_limit and facts.max_concurrency is None
        hidden |= figure.needs_rate and math.isinf(facts.request_rate_per_s)
        if key in shown and not hidden:
            values |= figure.statistics(asdict(distribution))
    return values


def list_sglang_figures(metrics: Metrics) -> dict[str, Any]:
    """Collect the figures that SGLang prints and vLLM does not, under SGLang's keys.

    `concurrency` is the end-to-end latencies of the successes, summed, over the duration (Little).
    """
    e2el, itl, duration_s = metrics.e2el, metrics.itl, metrics.duration_s
    return {
        "total_input_text_tokens": metrics.total_input_tokens,
        "input_throughput": metrics.input_throughput_per_s if duration_s else None,
        "concurrency": e2el.n * e2el.mean_ms / 1e3 / duration_s if duration_s and e2el.n else None,
        "max_itl_ms": itl.max_ms if metrics.times_tokens and itl.n else None,
    }
