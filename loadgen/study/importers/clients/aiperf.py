"""aiperf: the JSON that `aiperf profile` exports; its names of latencies are not vLLM's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from loadgen.base.untrusted import read_list, read_mapping
from loadgen.figures.figure_table import figures_named_by
from loadgen.report.load_identity import Load
from loadgen.study.importers import json_fields
from loadgen.study.importers.json_fields import value_at
from loadgen.study.run_summary import Reported, short_name

CLIENT = "aiperf"
MARKS: tuple[bytes, ...] = (b'"aiperf_version"', b'"inter_chunk_latency"', b'"output_sequence_length"')
_STATISTICS = {"mean": "avg", "median": "p50", **{name: name for name in ("std", "p90", "p95", "p99", "max")}}
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


def is_result(document: Mapping[str, Any]) -> bool:
    """Whether a document is such an export."""
    metrics = _find_metrics(document)
    return "request_latency" in metrics and ("aiperf_version" in document or "request_throughput" in metrics)


def read_runs(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield the one run of an export."""
    metrics = _find_metrics(document)
    figures_read, remarks = read_figures(metrics)
    if figures_read["failed"] is None:
        figures_read["failed"] = _count_errors(document)
    figures, empty = json_fields.require_measured(figures_read, source)
    load = _find_load(document)
    yield Reported(
        name=_model(document) or Path(source).stem,
        figures=figures,
        load=Load(
            requests=json_fields.count(load.get("requests", load.get("request_count"))),
            asked_output_len=_length(document, "osl"),
            max_concurrency=json_fields.count(load.get("concurrency")),
            request_rate_per_s=_rate(load),
            asked_input_len=_length(document, "isl"),
        ),
        source=source,
        told_by=CLIENT,
        started=json_fields.parse_local_time(datetime.fromisoformat, document.get("start_time")),
        remarks=(*([_TPOT] if "mean_tpot_ms" in figures else []), *remarks, *empty),
    )


def read_figures(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Read the figures of metrics by the names of aiperf and genai-perf, and remarks; None where none is."""
    figures_read: dict[str, Any] = {}
    for theirs, figure in figures_named_by(CLIENT).items():
        scale = _MS.get(json_fields.word(value_at(metrics, theirs, "unit")), 1.0)
        for word, name in _STATISTICS.items():
            value = json_fields.reported_number(value_at(metrics, theirs, name))
            figures_read[figure.statistic(word)] = None if value is None else value * scale
    for key, names in _TOTALS.items():
        values = (json_fields.number(value_at(metrics, name, "avg")) for name in names)
        figures_read[key] = next((value for value in values if value is not None), None)
    figures_read |= {key: int(figures_read[key]) for key in _COUNTS if figures_read[key] is not None}
    most = value_at(metrics, "effective_concurrency", "max")
    figures_read["max_concurrent_requests"] = json_fields.count(most)
    figures_read["duration"], remarks = _duration(metrics, figures_read)
    return figures_read, remarks


def _count_errors(document: Mapping[str, Any]) -> int | None:
    """The failed requests by the summary of their errors, where no metric counts them."""
    counts = [
        json_fields.count(value_at(error, "count")) for error in read_list(document.get("error_summary"))
    ]
    return sum(count or 0 for count in counts) if counts else None


def _find_metrics(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where the metrics are: older exports have them one level below."""
    return read_mapping(document.get("records")) or document


def _duration(metrics: Mapping[str, Any], figures: Mapping[str, Any]) -> tuple[float | None, list[str]]:
    """Seconds that the rates are over, a little longer than the duration that it reports."""
    reported_s = json_fields.number(value_at(metrics, "benchmark_duration", "avg"))
    completed, throughput = figures["completed"], json_fields.number(figures["request_throughput"])
    if not completed or not throughput:
        return reported_s, []
    over = completed / throughput
    if not reported_s or abs(over / reported_s - 1) <= _FAR:
        return reported_s or over, []
    return over, [f"aiperf: its rates are over {over:.3f} s, its benchmark_duration is {reported_s:.3f} s"]


def _model(document: Mapping[str, Any]) -> str:
    items = read_list(value_at(document, "input_config", "models", "items"))
    old = read_list(value_at(document, "input_config", "endpoint", "model_names"))
    names = map(json_fields.word, [*(value_at(item, "name") for item in items), *old])
    return short_name(next(filter(None, names), ""))


def _find_load(document: Mapping[str, Any]) -> dict[str, Any]:
    """Find the configuration of the measured phase."""
    phases = read_list(value_at(document, "input_config", "phases"))
    named = (each for each in phases if "profiling" in (value_at(each, "name"), value_at(each, "kind")))
    return read_mapping(next(named, value_at(document, "input_config", "loadgen")))


def _rate(load: Mapping[str, Any]) -> float | None:
    rate = json_fields.rate(load.get("rate", load.get("request_rate")))
    return math.inf if rate is None and load.get("concurrency") else rate


def _length(document: Mapping[str, Any], which: str) -> int | None:
    sets = read_list(value_at(document, "input_config", "datasets"))
    return json_fields.count(value_at(sets[0], "prompts", which, "mean")) if sets else None
