"""guidellm: its JSON report, a run for each of its benchmarks; its words for latencies are not vLLM's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.importers import json_fields
from loadgen.analysis.importers.json_fields import inside
from loadgen.analysis.run_summary import Load, Reported, short_name

CLIENT = "guidellm"
MARKS = (b'"guidellm_version"', b'"generative_benchmark', b'"inter_token_latency_ms"')
_RANKS = (90, 95, 99)
_SUMMED = {"mean": "mean", "median": "median", "std": "std_dev"}
_FROM_REQUESTS = (
    "guidellm: TPOT is (last - first token) / (tokens - 1), which it calls ITL; its TPOT holds the TTFT"
)
_NO_REQUESTS = "guidellm: from its summary, whose percentiles are of the nearest rank"
_UNEVEN = "guidellm: no TPOT: its ITL is weighted by tokens, and the lengths differ"


def tells(document: Mapping[str, Any]) -> bool:
    """Whether a document is such a report."""
    found = json_fields.listed(document.get("benchmarks"))
    return any(isinstance(inside(one, "metrics", "time_to_first_token_ms"), dict) for one in found)


def read(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """A run for each benchmark of a report: a sweep has many."""
    benchmarks = json_fields.listed(document.get("benchmarks"))
    for number, benchmark in enumerate(benchmarks, 1):
        where = f"{source} benchmark {number}" if len(benchmarks) > 1 else source
        yield _reported(document, json_fields.mapping(benchmark), where, source)


def _reported(document: Mapping[str, Any], one: Mapping[str, Any], where: str, source: str) -> Reported:
    metrics = json_fields.mapping(one.get("metrics"))
    requests = [r for r in json_fields.listed(inside(one, "requests", "successful")) if isinstance(r, dict)]
    told = _totals(one, metrics)
    whole = bool(requests) and len(requests) == told["completed"]  # a sample of them is not all
    if whole:
        latencies, remarks = _from_requests(requests), [_FROM_REQUESTS]
    else:
        latencies, remarks = _from_summary(metrics)
    if _one_token_a_message(metrics):  # then its mean over tokens is that of the gaps
        latencies["mean_itl_ms"] = _summary(metrics, "inter_token_latency_ms").get("mean")
    figures, empty = json_fields.checked({**told, **latencies}, where)
    incomplete = json_fields.count(inside(metrics, "request_totals", "incomplete"))
    if incomplete:
        remarks.append(f"guidellm: {incomplete} requests were still under way at the end and count nowhere")
    return Reported(
        name=_model(document, one) or Path(source).stem,
        figures=figures,
        load=_load(document, one, figures),
        source=where,
        told_by=CLIENT,
        started=_started(one.get("start_time")),
        remarks=(*remarks, *empty),
    )


def _totals(one: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Counts and rates of the requests that succeeded, over the window that it measured."""
    rates = ("requests_per_second", "output_tokens_per_second", "tokens_per_second")
    request, output, total = (_summary(metrics, rate).get("mean") for rate in rates)
    most = inside(metrics, "request_concurrency", "total", "max")
    return {
        "completed": json_fields.count(inside(metrics, "request_totals", "successful")),
        "failed": json_fields.count(inside(metrics, "request_totals", "errored")),
        "duration": _duration(one),
        "total_input_tokens": _sum(metrics, "prompt_token_count"),
        "total_output_tokens": _sum(metrics, "output_token_count"),
        "request_throughput": request,
        "output_throughput": output,
        "total_token_throughput": total,
        "max_concurrent_requests": json_fields.count(most),
    }


def _duration(one: Mapping[str, Any]) -> float | None:
    said, begin, end = (json_fields.number(one.get(key)) for key in ("duration", "start_time", "end_time"))
    return end - begin if said is None and begin is not None and end is not None else said


