"""guidellm: its JSON report, a run for each of its benchmarks; its names of latencies are not vLLM's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadgen.base.layout import counted
from loadgen.base.untrusted import listed, mapping
from loadgen.study.importers import json_fields
from loadgen.study.importers.json_fields import inside
from loadgen.study.run_summary import Load, Reported, short_name

CLIENT = "guidellm"
MARKS: tuple[bytes, ...] = (b'"guidellm_version"', b'"generative_benchmark', b'"inter_token_latency_ms"')
# Where its versions have the counts of requests: 0.4 in the metrics, 0.2 and 0.3 next to them.
_COUNTS = (("metrics", "request_totals"), ("request_totals",), ("run_stats", "requests_made"))
_SUMMED = {"mean": "mean", "median": "median", "std": "std_dev"}
_FROM_REQUESTS = (
    "guidellm: TPOT is (last - first token) / (tokens - 1), its ITL; its own TPOT includes the TTFT"
)
_NO_REQUESTS = "guidellm: from its summary, whose percentiles are by nearest rank"
UNEVEN = "guidellm: no TPOT: its ITL is weighted by tokens, and the lengths differ"


def tells(document: Mapping[str, Any]) -> bool:
    """Whether a document is such a report."""
    metrics = (inside(benchmark, "metrics") for benchmark in listed(document.get("benchmarks")))
    return any(isinstance(inside(each, "time_to_first_token_ms"), dict) for each in metrics)


def read(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """A run for each benchmark of a report: a sweep has many."""
    benchmarks = listed(document.get("benchmarks"))
    for number, benchmark in enumerate(benchmarks, 1):
        where = f"{source} benchmark {number}" if len(benchmarks) > 1 else source
        yield _reported(document, mapping(benchmark), where, source)


def _reported(document: Mapping[str, Any], benchmark: Mapping[str, Any], where: str, source: str) -> Reported:
    metrics = mapping(benchmark.get("metrics"))
    requests = [r for r in listed(inside(benchmark, "requests", "successful")) if isinstance(r, dict)]
    totals = _totals(benchmark, metrics)
    whole = bool(requests) and len(requests) == totals["completed"]  # a sample of them is not all
    latencies, remarks = _from_requests(requests) if whole else _from_summary(metrics)
    each = _summary(metrics, "iter_tokens_per_iteration")
    if (each.get("mean"), each.get("std_dev")) == (1, 0):  # one token a message: its mean is that of the gaps
        latencies["mean_itl_ms"] = _summary(metrics, "inter_token_latency_ms").get("mean")
    figures, empty = json_fields.checked({**totals, **latencies}, where)
    incomplete = _count(benchmark, "incomplete")
    if incomplete:
        remarks.append(f"guidellm: {counted(incomplete, 'request')} unfinished at the end, not counted")
    return Reported(
        name=_model(document, benchmark) or Path(source).stem,
        figures=figures,
        load=_load(document, benchmark),
        source=where,
        told_by=CLIENT,
        started=_started(benchmark.get("start_time")),
        remarks=(*remarks, *empty),
    )


def _totals(benchmark: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Counts and rates of the requests that succeeded, over the window that it measured."""
    most = inside(metrics, "request_concurrency", "total", "max")
    return {
        "completed": _count(benchmark, "successful"),
        "failed": _count(benchmark, "errored"),
        "duration": _duration(benchmark),
        "total_input_tokens": _sum(metrics, "prompt_token_count"),
        "total_output_tokens": _sum(metrics, "output_token_count"),
        "request_throughput": _summary(metrics, "requests_per_second").get("mean"),
        "output_throughput": _summary(metrics, "output_tokens_per_second").get("mean"),
        "total_token_throughput": _summary(metrics, "tokens_per_second").get("mean"),
        "max_concurrent_requests": json_fields.count(most),
    }


def _count(benchmark: Mapping[str, Any], outcome: str) -> int | None:
    """How many requests ended so, by the first count that the report has, else by those that it lists."""
    counted = (json_fields.count(inside(benchmark, *place, outcome)) for place in _COUNTS)
    timed = json_fields.count(inside(benchmark, "metrics", "request_latency", outcome, "count"))
    named = inside(benchmark, "requests", outcome)
    listed_count = len(named) if isinstance(named, list) and named else None
    return next((count for count in (*counted, timed, listed_count) if count is not None), None)


def _sent(benchmark: Mapping[str, Any]) -> int | None:
    """The requests of the measured window that were not cut off by its end; without a count all created."""
    created = json_fields.count(inside(benchmark, "scheduler_state", "created_requests"))
    sent = created if (every := _count(benchmark, "total")) is None else every
    return None if sent is None else max(sent - (_count(benchmark, "incomplete") or 0), 0)


