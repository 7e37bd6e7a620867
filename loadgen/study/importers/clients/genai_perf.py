"""genai-perf: the JSON and the CSV that `genai-perf profile` exports, and the CSV of its successor aiperf."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.base.untrusted import read_list, read_mapping
from loadgen.report.load_identity import Load
from loadgen.study.importers import json_fields
from loadgen.study.importers.clients import aiperf
from loadgen.study.importers.json_fields import value_at
from loadgen.study.run_summary import Reported, short_name

CLIENT = "genai-perf"
MARKS: tuple[bytes, ...] = (b'"perf_analyzer"', b'"service_kind"', b"Metric,avg,")
_CONFIG = ("perf_analyzer", "service_kind", "model", "model_names")  # some are in every configuration of it
# Where its versions have each fact of the load, the newest first; a list of one value is that value.
_PLACES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "concurrency": (("perf_analyzer", "stimulus", "concurrency"), ("concurrency",)),
    "rate": (("perf_analyzer", "stimulus", "request_rate"), ("request_rate",)),
    "input": (("input", "synthetic_tokens", "mean"), ("synthetic_input_tokens_mean",)),
    "input spread": (("input", "synthetic_tokens", "stddev"), ("synthetic_input_tokens_stddev",)),
    "output": (("input", "output_tokens", "mean"), ("output_tokens", "mean"), ("output_tokens_mean",)),
    "output spread": (("input", "output_tokens", "stddev"), ("output_tokens_stddev",)),
    "requests": (("request_count",), ("perf_analyzer", "request_count")),
}
_TPOT = (
    "its inter_token_latency is TPOT here, (latency - TTFT) / (tokens - 1) of a request: what vLLM calls it"
)
_ROW = re.compile(r"(.+?)(?: \(([^()]*)\))?")
_OF_AIPERF = "inter_chunk_latency"
# The directory that it writes to by default: model, API, and the load.
_DIRECTORY = re.compile(
    r"(.+?)-(?:openai|triton|tensorrtllm|vllm|dynamic_grpc).*?-(concurrency|request_rate)([\d.]+)"
)


def is_result(document: Mapping[str, Any]) -> bool:
    """Whether a document is such an export."""
    config = read_mapping(document.get("input_config"))
    return "request_latency" in document and "aiperf_version" not in document and bool({*_CONFIG} & {*config})


def read_runs(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield the one run of an export."""
    config = read_mapping(document.get("input_config"))
    names = [*read_list(config.get("model_names")), *read_list(config.get("model")), config.get("model")]
    model = short_name(next(filter(None, map(json_fields.word, names)), ""))
    concurrency, rate = (
        json_fields.count(_value(config, "concurrency")),
        json_fields.rate(_value(config, "rate")),
    )
    load = Load(
        requests=json_fields.count(_value(config, "requests")) or None,
        input_len=json_fields.number(value_at(document, "input_sequence_length", "avg")),
        output_len=json_fields.number(value_at(document, "output_sequence_length", "avg")),
        asked_output_len=_length(config, "output"),
        max_concurrency=concurrency,
        request_rate_per_s=math.inf if rate is None and concurrency else rate,
        asked_input_len=_length(config, "input"),
    )
    yield _make_run(document, CLIENT, model or Path(source).stem, load, source)


def is_sheet(text: str) -> bool:
    """Whether a text is the CSV of genai-perf or of aiperf."""
    first = text.lstrip().partition("\n")[0].lower()
    return first.startswith("metric,avg,") or (
        first.startswith("metric,") and "request latency" in text.lower()
    )


def read_sheet(text: str, path: Path) -> list[Reported]:
    """Read the one run of a CSV, which has neither model nor load: its directory may be named by both."""
    metrics: dict[str, Any] = {}
    statistics: list[str] = []
    try:
        for cells in csv.reader(io.StringIO(text)):
            if len(cells) < 2:
                continue
            if cells[0].strip().lower() == "metric":
                statistics = [{"value": "avg"}.get(name := cell.strip().lower(), name) for cell in cells[1:]]
            elif (title := _ROW.fullmatch(cells[0].strip())) is not None:
                values = dict(zip(statistics, map(_parse_cell, cells[1:]), strict=False))
                metrics["_".join(title[1].lower().split())] = {"unit": title[2] or "", **values}
    except csv.Error as error:
        raise UsageError(f"{path}: not a valid table: {error}") from None
    units = {value_at(metrics, name, "unit") for name in ("output_token_throughput", "request_throughput")}
    client = aiperf.CLIENT if _OF_AIPERF in metrics or units & {"tokens/sec", "requests/sec"} else CLIENT
    named = _DIRECTORY.fullmatch(path.absolute().parent.name)
    concurrency = (
        json_fields.parse_count(named[3]) if named is not None and named[2] == "concurrency" else None
    )
    load = Load(
        input_len=json_fields.number(value_at(metrics, "input_sequence_length", "avg")),
        output_len=json_fields.number(value_at(metrics, "output_sequence_length", "avg")),
        max_concurrency=concurrency,
        request_rate_per_s=_parse_cell(named[3]) if named is not None and concurrency is None else None,
    )
    return [_make_run(metrics, client, short_name(named[1]) if named else path.stem, load, str(path))]


def _make_run(metrics: Mapping[str, Any], client: str, name: str, load: Load, source: str) -> Reported:
    read_figures, remarks = aiperf.read_figures(metrics)
    figures, empty = json_fields.require_measured(read_figures, source)
    remarks = [remark.replace(f"{aiperf.CLIENT}:", f"{client}:", 1) for remark in remarks]
    tpot = [f"{client}: {_TPOT}"] if "mean_tpot_ms" in figures else []
    return Reported(
        name=name,
        figures=figures,
        load=load,
        source=source,
        told_by=client,
        remarks=(*tpot, *remarks, *empty),
    )


def _value(config: Mapping[str, Any], fact: str) -> Any:
    values = (value_at(config, *place) for place in _PLACES[fact])
    value = next((value for value in values if value is not None), None)
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _length(config: Mapping[str, Any], which: str) -> int | None:
    """The length that every request was asked to have; None where lengths were drawn."""
    return None if _value(config, f"{which} spread") else json_fields.count(_value(config, which))


def _parse_cell(cell: str) -> float | None:
    try:
        return json_fields.number(float(cell.replace(",", "")))
    except ValueError:
        return None
