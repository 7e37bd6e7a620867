"""MLPerf Endpoints: the result_summary.json of a run, whose times are nanoseconds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loadgen.base.parsing import read_figure
from loadgen.base.untrusted import read_mapping
from loadgen.report.load_identity import Load
from loadgen.study.importers import json_fields
from loadgen.study.importers.json_fields import ClientFormat, find_value, read_count, read_fields
from loadgen.study.run_summary import Reported, shorten_name

_NAME = "mlperf-endpoints"
_LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "latency": "e2el_ms"}
_TOTALS: json_fields.Fields = {
    "completed": (read_count, "n_samples_completed"),
    "failed": (read_count, "n_samples_failed"),
    "total_input_tokens": (read_count, "input_sequence_lengths.total"),
    "total_output_tokens": (read_count, "output_sequence_lengths.total"),
    "request_throughput": (read_figure, "qps"),
    "output_throughput": (read_figure, "tps"),
}
_PATTERN = "run_config.load_pattern"
_LOAD: json_fields.Fields = {
    "requests": (read_count, "n_samples_issued"),
    "max_concurrency": (read_count, f"{_PATTERN}.target_concurrency"),
    "request_rate_per_s": (json_fields.read_rate, f"{_PATTERN}.target_qps"),
}
_MODEL = re.compile(
    r"^model_params:[ \t]*\n(?:[ \t]+[^\n]*\n){0,40}?[ \t]+name:[ \t]*(\S[^\n]{0,300})$", re.MULTILINE
)


def _read_mlperf(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield a summary's run, rates over all of it; its name is by config.yaml, else the directory's."""
    figures: dict[str, Any] = read_fields(document, _TOTALS)
    for theirs, suffix in _LATENCIES.items():
        each = read_mapping(document.get(theirs))
        figures |= json_fields.read_statistics(suffix, each.get("percentiles"), 1e-6)
        figures |= json_fields.read_statistics(suffix, each, 1e-6)
    duration_ns, remarks = read_figure(document.get("duration_ns")), list[str]()
    figures["duration"] = duration_s = duration_ns * 1e-9 if duration_ns else None
    if read_figure(document.get("legacy_loadgen_window_duration_ns")) and duration_s:
        remarks.append(
            f"{_NAME}: its QPS and TPS are over LoadGen's window: here they are over the whole run"
        )
        for rate, total in (
            ("request_throughput", "completed"),
            ("output_throughput", "total_output_tokens"),
        ):
            figures[rate] = None if figures[total] is None else figures[total] / duration_s
    if document.get("complete") is False:
        state = json_fields.read_word(document.get("state"))
        remarks.append(f"{_NAME}: the run is not complete" + (f": {state}" if state else ""))
    path = Path(source)
    configs = [path.with_name("config.yaml"), path.absolute().parent.parent / "config.yaml"]
    model = json_fields.find_next_to(configs, _MODEL).strip("'\"")
    load = read_fields(document, _LOAD)
    if (
        load["max_concurrency"]
        or json_fields.read_word(find_value(document, f"{_PATTERN}.type")) == "max_throughput"
    ):
        load["request_rate_per_s"] = math.inf
    name = shorten_name(model) or path.absolute().parent.name
    yield json_fields.make_run(_NAME, name, figures, Load(**load), source, remarks)


MLPERF = ClientFormat(
    _NAME,
    (b'"n_samples_completed"',),
    lambda document: (
        "n_samples_completed" in document
        and ("qps" in document or any(read_mapping(document.get(theirs)) for theirs in _LATENCIES))
    ),
    _read_mlperf,
)
