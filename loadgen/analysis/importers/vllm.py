"""vLLM: the result files of `vllm bench serve`, with and without details, old and new."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.analysis.importers import json_fields
from loadgen.analysis.run_summary import Load, Reported, short_name

CLIENT = "vllm"
MARKS = (b'"mean_ttft_ms"', b'"mean_e2el_ms"', b'"total_token_throughput"', b'"request_throughput"')
_COUNTED = (
    "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
    "max_output_tokens_per_s", "max_concurrent_requests", "rtfx",
)  # fmt: skip
_LATENCY = re.compile(
    r"(mean|median|std|p\d+(\.\d+)?)"
    r"_(ttft|tpot|itl|e2el|client_queue_time|e2el_including_client_queue|token_time)_ms"
)
_RANKS = (90, 95, 99)


def tells(document: Mapping[str, Any]) -> bool:
    """Whether a document is such a file."""
    named = "model_id" in document or "endpoint_type" in document or "backend" in document
    return named and "completed" in document and "duration" in document


def read(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """The one run of a file."""
    figures = {key: document[key] for key in _COUNTED if json_fields.number(document.get(key)) is not None}
    figures["request_rate"] = json_fields.shown_rate(document.get("request_rate"))
    figures |= {
        key: value
        for key, value in document.items()
        if _LATENCY.fullmatch(key) and json_fields.number(value) is not None
    }
    if "mean_e2el_ms" not in figures:
        figures |= _e2el(document)
    figures, empty = json_fields.checked(figures, source)
    completed = figures.get("completed")
    yield Reported(
        name=_name(document, source),
        figures=figures,
        load=Load(
            requests=json_fields.count(document.get("num_prompts")),
            input_len=json_fields.mean(figures.get("total_input_tokens"), completed),
            output_len=json_fields.mean(figures.get("total_output_tokens"), completed),
            max_concurrency=json_fields.count(document.get("max_concurrency")),
            request_rate_per_s=json_fields.rate(document.get("request_rate")),
        ),
        source=source,
        told_by=CLIENT,
        engine="vLLM" if document.get("backend") == "vllm" else "",
        started=_date(document.get("date")),
        remarks=(*empty, *_remarks(document, figures)),
    )


def _name(document: Mapping[str, Any], source: str) -> str:
    model = json_fields.word(document.get("model_id"))
    return json_fields.word(document.get("label")) or short_name(model) or Path(source).stem


def _e2el(document: Mapping[str, Any]) -> dict[str, float]:
    """End-to-end latencies of the requests that succeeded, which a file holds unless it is an old one.

    `latencies`, or each TTFT and its ITLs summed, which is the same; those without an answer are 0.
    """
    whole = json_fields.listed(document.get("latencies"))
    ttfts, itls = json_fields.listed(document.get("ttfts")), json_fields.listed(document.get("itls"))
    if not whole and len(ttfts) == len(itls):
        whole = [_sum(ttft, gaps) for ttft, gaps in zip(ttfts, itls, strict=True)]
    errors = json_fields.listed(document.get("errors")) or [""] * len(whole)
    if len(errors) != len(whole):
        return {}
    told = [json_fields.number(one) or 0.0 for one, error in zip(whole, errors, strict=True) if not error]
    seconds = np.array([one for one in told if one > 0])
    if not len(seconds) or len(seconds) != document.get("completed"):
        return {}
    each = seconds * 1e3
    figures = {"mean_e2el_ms": each.mean(), "median_e2el_ms": np.median(each), "std_e2el_ms": each.std()}
    figures |= {f"p{rank}_e2el_ms": np.percentile(each, rank) for rank in _RANKS}
    return {key: float(value) for key, value in figures.items()}


def _sum(ttft: object, gaps: object) -> float:
    return (json_fields.number(ttft) or 0.0) + sum(
        json_fields.number(gap) or 0.0 for gap in json_fields.listed(gaps)
    )


def _remarks(document: Mapping[str, Any], figures: Mapping[str, Any]) -> Iterator[str]:
    failed = figures.get("failed")
    asked = json_fields.count(document.get("num_prompts"))
    if failed is None and asked is not None and (lost := asked - figures.get("completed", asked)) > 0:
        yield f"{lost} of {asked} requests are not among the successful ones"
    elif failed:
        yield f"{failed} requests failed"


def _date(said: object) -> datetime | None:
    """The local time of a machine whose zone nobody tells: taken for ours."""
    try:
        return datetime.strptime(json_fields.word(said), "%Y%m%d-%H%M%S").astimezone()
    except (ValueError, OverflowError, OSError):  # a year that this machine's clock has not
        return None
