"""inference-perf: its lifecycle metrics, and llm-d's Benchmark Report, which names its latencies alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.parsing import read_figure
from loadgen.base.text import describe_install
from loadgen.base.untrusted import read_list, read_mapping
from loadgen.figures.figure_table import figures_named_by
from loadgen.report.result_file import SIMULATED
from loadgen.study import labels
from loadgen.study.importers import json_fields
from loadgen.study.importers.json_fields import (
    ClientFormat,
    find_first,
    find_value,
    read_count,
    read_fields,
    read_word,
)
from loadgen.study.run_summary import Reported, find_unnamed_preset, shorten_name

_NAME, _LLM_D = "inference-perf", "llm-d"
_SUMMARY, _STAGES = "summary_lifecycle_metrics.json", "stage_*_lifecycle_metrics.json"
_MODEL = re.compile(r"^[ \t]{1,40}model_name:[ \t]{0,9}(\S[^\n]{0,300})$", re.MULTILINE)
_LATENCIES = figures_named_by(_NAME)
_ITL = "inter_token_latency"
_MS = {"s": 1e3, "ms": 1.0, "us": 1e-3, "s/token": 1e3, "ms/token": 1.0, "us/token": 1e-3}
_FAR = 0.25
_TO_THE_END = "E2EL runs to the response's end"
_NO_ITL = "its inter_token_latency gives tokens that came together gaps of 0: left out"
_TOTALS: json_fields.Fields = {
    "request_throughput": (read_figure, "successes.throughput.requests_per_sec"),
    "output_throughput": (read_figure, "successes.throughput.output_tokens_per_sec"),
    "total_token_throughput": (read_figure, "successes.throughput.total_tokens_per_sec"),
    "request_goodput": (read_figure, "successes.goodput_metrics.request_goodput"),
    "completed": (read_count, "successes.count"),
    "failed": (read_count, "failures.count"),
    "duration": (read_figure, "benchmark_time_seconds"),
}
_LOAD: json_fields.Fields = {
    "requests": (read_count, "load_summary.count"),
    "max_concurrency": (read_count, "load_summary.concurrency"),
    "request_rate_per_s": (json_fields.read_rate, "load_summary.requested_rate"),
}
_LENGTHS: json_fields.Fields = {
    "input_len": (read_figure, "successes.prompt_tokens.mean", "successes.prompt_len.mean"),
    "output_len": (read_figure, "successes.output_len.mean", "successes.output_tokens.mean"),
}


def repeats_stages(path: Path) -> bool:
    """Whether a file is a summary, or a report in YAML, of stages next to it, which are read instead."""
    return (path.name == _SUMMARY or path.suffix == ".yaml") and any(path.parent.glob(_STAGES))


def _read_inference_perf(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield a stage's or summary's run; its name is by config.yaml next to it, else the directory's."""
    figures: dict[str, Any] = read_fields(document, _TOTALS)
    latency = find_value(document, "successes.latency")
    for theirs, figure in _LATENCIES.items():
        figures |= json_fields.read_statistics(figure.suffix, find_value(latency, theirs), 1e3)
    lengths = read_fields(document, _LENGTHS)
    completed, rate = figures["completed"], figures["request_throughput"]
    if figures["duration"] is None and completed and rate:
        figures["duration"] = completed / rate
    remarks = [f"{_NAME}: {_TO_THE_END}"]
    if find_value(latency, _ITL) is not None:
        remarks.append(f"{_NAME}: {_NO_ITL}")
    remarks += _drop_other_tpot(figures, lengths["output_len"], _NAME)
    if completed:
        figures |= _count_tokens(lengths, completed)
        server = read_figure(find_value(document, "successes.output_tokens.mean"))
        remarks += json_fields.list_other_counts(_NAME, lengths["output_len"], server, completed)
    load = json_fields.make_client_load(read_fields(document, _LOAD) | lengths)
    path = Path(source)
    model = json_fields.find_next_to([path.with_name("config.yaml")], _MODEL)
    name = shorten_name(model.strip("'\"")) or path.absolute().parent.name
    yield json_fields.make_run(_NAME, name, figures, load, source, remarks)


