"""vLLM files: the results of `vllm bench serve`, old and new, and SGLang's, most of whose keys are these."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import product
from typing import Any

from loadgen.base.parsing import read_figure
from loadgen.base.text import format_count
from loadgen.base.untrusted import read_list, read_mapping
from loadgen.figures.figure_table import COUNTS, PEAKS, figures_named_by, find_figure
from loadgen.report.load_identity import Load
from loadgen.report.result_file import SIMULATED
from loadgen.study.importers import json_fields
from loadgen.study.importers.json_fields import (
    ClientFormat,
    find_first,
    read_count,
    read_fields,
    read_word,
)
from loadgen.study.importers.pasted.pasted_blocks import LAST_LINE
from loadgen.study.run_summary import Reported, find_unnamed_preset, shorten_name

_DATE = "%Y%m%d-%H%M%S"
_COUNTED = (
    "max_concurrency", *(figure.key for figure in (*COUNTS, *PEAKS)), "rtfx", "spec_decode_acceptance_rate",
    "spec_decode_acceptance_length", "spec_decode_num_drafts", "spec_decode_draft_tokens",
    "spec_decode_accepted_tokens",
)  # fmt: skip
_STATISTIC = re.compile(r"(mean|median|std|p\d+(\.\d+)?)_\w+")
_LOAD: json_fields.Fields = {
    "requests": (read_count, "num_prompts", "num_prompt"),
    "max_concurrency": (read_count, "max_concurrency"),
    "request_rate_per_s": (json_fields.read_rate, "request_rate"),
}


def _read_vllm(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield a file's run; without a mean E2EL, that is computed of its lists. UsageError if no figures."""
    figures = {
        key: document[key]
        for key in _COUNTED
        if json_fields.read_reported_number(document.get(key)) is not None
    }
    if lost := json_fields.count_failures(document.get("errors")):
        figures.setdefault("failed", lost)
    figures["request_rate"] = json_fields.format_rate(document.get("request_rate"))
    timed = (key for key in document if _STATISTIC.fullmatch(key) and find_figure(key) is not None)
    figures |= {
        key: document[key] for key in timed if json_fields.read_reported_number(document[key]) is not None
    }
    if "mean_e2el_ms" not in figures:
        figures |= _compute_e2el(document)
    model = read_word(document.get("model_id"))
    is_simulated = document.get("simulated") is True or model.endswith(SIMULATED)
    yield json_fields.make_run(
        VLLM.name,
        read_word(document.get("label")) or shorten_name(model.removesuffix(SIMULATED)),
        figures,
        Load(**read_fields(document, _LOAD)),
        source,
        _list_remarks(document, figures),
        find_unnamed_preset(is_simulated),  # ours, without what is ours
        engine="vLLM" if document.get("backend") == "vllm" else "",
        started=json_fields.parse_local_time(
            lambda date: datetime.strptime(date, _DATE), document.get("date")
        ),
    )


def _compute_e2el(document: Mapping[str, Any]) -> dict[str, float]:
    """Compute E2EL of the requests that succeeded from a file's lists; {} if not `completed` many."""
    whole = read_list(document.get("latencies"))
    ttfts, itls = read_list(document.get("ttfts")), read_list(document.get("itls"))
    if not whole and len(ttfts) == len(itls):
        whole = [
            sum(read_figure(time) or 0.0 for time in (ttft, *read_list(gaps)))
            for ttft, gaps in zip(ttfts, itls, strict=True)
        ]
    errors = read_list(document.get("errors")) or [""] * len(whole)
    if len(errors) != len(whole):
        return {}
    answered = (latency for latency, error in zip(whole, errors, strict=True) if not error)
    timed = (read_figure(latency) or 0.0 for latency in answered)
    each_ms = [1e3 * seconds for seconds in timed if seconds > 0]
    return (
        json_fields.compute_statistics("e2el", each_ms) if len(each_ms) == document.get("completed") else {}
    )