def _from_requests(requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """vLLM's TTFT, TPOT and E2EL of each request, whose times are all there."""
    several = [one for one in requests if (json_fields.number(one.get("output_tokens")) or 0) > 1]
    return {
        **_statistics("ttft", [one.get("time_to_first_token_ms") for one in requests]),
        **_statistics("tpot", [one.get("inter_token_latency_ms") for one in several]),
        **_statistics("e2el", [_e2el_ms(one) for one in requests]),
    }


def _e2el_ms(request: Mapping[str, Any]) -> float | None:
    """First byte sent to last token; guidellm's own latency runs to the response's end."""
    timings = inside(request, "info", "timings") or inside(request, "scheduler_info", "request_timings")
    last = json_fields.number(inside(timings, "last_token_iteration"))
    sent = json_fields.number(inside(timings, "request_start"))
    if last is not None and sent is not None:
        return (last - sent) * 1e3
    latency_s = json_fields.number(request.get("request_latency"))
    return None if latency_s is None else latency_s * 1e3


def _statistics(key: str, values: Sequence[object]) -> dict[str, float]:
    each = np.array([found for value in values if (found := json_fields.number(value)) is not None])
    if not len(each):
        return {}
    told = {f"mean_{key}_ms": each.mean(), f"median_{key}_ms": np.median(each), f"std_{key}_ms": each.std()}
    told |= {f"p{rank}_{key}_ms": np.percentile(each, rank) for rank in _RANKS}
    return {name: float(value) for name, value in told.items()}


def _from_summary(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What the summary tells without a formula of its own in the way."""
    remarks = [_NO_REQUESTS]
    found = _summed("ttft", _summary(metrics, "time_to_first_token_ms"), 1.0)
    found |= _summed("e2el", _summary(metrics, "request_latency"), 1e3)
    remarks.append("guidellm: E2E runs to the response's end, not to its last token")
    if _summary(metrics, "output_token_count").get("std_dev") == 0:
        found |= _summed("tpot", _summary(metrics, "inter_token_latency_ms"), 1.0)
    else:
        remarks.append(_UNEVEN)
    return found, remarks


def _summed(key: str, summary: Mapping[str, Any], scale: float) -> dict[str, float]:
    told = {f"{word}_{key}_ms": summary.get(theirs) for word, theirs in _SUMMED.items()}
    told |= {f"p{rank}_{key}_ms": inside(summary, "percentiles", f"p{rank}") for rank in _RANKS}
    return {
        name: value * scale for name, one in told.items() if (value := json_fields.number(one)) is not None
    }


def _summary(metrics: Mapping[str, Any], name: str) -> dict[str, Any]:
    return json_fields.mapping(inside(metrics, name, "successful"))


def _sum(metrics: Mapping[str, Any], name: str) -> int | None:
    summary = _summary(metrics, name)
    total = json_fields.number(summary.get("total_sum"))
    if total is None and (mean := json_fields.number(summary.get("mean"))) is not None:
        total = json_fields.number(mean * (json_fields.number(summary.get("count")) or 0))
    return None if total is None else round(total)


def _one_token_a_message(metrics: Mapping[str, Any]) -> bool:
    each = _summary(metrics, "iter_tokens_per_iteration")
    return each.get("mean") == 1 and each.get("std_dev") == 0


def _model(document: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    places = (
        inside(one, "config", "backend", "model"),
        inside(document, "config", "spec", "backend", "model"),
        inside(document, "args", "model"),
        inside(one, "worker", "backend_model"),
        inside(one, "benchmarker", "backend", "model"),
    )
    return short_name(next(filter(None, map(json_fields.word, places)), ""))


def _load(document: Mapping[str, Any], one: Mapping[str, Any], figures: Mapping[str, Any]) -> Load:
    strategy = json_fields.mapping(inside(one, "config", "strategy") or inside(one, "args", "strategy"))
    kind = json_fields.word(strategy.get("type_"))
    streams = json_fields.count(strategy.get("streams", strategy.get("max_concurrency")))
    rate = json_fields.number(strategy.get("rate"))
    data = json_fields.listed(inside(document, "config", "spec", "data"))
    completed = figures.get("completed")
    limit = 1 if kind == "synchronous" else streams if kind == "concurrent" else None
    return Load(
        requests=json_fields.count(inside(one, "scheduler_state", "created_requests")),
        input_len=json_fields.mean(figures.get("total_input_tokens"), completed),
        output_len=json_fields.mean(figures.get("total_output_tokens"), completed),
        asked_output_len=json_fields.count(inside(data[0], "output_tokens")) if data else None,
        max_concurrency=limit,
        request_rate_per_s=math.inf if rate is None and kind else rate,
        asked_input_len=json_fields.count(inside(data[0], "prompt_tokens")) if data else None,
        seed=json_fields.count(inside(document, "config", "spec", "seed", "value")),
    )


def _started(said: object) -> datetime | None:
    at = json_fields.number(said)
    return None if at is None or not 0 < at < 1e11 else datetime.fromtimestamp(at, UTC)