def _count_tokens(lengths: Mapping[str, float | None], completed: int) -> dict[str, int]:
    return {
        f"total_{key.removesuffix('_len')}_tokens": round(length * completed)
        for key, length in lengths.items()
        if length is not None
    }


def _drop_other_tpot(figures: dict[str, Any], length: float | None, client: str) -> Iterator[str]:
    """Remove a TPOT over 25 % off (E2EL - TTFT) / (tokens - 1), as 2025's versions have; yield a remark."""
    e2el, ttft, tpot = (read_figure(figures.get(f"mean_{key}_ms")) for key in ("e2el", "ttft", "tpot"))
    if not (e2el and ttft and tpot and length and length > 1 and e2el > ttft):
        return
    expected = (e2el - ttft) / (length - 1)
    if abs(tpot / expected - 1) > _FAR:
        for key in [key for key in figures if key.endswith("_tpot_ms")]:
            del figures[key]
        yield (
            f"{client}: its time_per_output_token is {tpot:.2f} ms, but (E2EL - TTFT) / (tokens - 1) is "
            f"{expected:.2f} ms: left out"
        )


INFERENCE_PERF = ClientFormat(
    _NAME,
    (b'"load_summary"',),
    lambda document: (
        "load_summary" in document and bool(read_mapping(find_value(document, "successes.latency")))
    ),
    _read_inference_perf,
)

# The versions of llm-d's report have it here: 0.2 and later, then 0.1.
_PERFORMANCE = ("results.request_performance.aggregate", "metrics")
_ITL_IS_OURS = ("vllm-benchmark", "loadgen")  # tools whose gaps are those between messages
_ITL_IS_TPOT = ("guidellm", "aiperf")  # tools whose inter-token latency is TPOT, whose TPOT is neither
_REPORT_TOTALS: json_fields.Fields = {
    "request_throughput": (read_figure, "throughput.request_rate.mean", "throughput.requests_per_sec"),
    "output_throughput": (
        read_figure, "throughput.output_token_rate.mean", "throughput.output_tokens_per_sec",
    ),
    "total_token_throughput": (
        read_figure, "throughput.total_token_rate.mean", "throughput.total_tokens_per_sec",
    ),
    "failed": (read_count, "requests.failures"),
}  # fmt: skip
_REPORT_LENGTHS: json_fields.Fields = {
    "input_len": (read_figure, "requests.input_length.mean"),
    "output_len": (read_figure, "requests.output_length.mean"),
}
_STANDARD = "scenario.load.standardized"
_REPORT_LOAD: json_fields.Fields = {
    "max_concurrency": (
        read_count, f"{_STANDARD}.concurrency", "scenario.load.args.max_concurrency",
    ),
    "request_rate_per_s": (
        json_fields.read_rate, f"{_STANDARD}.rate_qps", "scenario.load.args.request_rate",
    ),
}  # fmt: skip
_TOOL = (f"{_STANDARD}.tool", "scenario.load.name")
_OWN = "scenario.load.native.config"  # of the tool
_MODELS = (
    "scenario.model.name", f"{_OWN}.endpoint.model_names.0", f"{_OWN}.server.model_name",
    f"{_OWN}.spec.backend.model",
)  # fmt: skip


def _find_performance(document: Mapping[str, Any]) -> Mapping[str, Any]:
    found = [read_mapping(find_value(document, place)) for place in _PERFORMANCE]
    return found[0] or (found[1] if "scenario" in document else {})


def _is_llm_d(document: Mapping[str, Any]) -> bool:
    return bool({"latency", "throughput"} & {*_find_performance(document)})


