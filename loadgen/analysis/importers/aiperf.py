"""aiperf: the JSON that `aiperf profile` exports; its words for latencies are not vLLM's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from loadgen.analysis.importers import json_fields
from loadgen.analysis.importers.json_fields import inside
from loadgen.analysis.run_summary import Load, Reported, short_name

CLIENT = "aiperf"
MARKS = (b'"aiperf_version"', b'"inter_chunk_latency"', b'"output_sequence_length"')
# What each of ours is called there: its ITL is (latency - TTFT) / (tokens - 1) of a request, vLLM's TPOT;
# the gaps between chunks, pooled, are vLLM's ITL. E2E runs to the last chunk with content in it.
_METRICS = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2el": "request_latency",
}
_STATISTICS = {
    "mean": "avg",
    "median": "p50",
    "std": "std",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "max": "max",
}
_TOTALS = {
    "request_throughput": ("request_throughput",),
    "output_throughput": ("output_token_throughput",),
    "total_token_throughput": ("total_token_throughput",),
    "completed": ("completed_request_count", "request_count"),
    "failed": ("error_request_count",),
    "total_input_tokens": ("total_usage_prompt_tokens", "total_isl"),
    "total_output_tokens": ("total_usage_completion_tokens", "total_output_tokens", "total_osl"),
}
_COUNTS = ("completed", "failed", "total_input_tokens", "total_output_tokens")
_MS = {"ms": 1.0, "sec": 1e3, "s": 1e3, "us": 1e-3, "ns": 1e-6}
_FAR = 0.001
_TPOT = "aiperf: its inter_token_latency is TPOT here, its inter_chunk_latency ITL: what vLLM calls them"


def tells(document: Mapping[str, Any]) -> bool:
    """Whether a document is such an export."""
    found = _records(document)
    return "request_latency" in found and ("aiperf_version" in document or "request_throughput" in found)


def read(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """The one run of an export."""
    found = _records(document)
    told: dict[str, Any] = {}
    for key, theirs in _METRICS.items():
        scale = _MS.get(json_fields.word(inside(found, theirs, "unit")), 1.0)
        for word, name in _STATISTICS.items():
            value = json_fields.number(inside(found, theirs, name))
            told[f"{word}_{key}_ms"] = None if value is None else value * scale
    for key, names in _TOTALS.items():
        values = (json_fields.number(inside(found, name, "avg")) for name in names)
        told[key] = next((value for value in values if value is not None), None)
    told |= {key: int(told[key]) for key in _COUNTS if told[key] is not None}
    told["max_concurrent_requests"] = json_fields.count(inside(found, "effective_concurrency", "max"))
    told["duration"], remarks = _duration(found, told)
    figures, empty = json_fields.checked(told, source)
    completed, load = figures.get("completed"), _phase(document)
    yield Reported(
        name=_model(document) or Path(source).stem,
        figures=figures,
        load=Load(
            requests=json_fields.count(load.get("requests", load.get("request_count"))),
            input_len=json_fields.mean(figures.get("total_input_tokens"), completed),
            output_len=json_fields.mean(figures.get("total_output_tokens"), completed),
            asked_output_len=_length(document, "osl"),
            max_concurrency=json_fields.count(load.get("concurrency")),
            request_rate_per_s=_rate(load),
            asked_input_len=_length(document, "isl"),
        ),
        source=source,
        told_by=CLIENT,
        started=_started(document.get("start_time")),
        remarks=(*([_TPOT] if "mean_tpot_ms" in figures else []), *remarks, *empty),
    )


def _records(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where the metrics are: older exports have them one level below."""
    return json_fields.mapping(document.get("records")) or document


def _duration(found: Mapping[str, Any], told: Mapping[str, Any]) -> tuple[float | None, list[str]]:
    """Seconds that the rates are over: what its duration leaves out at the ends is a little longer."""
    said = json_fields.number(inside(found, "benchmark_duration", "avg"))
    completed, throughput = told["completed"], told["request_throughput"]
    if not completed or not throughput:
        return said, []
    over = completed / throughput
    if not said or abs(over / said - 1) <= _FAR:
        return said or over, []
    return over, [f"aiperf: its rates are over {over:.3f} s, its benchmark_duration is {said:.3f} s"]


def _model(document: Mapping[str, Any]) -> str:
    items = json_fields.listed(inside(document, "input_config", "models", "items"))
    old = json_fields.listed(inside(document, "input_config", "endpoint", "model_names"))
    names = [json_fields.word(inside(one, "name")) for one in items] + [json_fields.word(one) for one in old]
    return short_name(next(filter(None, names), ""))


def _phase(document: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked of the server in the measured phase."""
    phases = json_fields.listed(inside(document, "input_config", "phases"))
    named = [
        one for one in phases if inside(one, "name") == "profiling" or inside(one, "kind") == "profiling"
    ]
    old = inside(document, "input_config", "loadgen")
    return json_fields.mapping(named[0] if named else old)


def _rate(load: Mapping[str, Any]) -> float | None:
    told = json_fields.rate(load.get("rate", load.get("request_rate")))
    return math.inf if told is None and load.get("concurrency") else told


def _length(document: Mapping[str, Any], which: str) -> int | None:
    sets = json_fields.listed(inside(document, "input_config", "datasets"))
    return json_fields.count(inside(sets[0], "prompts", which, "mean")) if sets else None


def _started(said: object) -> datetime | None:
    try:
        return datetime.fromisoformat(json_fields.word(said)).astimezone()
    except (ValueError, OverflowError, OSError):  # a year that this machine's clock has not
        return None
