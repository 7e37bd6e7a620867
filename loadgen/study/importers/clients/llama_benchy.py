"""llama-benchy: its JSON report, a run for the prefill and one for the decoding of each of its benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.untrusted import read_list, read_mapping
from loadgen.study.importers import json_fields
from loadgen.study.importers.json_fields import value_at
from loadgen.study.importers.pasted import tables
from loadgen.study.importers.pasted.grids import Grid, Row
from loadgen.study.run_summary import Reported

CLIENT = "llama-benchy"
MARKS: tuple[bytes, ...] = (b'"is_context_prefill_phase"',)
# Its figures as its own tables title them: of all requests, of one, and its times.
_OF_ALL, _OF_ONE = "t/s (total)", "t/s (req)"
_TIMES = {"est_ppt (ms)": "est_ppt", "e2e_ttft (ms)": "e2e_ttft"}
_LEFT = "llama-benchy: its ttfr, its peaks and its series over time have no place here: left out"


def is_result(document: Mapping[str, Any]) -> bool:
    """Whether a document is such a report."""
    return any(
        "is_context_prefill_phase" in read_mapping(each) for each in read_list(document.get("benchmarks"))
    )


def read_runs(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield the runs of a report, in its order."""
    model = json_fields.word(document.get("model"))
    titles = ("model", "test", _OF_ALL, _OF_ONE, *_TIMES)
    rows = [
        Row(number, (model, *cells))
        for number, each in enumerate(read_list(document.get("benchmarks")), 1)
        for cells in _rows(read_mapping(each))
    ]
    runs = tables.read_client_table(Grid(titles, tuple(rows), 1, 1), CLIENT, source)
    if not runs:
        raise UsageError(f"{source} has no figures")
    for run in runs:
        yield replace(run, remarks=(*run.remarks, _LEFT))


def _rows(benchmark: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The cells of prefill and of decoding behind the model's."""
    counts = ("prompt_size", "response_size", "context_size", "concurrency")
    prompt, answer, depth, streams = (json_fields.count(benchmark.get(key)) or 0 for key in counts)
    context = benchmark.get("is_context_prefill_phase") is True
    behind = (f" @ d{depth}" if depth else "") + (f" (c{streams})" if streams > 1 else "")
    names = ("ctx_pp", "ctx_tg") if context else (f"pp{prompt}", f"tg{answer}")
    for name, key, times in zip(names, ("pp", "tg"), (_TIMES.values(), [""] * len(_TIMES)), strict=True):
        speeds = (_mean(benchmark, f"{key}_throughput"), _mean(benchmark, f"{key}_req_throughput"))
        if any(speeds):
            yield name + behind, *speeds, *(_mean(benchmark, time) for time in times)


def _mean(benchmark: Mapping[str, Any], key: str) -> str:
    return tables.format_cell(value_at(benchmark, key, "mean"))
