"""aiperf exports: the JSON and the CSV of `aiperf profile` and of its predecessor genai-perf.

Their names of latencies are not vLLM's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from loadgen.base.parsing import read_figure
from loadgen.base.untrusted import read_list, read_mapping
from loadgen.figures.figure_table import figures_named_by
from loadgen.report.load_identity import Load
from loadgen.study.importers import json_fields
from loadgen.study.importers.json_fields import (
    ClientFormat,
    find_first,
    find_value,
    read_count,
    read_fields,
    read_word,
)
from loadgen.study.run_summary import Reported, shorten_name

_AIPERF, _GENAI_PERF = "aiperf", "genai-perf"
_STATISTICS = {"mean": "avg", "median": "p50", **{name: name for name in ("std", "p90", "p95", "p99", "max")}}
_TOTALS: json_fields.Fields = {
    "request_throughput": (read_figure, "request_throughput.avg"),
    "output_throughput": (read_figure, "output_token_throughput.avg"),
    "total_token_throughput": (read_figure, "total_token_throughput.avg"),
    "completed": (read_figure, "completed_request_count.avg", "request_count.avg"),
    "failed": (read_figure, "error_request_count.avg"),
    "total_input_tokens": (read_figure, "total_usage_prompt_tokens.avg", "total_isl.avg"),
    # Its rates and its inter-token latency are over the first: what its own tokenizer counts, reasoning too.
    "total_output_tokens": (
        read_figure, "total_osl.avg", "output_sequence_length.sum", "total_usage_completion_tokens.avg",
        "total_output_tokens.avg",
    ),
}  # fmt: skip
_MEAN_LENGTHS: json_fields.Fields = {
    "input_len": (read_figure, "input_sequence_length.avg"),
    "output_len": (read_figure, "output_sequence_length.avg"),
}
_COUNTS = ("completed", "failed", "total_input_tokens", "total_output_tokens")
_MS = {"ms": 1.0, "sec": 1e3, "s": 1e3, "us": 1e-3, "ns": 1e-6}
_FIRST_NAMES = {"ttft": "time_to_first_token"}  # of version 0.1
_SERVERS = "total_usage_completion_tokens.avg"
_FAR = 0.001
_TPOT = {
    _AIPERF: "its inter_token_latency is TPOT here, its inter_chunk_latency ITL: what vLLM calls them",
    _GENAI_PERF: "its inter_token_latency is TPOT here, (latency - TTFT) / (tokens - 1) of a request: "
    "what vLLM calls it",
}


def _read_figures(
    metrics: Mapping[str, Any], client: str, errors: object = None
) -> tuple[dict[str, Any], list[str]]:
    """Read metrics as figures (latencies in ms) and remarks; without a count, failures are of `errors`."""
    figures: dict[str, Any] = {}
    for theirs, figure in figures_named_by(_AIPERF).items():
        scale = _MS.get(read_word(find_value(metrics, f"{theirs}.unit")), 1.0)
        for statistic, name in _STATISTICS.items():
            value = json_fields.read_reported_number(find_value(metrics, f"{theirs}.{name}"))
            figures[figure.statistic(statistic)] = None if value is None else value * scale
    figures |= read_fields(metrics, _TOTALS)
    figures |= {key: int(figures[key]) for key in _COUNTS if figures[key] is not None}
    figures["max_concurrent_requests"] = read_count(find_value(metrics, "effective_concurrency.max"))
    figures["duration"], remarks = _compute_duration(metrics, figures, client)
    if figures["failed"] is None and (listed := read_list(errors)):
        figures["failed"] = sum(read_count(find_value(error, "count")) or 0 for error in listed)
    has_tpot = figures["mean_tpot_ms"] is not None and not json_fields.is_zero(figures["mean_tpot_ms"])
    tpot = [f"{client}: {_TPOT[client]}"] if has_tpot else []
    own, server = figures.get("total_output_tokens"), read_figure(find_value(metrics, _SERVERS))
    return figures, [*tpot, *remarks, *json_fields.list_other_counts(client, own, server)]


def _compute_duration(
    metrics: Mapping[str, Any], figures: Mapping[str, Any], client: str
) -> tuple[float | None, list[str]]:
    """Return the seconds that the rates are over, else those reported, and a remark if the two differ."""
    reported_s = read_figure(find_value(metrics, "benchmark_duration.avg"))
    completed, throughput = figures["completed"], read_figure(figures["request_throughput"])
    if not completed or not throughput:
        return reported_s, []
    over = completed / throughput
    half_digit = 0.5 / 10 ** len(f"{reported_s}".partition(".")[2])  # a sheet has few digits of it
    if not reported_s or abs(over - reported_s) <= max(_FAR * reported_s, half_digit):
        return reported_s or over, []
    return over, [f"{client}: its rates are over {over:.3f} s, its benchmark_duration is {reported_s:.3f} s"]


def _find_metrics(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metrics of an export; the first versions nest them one level deeper, under other names."""
    metrics = read_mapping(document.get("records")) or document
    return {_FIRST_NAMES.get(name, name): values for name, values in metrics.items()}