def _list_remarks(document: Mapping[str, Any], figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield how many requests failed, and how many of those to be sent are neither failed nor answered."""
    failed, requested = read_figure(figures.get("failed")) or 0.0, read_count(document.get("num_prompts"))
    completed = read_figure(figures.get("completed"))
    if failed:
        yield f"{format_count(int(failed), 'request')} failed"
    if requested is not None and completed is not None and requested > completed + failed:
        lost = requested - completed - failed
        yield f"{lost:.0f} of {requested} requests are not among the successful ones"


VLLM = ClientFormat(
    "vllm",
    (b'"mean_ttft_ms"', b'"mean_e2el_ms"', b'"total_token_throughput"', b'"request_throughput"'),
    lambda document: (
        {*document} >= {"completed", "duration"}
        and not {"model_id", "endpoint_type", "backend"}.isdisjoint(document)
    ),
    _read_vllm,
)

# SGLang's keys that are figures of ours too, and those that only its block has.
_SAME = (
    "duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput",
    "output_throughput", "request_goodput", "max_output_tokens_per_s", "max_concurrent_requests",
    "input_throughput", "concurrency", "accept_length", "total_input_text_tokens",
    "total_input_vision_tokens", "total_output_tokens_retokenized", "slo_attainment",
)  # fmt: skip
_SGLANGS = {key: key for key in _SAME} | {"total_token_throughput": "total_throughput"}
_SGLANGS |= {
    figure.statistic(statistic): f"{statistic}_{theirs}_ms"
    for (theirs, figure), statistic in product(
        figures_named_by("sglang").items(), ("mean", "median", "std", "p90", "p95", "p99", "max")
    )
}
_LENGTHS: json_fields.Fields = {
    "asked_input_len": (read_count, "random_input_len"),
    "asked_output_len": (read_count, "random_output_len"),
}
_SMEARED = "SGLang's client: ITL is each gap shared by its chunk's tokens: a stall hides in it"
_FAR = 0.05


def _read_sglang(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield a file's run; lengths are asked for only of random prompts. UsageError without figures."""
    figures: dict[str, Any] = {"request_rate": json_fields.format_rate(document.get("request_rate"))}
    named = {key: read_word(document.get(key)) for key in ("backend", "protocol")}
    figures |= {key: name for key, name in named.items() if name}
    figures["max_concurrency"] = read_count(document.get("max_concurrency"))
    values = {key: json_fields.read_reported_number(document.get(theirs)) for key, theirs in _SGLANGS.items()}
    figures |= {key: value for key, value in values.items() if value is not None}
    errors = read_list(document.get("errors"))
    figures["failed"] = json_fields.count_failures(errors)
    load = read_fields(document, _LOAD)
    if load["requests"] is None:  # those that were sent: `completed` are those that succeeded
        load["requests"] = len(errors) or None
    # A length was asked for where it was one: a range ratio of 1 is no range there.
    fixed = (
        read_word(document.get("dataset_name")).startswith("random")
        and document.get("random_range_ratio") == 1
    )
    if fixed:
        load |= read_fields(document, _LENGTHS)
    path = find_first(document, read_word, "server_info.model_path", "server_info.served_model_name")
    backend = named["backend"].partition("-")[0]
    engine = "vLLM" if backend == "vllm" else ""
    if read_mapping(document.get("server_info")) or backend == "sglang":
        engine = f"SGLang {find_first(document, read_word, 'server_info.version') or ''}".strip()
    remarks = [LAST_LINE] if "mean_e2el_ms" in figures else []
    remarks += [_SMEARED] if named["backend"] in ("sglang", "sglang-native") else []
    counted, again = figures.get("total_output_tokens"), figures.get("total_output_tokens_retokenized")
    if counted and again and abs(again / counted - 1) > _FAR:
        remarks.append(f"{counted:.0f} generated tokens are reported, but its text has {again:.0f}")
    name = read_word(document.get("tag")) or shorten_name(path or "")
    yield json_fields.make_run(SGLANG.name, name, figures, Load(**load), source, remarks, engine=engine)


SGLANG = ClientFormat(
    "sglang",
    (b'"mean_e2e_latency_ms"', b'"total_output_tokens_retokenized"'),
    lambda document: (
        "mean_e2e_latency_ms" in document or {*document} >= {"total_output_tokens_retokenized", "completed"}
    ),
    _read_sglang,
)
