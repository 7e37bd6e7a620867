"""vLLM: the result files of `vllm bench serve`, with and without details, old and new."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from loadgen.base.layout import format_count
from loadgen.base.untrusted import read_list
from loadgen.figures.figure_table import COUNTS, PEAKS, find_figure
from loadgen.report.load_identity import Load
from loadgen.report.vllm_json import SIMULATED
from loadgen.study.importers import json_fields
from loadgen.study.run_summary import Reported, short_name, simulation, unnamed_preset

CLIENT = "vllm"
_DATE = "%Y%m%d-%H%M%S"
MARKS: tuple[bytes, ...] = (
    b'"mean_ttft_ms"', b'"mean_e2el_ms"', b'"total_token_throughput"', b'"request_throughput"',
)  # fmt: skip
_COUNTED = (
    "max_concurrency", *(figure.key for figure in (*COUNTS, *PEAKS)), "rtfx", "spec_decode_acceptance_rate",
    "spec_decode_acceptance_length", "spec_decode_num_drafts", "spec_decode_draft_tokens",
    "spec_decode_accepted_tokens",
)  # fmt: skip
_STATISTIC = re.compile(r"(mean|median|std|p\d+(\.\d+)?)_\w+")


def is_result(document: Mapping[str, Any]) -> bool:
    """Whether a document is such a file."""
    named = "model_id" in document or "endpoint_type" in document or "backend" in document
    return named and "completed" in document and "duration" in document


def read_runs(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield the one run of a file."""
    figures = {
        key: document[key] for key in _COUNTED if json_fields.reported_number(document.get(key)) is not None
    }
    if lost := json_fields.count_failures(document.get("errors")):
        figures.setdefault("failed", lost)
    figures["request_rate"] = json_fields.shown_rate(document.get("request_rate"))
    timed = (key for key in document if _STATISTIC.fullmatch(key) and find_figure(key) is not None)
    figures |= {key: document[key] for key in timed if json_fields.reported_number(document[key]) is not None}
    if "mean_e2el_ms" not in figures:
        figures |= _compute_e2el(document)
    figures, empty = json_fields.require_measured(figures, source)
    simulated = unnamed_preset(_is_simulated(document))  # ours, without what is ours
    yield Reported(
        simulated=simulated,
        name=_name(document, source),
        figures=figures,
        load=Load(
            requests=json_fields.count(document.get("num_prompts")),
            max_concurrency=json_fields.count(document.get("max_concurrency")),
            request_rate_per_s=json_fields.rate(document.get("request_rate")),
        ),
        source=source,
        told_by=CLIENT,
        engine="vLLM" if document.get("backend") == "vllm" else "",
        started=json_fields.parse_local_time(
            lambda date: datetime.strptime(date, _DATE), document.get("date")
        ),
        remarks=(*filter(None, [simulated and simulation(simulated)]), *empty, *_remarks(document, figures)),
    )


def _name(document: Mapping[str, Any], source: str) -> str:
    model = json_fields.word(document.get("model_id")).removesuffix(SIMULATED)
    return json_fields.word(document.get("label")) or short_name(model) or Path(source).stem


def _is_simulated(document: Mapping[str, Any]) -> bool:
    model = json_fields.word(document.get("model_id"))
    return document.get("simulated") is True or model.endswith(SIMULATED)


def _compute_e2el(document: Mapping[str, Any]) -> dict[str, float]:
    """End-to-end latencies of the requests that succeeded, which a file holds unless it is an old one.

    `latencies`, or each TTFT and its ITLs summed, which is the same; those without an answer are 0.
    """
    whole = read_list(document.get("latencies"))
    ttfts, itls = read_list(document.get("ttfts")), read_list(document.get("itls"))
    if not whole and len(ttfts) == len(itls):
        whole = [_sum_latency(ttft, gaps) for ttft, gaps in zip(ttfts, itls, strict=True)]
    errors = read_list(document.get("errors")) or [""] * len(whole)
    if len(errors) != len(whole):
        return {}
    answered = (latency for latency, error in zip(whole, errors, strict=True) if not error)
    timed = (json_fields.number(latency) or 0.0 for latency in answered)
    each_ms = [1e3 * seconds for seconds in timed if seconds > 0]
    return (
        json_fields.compute_statistics("e2el", each_ms) if len(each_ms) == document.get("completed") else {}
    )


def _sum_latency(ttft: object, gaps: object) -> float:
    return (json_fields.number(ttft) or 0.0) + sum(json_fields.number(gap) or 0.0 for gap in read_list(gaps))


def _remarks(document: Mapping[str, Any], figures: Mapping[str, Any]) -> Iterator[str]:
    failed, requested = (
        json_fields.number(figures.get("failed")) or 0.0,
        json_fields.count(document.get("num_prompts")),
    )
    completed = json_fields.number(figures.get("completed"))
    if failed:
        yield f"{format_count(int(failed), 'request')} failed"
    if requested is not None and completed is not None and requested > completed + failed:
        lost = requested - completed - failed
        yield f"{lost:.0f} of {requested} requests are not among the successful ones"
