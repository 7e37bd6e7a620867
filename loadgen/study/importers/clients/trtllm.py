"""TensorRT-LLM: what `trtllm-bench throughput` prints, a run for each overview of performance in a text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadgen.base.parsing import read_figure
from loadgen.base.text import list_first
from loadgen.figures.figure_table import figures_named_by
from loadgen.report.load_identity import Load
from loadgen.study.importers import json_fields
from loadgen.study.importers.pasted import page_reader, pasted_tables
from loadgen.study.run_summary import Reported, join_quantization, shorten_name

CLIENT = "trtllm-bench"
MARK = "= PERFORMANCE OVERVIEW"
_BEGINS = ("= PYTORCH BACKEND", "= TENSORRT BACKEND", "= ENGINE DETAILS", "= _AUTODEPLOY BACKEND")
_LINE = re.compile(r"\s{0,8}([A-Z][^:]{2,60}?)\s{0,20}:\s{0,60}(\S[^\n]{0,120}?)\s*")
_RANKED = re.compile(
    r"\s{0,8}\[(TTFT|TPOT|Latency)\]\s(P\d\d|MINIMUM|MAXIMUM|AVERAGE)\s{0,8}:\s{0,20}(-?[\d.]{1,20})\s*"
)
# Its labels without their units, what they are here, and what a number is multiplied with.
_FIGURES = {
    "request throughput": ("request_throughput", 1.0),
    "total output throughput": ("output_throughput", 1.0),
    "total token throughput": ("total_token_throughput", 1.0),
    "total latency": ("duration", 1e-3),
    "average request latency": ("mean_e2el_ms", 1.0),
    "average time-to-first-token": ("mean_ttft_ms", 1.0),
    "average time-per-output-token": ("mean_tpot_ms", 1.0),
    "number of requests": ("completed", 1.0),
    "number of concurrent requests": ("concurrency", 1.0),
}
_SETTINGS = (
    "kv cache dtype", "tp size", "pp size", "ep size", "max runtime batch size", "max runtime tokens",
)  # fmt: skip
_LEFT = ("per user output throughput", "per gpu output throughput", "per user output speed")
_LATENCIES = figures_named_by("trtllm")
_WORDS = {"MINIMUM": "min", "MAXIMUM": "max", "AVERAGE": "mean", "P50": "median"}
_UNIT = re.compile(r"\s*(?:\([^()]*\)|\[[^\[\]]*\])")


def read_report(text: str, path: Path) -> list[Reported]:
    """Read every run with an output throughput in a text; [] of a text that the client did not print."""
    runs = _split_runs(text) if MARK in text else ()
    return [_make_run(facts, path, line) for line, facts in runs if "output_throughput" in facts]


def _split_runs(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line that each run of a text begins at, and what is printed of it.

    Figures are by key, other text by its label in lower case without unit; the first of a label counts.
    """
    facts: dict[str, Any] = {}
    begun = 1
    for number, line in enumerate(page_reader.split_lines(text), 1):
        opens = line.strip().startswith(_BEGINS)
        if (opens or line.strip() == MARK) and "output_throughput" in facts:
            yield begun, facts
            facts = {}
        if opens or not facts:
            begun = number
        if (ranked := _RANKED.fullmatch(line)) is not None:
            statistic = _WORDS.get(ranked[2], ranked[2].lower())
            facts[_LATENCIES[ranked[1]].statistic(statistic)] = json_fields.parse_number(ranked[3])
        elif (labelled := _LINE.fullmatch(line)) is not None:
            label = _UNIT.sub("", labelled[1]).strip().lower()
            key, times = _FIGURES.get(label, (label, 0.0))
            value = json_fields.parse_number(labelled[2])
            facts.setdefault(key, value * times if times and value is not None else labelled[2])
    yield begun, facts


def _make_run(facts: dict[str, Any], path: Path, line: int) -> Reported:
    """Make the run of what is printed; its name has the quantization, its labels are the settings."""
    figures = {key: value for key, value in facts.items() if isinstance(value, float)}
    means = (str(facts.get(f"average {which} length")) for which in ("input", "output"))
    known = [read_figure(json_fields.parse_number(mean)) for mean in means]
    lengths = [length if length and length > 0 else None for length in known]
    left = [label for label in _LEFT if label in facts]
    model = shorten_name(str(facts.get("model", "")))
    stored = str(facts.get("quantization", ""))
    sizes = [json_fields.parse_count(str(facts.get(f"{way} size", ""))) or 1 for way in ("tp", "pp")]
    return Reported(
        name=join_quantization(model or path.stem, "" if stored.lower() in ("", "none") else stored),
        figures=figures,
        load=Load(
            input_len=lengths[0],
            output_len=lengths[1],
            asked_output_len=round(lengths[1]) if lengths[1] and lengths[1].is_integer() else None,
        ),
        source=f"{path}:{line}",
        told_by=CLIENT,
        engine=f"TensorRT-LLM {facts.get('tensorrt llm version', '')}".strip(),
        remarks=(f"not read: {list_first(left, len(_LEFT))}",) if left else (),
        machine=pasted_tables.name_machine("", sizes[0] * sizes[1]),
        unread={key: str(facts[key]) for key in _SETTINGS if key in facts},
    )