def _duration(benchmark: Mapping[str, Any]) -> float | None:
    keys = ("duration", "start_time", "end_time")
    reported, begin, end = (json_fields.number(benchmark.get(key)) for key in keys)
    return end - begin if reported is None and begin is not None and end is not None else reported


def _from_requests(requests: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """vLLM's TTFT, TPOT and E2EL of each request, whose times are all there."""
    several = [request for request in requests if (json_fields.number(request.get("output_tokens")) or 0) > 1]
    figures = _statistics("ttft", (request.get("time_to_first_token_ms") for request in requests))
    figures |= _statistics("tpot", (request.get("inter_token_latency_ms") for request in several))
    return figures | _statistics("e2el", map(_e2el_ms, requests)), [_FROM_REQUESTS]


def _e2el_ms(request: Mapping[str, Any]) -> float | None:
    """First byte sent to last token; guidellm's own latency runs to the response's end."""
    timings = inside(request, "info", "timings") or inside(request, "scheduler_info", "request_timings")
    last = json_fields.number(inside(timings, "last_token_iteration"))
    sent = json_fields.number(inside(timings, "request_start"))
    if last is not None and sent is not None:
        return (last - sent) * 1e3
    latency_s = json_fields.number(request.get("request_latency"))
    return None if latency_s is None else latency_s * 1e3


def _statistics(key: str, values: Iterable[object]) -> dict[str, float]:
    numbers = map(json_fields.number, values)
    return json_fields.statistics(key, (number for number in numbers if number is not None))


def _from_summary(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The latencies of the summary whose definition is vLLM's."""
    remarks = [_NO_REQUESTS, "guidellm: E2E runs to the response's end, not to its last token"]
    figures = _summed("ttft", _summary(metrics, "time_to_first_token_ms"), 1.0)
    figures |= _summed("e2el", _summary(metrics, "request_latency"), 1e3)
    if _summary(metrics, "output_token_count").get("std_dev") == 0:
        figures |= _summed("tpot", _summary(metrics, "inter_token_latency_ms"), 1.0)
    else:
        remarks.append(UNEVEN)
    return figures, remarks


def _summed(key: str, summary: Mapping[str, Any], scale: float) -> dict[str, float]:
    values = {word: summary.get(theirs) for word, theirs in _SUMMED.items()}
    values |= {f"p{rank}": inside(summary, "percentiles", f"p{rank}") for rank in json_fields.RANKS}
    numbers = {f"{word}_{key}_ms": json_fields.reported(value) for word, value in values.items()}
    return {name: number * scale for name, number in numbers.items() if number is not None}


def _summary(metrics: Mapping[str, Any], name: str) -> dict[str, Any]:
    return mapping(inside(metrics, name, "successful"))


def _sum(metrics: Mapping[str, Any], name: str) -> int | None:
    summary = _summary(metrics, name)
    total = json_fields.number(summary.get("total_sum"))
    if total is None and (mean := json_fields.number(summary.get("mean"))) is not None:
        total = json_fields.number(mean * (json_fields.number(summary.get("count")) or 0))
    return None if total is None else round(total)


def _model(document: Mapping[str, Any], benchmark: Mapping[str, Any]) -> str:
    places = (
        inside(benchmark, "config", "backend", "model"),
        inside(document, "config", "spec", "backend", "model"),
        inside(document, "args", "model"),
        inside(benchmark, "worker", "backend_model"),
        inside(benchmark, "benchmarker", "backend", "model"),
    )
    return short_name(next(filter(None, map(json_fields.word, places)), ""))


def _load(document: Mapping[str, Any], benchmark: Mapping[str, Any]) -> Load:
    strategy = mapping(inside(benchmark, "config", "strategy") or inside(benchmark, "args", "strategy"))
    kind = json_fields.word(strategy.get("type_"))
    streams = json_fields.count(strategy.get("streams", strategy.get("max_concurrency")))
    rate = json_fields.number(strategy.get("rate"))
    data = listed(inside(document, "config", "spec", "data"))
    limit = 1 if kind == "synchronous" else streams if kind == "concurrent" else None
    return Load(
        requests=_sent(benchmark),
        asked_output_len=json_fields.count(inside(data[0], "output_tokens")) if data else None,
        max_concurrency=limit,
        request_rate_per_s=math.inf if rate is None and kind else rate,
        asked_input_len=json_fields.count(inside(data[0], "prompt_tokens")) if data else None,
        seed=json_fields.count(inside(document, "config", "spec", "seed", "value")),
    )


def _started(timestamp: object) -> datetime | None:
    at = json_fields.number(timestamp)
    return None if at is None or not 0 < at < 1e11 else datetime.fromtimestamp(at, UTC)
