"""SGLang: the lines that its benchmarks append to a file, of the Python and the Rust client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from loadgen.base.untrusted import read_mapping
from loadgen.figures.figure_table import figures_named_by
from loadgen.report.load_identity import Load
from loadgen.study.importers import json_fields
from loadgen.study.run_summary import Reported, short_name

CLIENT = "sglang"
MARKS: tuple[bytes, ...] = (b'"mean_e2e_latency_ms"', b'"total_output_tokens_retokenized"')
# Its keys that are figures of ours too, and those that only its block has.
_SAME = (
    "duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput",
    "output_throughput", "request_goodput", "max_output_tokens_per_s", "max_concurrent_requests",
    "input_throughput", "concurrency", "accept_length", "total_input_text_tokens",
    "total_input_vision_tokens", "total_output_tokens_retokenized", "slo_attainment",
)  # fmt: skip
_OURS = {"total_throughput": "total_token_throughput"}
_STATISTICS = ("mean", "median", "std", "p90", "p95", "p99", "max")
LAST_LINE = (
    "SGLang's client: E2E and TPOT run to the last line of the answer, usage included, not to its last token"
)
_SMEARED = "SGLang's client: ITL is each gap shared by its message's tokens: a stall hides in it"
_FAR = 0.05


def is_result(document: Mapping[str, Any]) -> bool:
    """Whether a document is such a line."""
    return "mean_e2e_latency_ms" in document or (
        "total_output_tokens_retokenized" in document and "completed" in document
    )


def read_runs(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield the one run of a line."""
    figures: dict[str, Any] = {"request_rate": json_fields.shown_rate(document.get("request_rate"))}
    named = {key: json_fields.word(document.get(key)) for key in ("backend", "protocol")}
    figures |= {key: word for key, word in named.items() if word}
    figures["max_concurrency"] = json_fields.count(document.get("max_concurrency"))
    wanted = {key: key for key in _SAME} | _OURS
    for (theirs, figure), word in product(figures_named_by(CLIENT).items(), _STATISTICS):
        wanted[f"{word}_{theirs}_ms"] = figure.statistic(word)
    values = {key: json_fields.reported_number(document.get(theirs)) for theirs, key in wanted.items()}
    figures |= {key: value for key, value in values.items() if value is not None}
    figures["failed"] = json_fields.count_failures(document.get("errors"))
    figures, empty = json_fields.require_measured(figures, source)
    server = read_mapping(document.get("server_info"))
    yield Reported(
        name=_name(document, server, source),
        figures=figures,
        load=Load(
            requests=_count_sent(document),
            asked_output_len=_asked_length(document, "random_output_len"),
            max_concurrency=figures.get("max_concurrency"),
            request_rate_per_s=json_fields.rate(document.get("request_rate")),
            asked_input_len=_asked_length(document, "random_input_len"),
        ),
        source=source,
        told_by=CLIENT,
        engine=_engine(document, server),
        remarks=(*empty, *_remarks(document, figures)),
    )


def _name(document: Mapping[str, Any], server: Mapping[str, Any], source: str) -> str:
    path = json_fields.word(server.get("model_path")) or json_fields.word(server.get("served_model_name"))
    return json_fields.word(document.get("tag")) or short_name(path) or Path(source).stem


def _count_sent(document: Mapping[str, Any]) -> int | None:
    """The requests that were sent, which its figures do not have: `completed` are those that succeeded."""
    every = (document.get(key) for key in ("num_prompts", "num_prompt"))
    asked = next((count for each in every if (count := json_fields.count(each)) is not None), None)
    errors = document.get("errors")
    return len(errors) if asked is None and isinstance(errors, list) and errors else asked


def _asked_length(document: Mapping[str, Any], key: str) -> int | None:
    """A length asked for, where it was one: a range ratio of 1 is no range there."""
    random = json_fields.word(document.get("dataset_name")).startswith("random")
    fixed = random and document.get("random_range_ratio") == 1
    return json_fields.count(document.get(key)) if fixed else None


def _engine(document: Mapping[str, Any], server: Mapping[str, Any]) -> str:
    backend = json_fields.word(document.get("backend")).partition("-")[0]
    if server or backend == "sglang":
        return f"SGLang {json_fields.word(server.get('version'))}".strip()
    return "vLLM" if backend == "vllm" else ""


def _remarks(document: Mapping[str, Any], figures: Mapping[str, Any]) -> Iterator[str]:
    if "mean_e2el_ms" in figures:
        yield LAST_LINE
    if json_fields.word(document.get("backend")) in ("sglang", "sglang-native"):
        yield _SMEARED
    counted, again = figures.get("total_output_tokens"), figures.get("total_output_tokens_retokenized")
    if counted and again and abs(again / counted - 1) > _FAR:
        yield f"{counted:.0f} generated tokens are reported, but its text has {again:.0f}"