def _read_llm_d(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield a report's run; an inter-token latency is read only of tools whose meaning of it is known."""
    performance = _find_performance(document)
    tool = find_first(document, read_word, *_TOOL) or ""
    figures, lengths = read_fields(performance, _REPORT_TOTALS), read_fields(performance, _REPORT_LENGTHS)
    latency = read_mapping(performance.get("latency"))
    named = dict(_LATENCIES)
    if tool in _ITL_IS_TPOT:
        named[_ITL] = named.pop("time_per_output_token")
    for theirs, figure in named.items():
        figures |= _read_latency(figure.suffix, latency.get(theirs))
    remarks = [*_drop_other_tpot(figures, lengths["output_len"], _LLM_D)]
    if tool in _ITL_IS_OURS:
        figures |= _read_latency("itl_ms", latency.get(_ITL))
    elif _ITL not in named and latency.get(_ITL) is not None:
        remarks.append(
            f"{_LLM_D}: what {tool or 'the tool'} calls inter_token_latency is not known: left out"
        )
    requests = read_count(find_value(performance, "requests.total"))
    if requests is not None:
        figures["completed"] = completed = requests - (figures["failed"] or 0)
        if figures["request_throughput"]:
            figures["duration"] = completed / figures["request_throughput"]
        figures |= _count_tokens(lengths, completed)
    stack = read_list(find_value(document, "scenario.stack"))
    models = [find_first(each, read_word, "standardized.model.name", "standardized.model") for each in stack]
    model = next(filter(None, models), "") or find_first(document, read_word, *_MODELS) or ""
    load = read_fields(document, _REPORT_LOAD)
    for way in ("input", "output"):  # None of a length that is not the same for all
        asked = find_value(document, f"{_STANDARD}.{way}_seq_len")
        is_fixed = find_value(asked, "distribution") == "fixed"
        load[f"asked_{way}_len"] = read_count(find_value(asked, "value")) if is_fixed else None
    yield json_fields.make_run(
        _LLM_D,
        shorten_name(model.removesuffix(SIMULATED)),
        figures,
        json_fields.make_client_load({"requests": requests, **load, **lengths}),
        source,
        [*([f"{_LLM_D}: measured by {tool}"] if tool else []), *remarks],
        find_unnamed_preset(model.endswith(SIMULATED)),  # a run of ours, exported
    )


def _read_latency(suffix: str, values: object) -> dict[str, float]:
    times = _MS.get(read_word(find_value(values, "units")))
    return json_fields.read_statistics(suffix, values, times) if times else {}


LLM_D = ClientFormat(
    _LLM_D,
    (b'"request_performance"', b'"requests_per_sec"', b"request_performance:", b"requests_per_sec:"),
    _is_llm_d,
    _read_llm_d,
)
_YAML = re.compile(r"^[ -]{0,20}(?:request_performance|requests_per_sec):", re.MULTILINE)
_MOST_YAML = 1 << 20  # characters


def read_yaml(text: str, path: Path) -> list[Reported]:
    """Read a YAML text's Benchmark Reports, [] of other text; UsageError if invalid, large or no PyYAML."""
    if _YAML.search(text) is None:
        return []
    if len(text) > _MOST_YAML:
        raise UsageError(f"{path} has more than {_MOST_YAML >> 20} MiB of YAML: give it in parts, or as JSON")
    try:
        import yaml  # an extra
    except ImportError:
        needed = describe_install("compare")
        raise UsageError(f"{path} is YAML, which needs the compare extra: {needed}") from None
    try:
        documents = [*yaml.safe_load_all(text)]
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    reports = [read_mapping(each) for document in documents for each in read_list(document) or [document]]
    json_fields.check_results(path, len(reports))
    return [
        replace(run, unread=labels.read_labels(report, run.figures))
        for report in reports
        if _is_llm_d(report)
        for run in _read_llm_d(report, str(path))
    ]
