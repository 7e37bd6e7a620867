"""vLLM's keys: a run's figures as `vllm bench serve` names them in its result file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from loadgen.figures.distribution import Distribution, RateDistribution
from loadgen.figures.metrics import Metrics

Figures = Mapping[str, Any]
STREAMED = ("ttft", "tpot", "itl")


class BlockFacts(msgspec.Struct, frozen=True):
    """What the block shows of how the run was asked for."""

    request_rate_per_s: float = math.inf
    max_concurrency: int | None = None
    selected: tuple[str, ...] = STREAMED  # --percentile-metrics


OF_PROMPTS = frozenset({
    "total_input_tokens", "total_input_text_tokens", "input_throughput", "total_token_throughput",
})  # fmt: skip


def figures(metrics: Metrics, facts: BlockFacts) -> dict[str, Any]:
    """Everything the block prints, under vLLM's result keys."""
    return {**traffic(facts), **throughputs(metrics), **peaks(metrics), **latencies(metrics, facts)}


def known(figures: Mapping[str, Any], metrics: Metrics) -> dict[str, Any]:
    """The figures without those that rest on prompt tokens, where some are not known: these count 0."""
    return {key: figures[key] for key in figures if not metrics.unknown_inputs or key not in OF_PROMPTS}


def counted(metrics: Metrics) -> dict[str, Any]:
    """Counts and rates over the whole run; None of those that rest on prompt tokens where some are not known.

    A file has null for them: vLLM's own readers take the keys that they name as columns, which must be there.
    """
    every = throughputs(metrics)
    return {**dict.fromkeys(every), **known(every, metrics)}


def traffic(facts: BlockFacts) -> dict[str, Any]:
    """The load as configured; an unlimited rate is the word "inf", as in vLLM's file."""
    rate = facts.request_rate_per_s
    word = "inf" if math.isinf(rate) else float(rate)
    return {"request_rate": word, "max_concurrency": facts.max_concurrency}


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
    A run in which no token was timed shows E2EL whatever was selected. A distribution of nothing is None
    (vLLM's 0.00 would be a latency that no request had), and its section is left out.
    """
    shown = set(facts.selected) if metrics.times_tokens else {*facts.selected, "e2el"}
    if facts.max_concurrency is None:
        shown -= {"client_queue_time", "e2el_including_client_queue"}
    if math.isinf(facts.request_rate_per_s):
        shown.discard("e2el_including_client_queue")
    values: dict[str, float | None] = {}
    for key, distribution in metrics.selectable.items():
        if key in shown:
            values |= statistics(key, distribution)
    for key, rates in metrics.selectable_rates.items():
        if key in shown:
            values |= rate_statistics(key, rates)
    return values


def of_sglang(metrics: Metrics) -> dict[str, Any]:
    """What SGLang prints and vLLM does not, under SGLang's keys.

    `concurrency` is the end-to-end latencies of the successes, summed, over the duration (Little).
    """
    e2el, itl, duration_s = metrics.e2el, metrics.itl, metrics.duration_s
    return {
        "total_input_text_tokens": metrics.total_input_tokens,
        "input_throughput": metrics.input_throughput_per_s if duration_s else None,
        "concurrency": e2el.n * e2el.mean_ms / 1e3 / duration_s if duration_s and e2el.n else None,
        "max_itl_ms": itl.max_ms if metrics.times_tokens and itl.n else None,
    }


def percentile_name(percentile: float) -> str:
    """The percentile as keys and labels spell it: 99, 99.9."""
    return str(int(percentile)) if percentile == int(percentile) else str(percentile)


def statistics(key: str, distribution: Distribution) -> dict[str, float | None]:
    """Mean, median, std and percentiles of one metric under its keys; None each where it has no values."""
    values: dict[str, float | None] = {
        f"mean_{key}_ms": distribution.mean_ms,
        f"median_{key}_ms": distribution.median_ms,
        f"std_{key}_ms": distribution.std_ms,
        **{f"p{percentile_name(p)}_{key}_ms": value for p, value in distribution.percentiles_ms.items()},
    }
    return values if distribution.n else dict.fromkeys(values)


def rate_statistics(key: str, rates: RateDistribution) -> dict[str, float | None]:
    """The same of a speed, in tokens per second: its keys have no unit, as vLLM's throughputs have none."""
    values: dict[str, float | None] = {
        f"mean_{key}": rates.mean_tok_s,
        f"median_{key}": rates.median_tok_s,
        f"std_{key}": rates.std_tok_s,
        **{f"p{percentile_name(p)}_{key}": value for p, value in rates.percentiles_tok_s.items()},
    }
    return values if rates.n else dict.fromkeys(values)