_AIPERF_MODEL = ("input_config.models.items.0.name", "input_config.endpoint.model_names.0")
_AIPERF_LENGTHS: json_fields.Fields = {
    "asked_output_len": (read_count, "datasets.0.prompts.osl.mean", "input.prompt.output_tokens.mean"),
    "asked_input_len": (read_count, "datasets.0.prompts.isl.mean", "input.prompt.input_tokens.mean"),
}
_AIPERF_PHASE: json_fields.Fields = {
    "requests": (read_count, "requests", "request_count"),
    "max_concurrency": (read_count, "concurrency"),
    "request_rate_per_s": (json_fields.read_rate, "rate", "request_rate"),
}


def _read_aiperf(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield the one run of an export, its load by the profiling phase; raises UsageError without figures."""
    errors = document.get("error_summary")
    metrics = _find_metrics(document)
    figures, remarks = _read_figures(metrics, _AIPERF, errors)
    config = read_mapping(document.get("input_config"))
    phases = read_list(config.get("phases"))
    measured = (
        each for each in phases if "profiling" in (find_value(each, "name"), find_value(each, "kind"))
    )
    load = read_fields(next(measured, config.get("loadgen")), _AIPERF_PHASE)
    load |= read_fields(metrics, _MEAN_LENGTHS)
    asked = json_fields.make_client_load(load | read_fields(config, _AIPERF_LENGTHS))
    started = json_fields.parse_local_time(datetime.fromisoformat, document.get("start_time"))
    name = shorten_name(find_first(document, read_word, *_AIPERF_MODEL) or "")
    yield json_fields.make_run(_AIPERF, name, figures, asked, source, remarks, started=started)


AIPERF = ClientFormat(
    _AIPERF,
    (b'"aiperf_version"', b'"inter_chunk_latency"', b'"output_sequence_length"'),
    lambda document: (
        "request_latency" in (metrics := _find_metrics(document))
        and ("aiperf_version" in document or "request_throughput" in metrics)
    ),
    _read_aiperf,
)


def _unwrap_lone(value: object) -> object:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _count_lone(value: object) -> int | None:
    return read_count(_unwrap_lone(value))


_CONFIG = ("perf_analyzer", "service_kind", "model", "model_names")  # some are in every configuration of it
# Its versions have each fact of the load in these places, the newest first.
_GENAI_PERF_LOAD: json_fields.Fields = {
    "requests": (lambda value: _count_lone(value) or None, "request_count", "perf_analyzer.request_count"),
    "max_concurrency": (_count_lone, "perf_analyzer.stimulus.concurrency", "concurrency"),
    "request_rate_per_s": (
        lambda value: json_fields.read_rate(_unwrap_lone(value)),
        "perf_analyzer.stimulus.request_rate",
        "request_rate",
    ),
    "asked_input_len": (_count_lone, "input.synthetic_tokens.mean", "synthetic_input_tokens_mean"),
    "asked_output_len": (_count_lone, "input.output_tokens.mean", "output_tokens.mean", "output_tokens_mean"),
}  # fmt: skip
_MEASUREMENT = "perf_analyzer.measurement"
_SPREADS: json_fields.Fields = {
    "asked_input_len": (_unwrap_lone, "input.synthetic_tokens.stddev", "synthetic_input_tokens_stddev"),
    "asked_output_len": (_unwrap_lone, "input.output_tokens.stddev", "output_tokens_stddev"),
}


def _read_genai_perf(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield the one run of an export; a length with a deviation is none that was asked for."""
    config = document.get("input_config")
    drawn = [key for key, spread in read_fields(config, _SPREADS).items() if spread]
    asked = read_fields(config, _GENAI_PERF_LOAD) | dict.fromkeys(drawn)
    if find_value(config, f"{_MEASUREMENT}.mode") == "request_count":  # else a time
        asked["requests"] = asked["requests"] or read_count(find_value(config, f"{_MEASUREMENT}.num"))
    model = shorten_name(find_first(config, read_word, "model_names.0", "model.0", "model") or "")
    figures, remarks = _read_figures(document, _GENAI_PERF)
    load = json_fields.make_client_load(asked | read_fields(document, _MEAN_LENGTHS))
    yield json_fields.make_run(_GENAI_PERF, model, figures, load, source, remarks)


GENAI_PERF = ClientFormat(
    _GENAI_PERF,
    (b'"perf_analyzer"', b'"service_kind"', b"Metric,avg,"),
    lambda document: (
        "request_latency" in document
        and "aiperf_version" not in document
        and not {*_CONFIG}.isdisjoint(read_mapping(document.get("input_config")))
    ),
    _read_genai_perf,
)
_ROW = re.compile(r"(.+?)(?: \(([^()]*)\))?")
# The directory that genai-perf writes to by default: model, API, and the load.
_DIRECTORY = re.compile(
    r"(.+?)-(?:openai|triton|tensorrtllm|vllm|dynamic_grpc).*?-(concurrency|request_rate)([\d.]+)"
)


def is_sheet(text: str) -> bool:
    """Whether a text is the CSV of genai-perf or of aiperf."""
    first = text.lstrip().partition("\n")[0].lower()
    return first.startswith("metric,avg,") or (
        first.startswith("metric,") and "request latency" in text.lower()
    )


def read_sheet(text: str, path: Path) -> list[Reported]:
    """Read a CSV's run, model and load by genai-perf's directory, else the stem; UsageError if no figures."""
    metrics: dict[str, Any] = {}
    statistics: list[str] = []
    for _, (named, *cells) in json_fields.read_csv_rows(text, path):
        if cells and named.strip().lower() == "metric":
            statistics = [{"value": "avg"}.get(name := cell.strip().lower(), name) for cell in cells]
        elif cells and (title := _ROW.fullmatch(named.strip())) is not None:
            values = dict(zip(statistics, map(_parse_cell, cells), strict=False))
            metrics["_".join(title[1].lower().split())] = {"unit": title[2] or "", **values}
    # genai-perf has its requests "per sec".
    of_aiperf = (
        "inter_chunk_latency" in metrics or find_value(metrics, "request_throughput.unit") != "per sec"
    )
    load, name = read_fields(metrics, _MEAN_LENGTHS), path.stem
    if (place := _DIRECTORY.fullmatch(path.absolute().parent.name)) is not None:
        name = shorten_name(place[1])
        if place[2] == "concurrency":
            load["max_concurrency"] = json_fields.parse_count(place[3])
        if load.get("max_concurrency") is None:
            load["request_rate_per_s"] = _parse_cell(place[3])
    client = _AIPERF if of_aiperf else _GENAI_PERF
    figures, remarks = _read_figures(metrics, client)
    return [json_fields.make_run(client, name, figures, Load(**load), str(path), remarks)]


def _parse_cell(cell: str) -> float | None:
    parsed = json_fields.parse_number(cell.replace(",", ""))
    return read_figure(parsed)
