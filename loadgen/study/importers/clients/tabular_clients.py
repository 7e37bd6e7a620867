"""Tabular clients: files whose keys are titles: of evalscope, llama-bench, llama-benchy and trtllm-bench."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.parsing import read_figure
from loadgen.base.text import list_first
from loadgen.base.untrusted import read_list, read_mapping
from loadgen.figures.figure_table import figures_named_by
from loadgen.report.load_identity import Load
from loadgen.study import labels
from loadgen.study.importers import json_fields
from loadgen.study.importers.json_fields import ClientFormat, find_value, read_count, read_word
from loadgen.study.importers.pasted import page_reader, pasted_tables
from loadgen.study.importers.pasted.page_reader import Grid, Row
from loadgen.study.importers.pasted.pasted_tables import format_cell
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
_UNREAD = ("per user output throughput", "per gpu output throughput", "per user output speed")
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
    left = [label for label in _UNREAD if label in facts]
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
        remarks=(f"not read: {list_first(left, len(_UNREAD))}",) if left else (),
        machine=pasted_tables.name_machine("", sizes[0] * sizes[1]),
        unread={key: str(facts[key]) for key in _SETTINGS if key in facts},
    )


_EVALSCOPE, _LLAMA_BENCH, _LLAMA_BENCHY = "evalscope", "llama-bench", "llama-benchy"
_RANKS = "Percentiles"
_SUMMARY, _PERCENTILES, _ARGUMENTS = (f"benchmark_{name}.json" for name in ("summary", "percentile", "args"))
_REPEATS = ("benchmark.log", "performance_summary.txt")
_OF_A_LOAD = re.compile(r"(?:parallel|rate|sla)_.*")  # the directory of one of several loads


def _make_grid(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    return Grid(tuple(titles), tuple(Row(number, tuple(cells)) for number, cells in enumerate(rows, 1)), 1, 1)


def _read_grids(client: str, source: str, *grids: Grid) -> list[Reported]:
    found = [run for grid in grids for run in pasted_tables.read_sheet(grid, Path(source))[0]]
    if not found:
        raise UsageError(f"{source} has no figures")
    return [replace(run, told_by=client, source=source) for run in found]


def _is_evalscope(document: Mapping[str, Any]) -> bool:
    """Whether a document is a summary, or percentiles of either version, joined by `join_percentiles`."""
    lower = {key.lower() for key in document}
    counted = "total requests" in lower and {"number of concurrency", "concurrency"} & lower
    return bool(counted) or isinstance(document.get(_RANKS), list)


def join_percentiles(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join rows of evalscope's percentiles, a document each in newer versions, to one; others unchanged."""
    if not documents or not all(isinstance(each.get(_RANKS), str) for each in documents):
        return documents
    return [{key: [each.get(key) for each in documents] for key in documents[0]}]


def is_part(path: Path) -> bool:
    """Whether a file of evalscope's is the percentiles of a summary next to it, or repeats some below it."""
    next_to = path.with_name(_SUMMARY).is_file()
    if path.name == _PERCENTILES:
        return next_to
    return path.name in _REPEATS and (next_to or any(path.parent.glob(f"*/{_SUMMARY}")))


def _read_evalscope(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield the one run of a summary with the percentiles next to it, or of percentiles alone."""
    path = Path(source)
    arguments = _read_first_object(path.with_name(_ARGUMENTS))
    more = _read_first_object(path.with_name(_PERCENTILES)) if path.name == _SUMMARY else {}
    ranked = [each for each in (document, more) if isinstance(each.get(_RANKS), list)]
    grids = list[Grid]()
    for each in ranked:
        columns = [[*map(format_cell, read_list(value))] for value in each.values()]
        grids.append(_make_grid([*each], [*zip(*columns, strict=False)]))
    if _RANKS not in document:
        cells = [(key, format_cell(value)) for key, value in document.items()]
        grids.insert(0, _make_grid(("Key", "Value"), cells))
    found = _read_grids(_EVALSCOPE, source, *grids)
    directory = path.absolute().parent  # which it names after the model
    if _OF_A_LOAD.fullmatch(directory.name):
        directory = directory.parent
    yield replace(
        found[0],
        name=shorten_name(read_word(arguments.get("model"))) or directory.name or path.stem,
        figures={key: value for run in reversed(found) for key, value in run.figures.items()},
        remarks=tuple(dict.fromkeys(remark for run in found for remark in run.remarks)),
        unread=labels.read_labels(arguments),
    )


def _read_first_object(path: Path) -> dict[str, Any]:
    """Read a JSON file's first object, rows of percentiles joined; {} without a file, and of other text."""
    try:
        content = json_fields.decode_text(json_fields.read_bounded(path), path)
    except UsageError:
        return {}
    parts = join_percentiles([part.value for part in json_fields.read_documents(content) if not part.error])
    return read_mapping(parts[0]) if parts else {}


EVALSCOPE = ClientFormat(
    _EVALSCOPE,
    (b'"Percentiles"', b'"Number of concurrency"', b'"Total Requests"'),
    _is_evalscope,
    _read_evalscope,
)
_INSERTED = re.compile(r"INSERT INTO \w{0,20}bench \(([^()]{1,4000})\) VALUES \((.{1,8000})\);")
_TESTED = ("n_prompt", "n_gen", "n_depth")
_KEYS = {"avg_ts", "n_prompt", "n_gen"}  # of every row of llama-bench
_NO_GPU = ("", "none")


def is_llama_sheet(text: str) -> bool:
    """Whether a text is the rows of llama-bench as CSV or as SQL."""
    header = text.lstrip().partition("\n")[0]
    return {name.strip().strip('"') for name in header.split(",")} >= _KEYS or (
        "avg_ts" in text and _INSERTED.search(text) is not None
    )


def read_llama_sheet(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of llama-bench's CSV or SQL as its JSON objects, each after its line number."""
    if (first := _INSERTED.search(text)) is not None:
        for match in _INSERTED.finditer(text, first.start()):
            names = [name.strip() for name in match[1].split(",")]
            values = next(csv.reader([match[2]], quotechar="'", skipinitialspace=True))
            line = text.count("\n", 0, match.start()) + 1
            yield line, _parse_counts(dict(zip(names, values, strict=False)))
        return
    rows = json_fields.read_csv_rows(text, path)
    _, header = next(rows)
    yield from ((line, _parse_counts(dict(zip(header, cells, strict=False)))) for line, cells in rows)


def _parse_counts(cells: Mapping[str, str]) -> dict[str, Any]:
    counts = {name: json_fields.parse_count(cells.get(name, "")) for name in _TESTED}
    return {**cells, **counts, "avg_ts": json_fields.parse_number(cells.get("avg_ts", ""))}


def _read_llama_bench(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield the run of one test, as a row of a table is read; raises UsageError without a figure."""
    gpu, cpu = read_word(document.get("gpu_info")), read_word(document.get("cpu_info"))
    prompt, answer, depth = (read_count(document.get(name)) or 0 for name in _TESTED)
    tested = "+".join(f"{name}{tokens}" for name, tokens in (("pp", prompt), ("tg", answer)) if tokens)
    cells = {
        "model": read_word(document.get("model_type"))
        or Path(read_word(document.get("model_filename"))).stem,
        "backend": read_word(document.get("backends")),
        "device": cpu if gpu.lower() in _NO_GPU else gpu,
        "test": tested + (f" @ d{depth}" if depth else ""),
        "t/s": format_cell(document.get("avg_ts")),
    }
    yield from _read_grids(_LLAMA_BENCH, source, _make_grid([*cells], [[*cells.values()]]))


# Each row of llama.cpp's bench, as JSON or JSON lines, is one test.
LLAMA_BENCH = ClientFormat(
    _LLAMA_BENCH, (b"avg_ts",), lambda document: {*document} >= _KEYS, _read_llama_bench
)
# Figures of llama-benchy as its own tables title them: of all requests, of one, and its times.
_TITLES = ("model", "test", "t/s (total)", "t/s (req)", "est_ppt (ms)", "e2e_ttft (ms)")
_TIMES = ("est_ppt", "e2e_ttft")
_LEFT = "llama-benchy: its ttfr, its peaks and its series over time have no place here: left out"


def _read_llama_benchy(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield two runs for each benchmark of a report, in order: one of prefill, one of decoding."""
    model, benchmarks = read_word(document.get("model")), read_list(document.get("benchmarks"))
    rows = [(model, *cells) for each in benchmarks for cells in _list_llama_cells(read_mapping(each))]
    for run in _read_grids(_LLAMA_BENCHY, source, _make_grid(_TITLES, rows)):
        yield replace(run, remarks=(*run.remarks, _LEFT))


def _list_llama_cells(benchmark: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of prefill and of decoding that follow the model's; none of one without a speed."""
    counts = ("prompt_size", "response_size", "context_size", "concurrency")
    prompt, answer, depth, streams = (read_count(benchmark.get(key)) or 0 for key in counts)
    context = benchmark.get("is_context_prefill_phase") is True
    behind = (f" @ d{depth}" if depth else "") + (f" (c{streams})" if streams > 1 else "")
    names = ("ctx_pp", "ctx_tg") if context else (f"pp{prompt}", f"tg{answer}")
    for name, key in zip(names, ("pp", "tg"), strict=True):
        means = (f"{key}_throughput", f"{key}_req_throughput", *_TIMES)
        total, of_one, *times = (format_cell(find_value(benchmark, f"{mean}.mean")) for mean in means)
        if total or of_one:
            yield name + behind, total, of_one, *(times if key == "pp" else [""] * len(times))


LLAMA_BENCHY = ClientFormat(
    _LLAMA_BENCHY,
    (b'"is_context_prefill_phase"', b"test_name,t_s_mean"),
    lambda document: any(
        "is_context_prefill_phase" in read_mapping(each) for each in read_list(document.get("benchmarks"))
    ),
    _read_llama_benchy,
)
# Its CSV's columns of the same figures.
_COLUMNS = ("model", "test_name", "t_s_mean", "t_s_req_mean", "est_ppt_mean", "e2e_ttft_mean")


def read_benchy_sheet(text: str, path: Path) -> list[Reported]:
    """Read the runs of llama-benchy's CSV; [] of any other text. Raises UsageError without figures."""
    header = text.lstrip().partition("\n")[0].strip().split(",")
    if not {*_COLUMNS} <= {*header}:
        return []
    rows = [dict(zip(header, cells, strict=False)) for _, cells in json_fields.read_csv_rows(text, path)][1:]
    json_fields.check_results(path, len(rows))
    cells = [[row.get(name, "") for name in _COLUMNS] for row in rows]
    runs = _read_grids(_LLAMA_BENCHY, str(path), _make_grid(_TITLES, cells))
    return [replace(run, remarks=(*run.remarks, _LEFT)) for run in runs]


_INFERENCEX = "inferencex"
# A row of its dashboard has a key, and the title of the column that it is; latencies are in seconds there.
_FACTS = {
    "model": "model", "framework": "engine", "hw": "gpu", "precision": "quantization", "conc": "concurrency",
    "isl": "input length", "osl": "output length",
}  # fmt: skip
_PER_GPU = {"tput_per_gpu": "total throughput (tok/s)", "output_tput_per_gpu": "output throughput (tok/s)"}
_IN_SECONDS = re.compile(r"(mean|median|std|p\d\d(?:\.\d+)?)_(ttft|tpot|itl|e2el)")
_SPREAD = ("tp", "pp", "pcp_size")  # whose product is the number of GPUs of a node
_INTERACTIVITY = "inferencex: intvty is one over TPOT; tok/s are those of a GPU times {} GPUs"


def _read_inferencex(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield the one run of a row, throughput of all its GPUs; of several nodes none is known."""
    apart = any(document.get(key) in (True, "true") for key in ("disagg", "is_multinode"))
    gpus = math.prod(read_count(document.get(key)) or 1 for key in _SPREAD)
    cells = {title: format_cell(document.get(key)) for key, title in _FACTS.items()} | {"gpus": str(gpus)}
    for key, title in {} if apart else _PER_GPU.items():
        each = json_fields.read_reported_number(document.get(key))
        cells[title] = "" if each is None else format_cell(gpus * each)
    for key, value in document.items():
        if (named := _IN_SECONDS.fullmatch(key)) is not None:
            cells[f"{named[1]} {named[2]} (s)"] = format_cell(value)
    known = {*_FACTS, *_PER_GPU, *_SPREAD, *(key for key in document if _IN_SECONDS.fullmatch(key))}
    for run in _read_grids(_INFERENCEX, source, _make_grid([*cells], [[*cells.values()]])):
        unread = labels.read_labels({key: value for key, value in document.items() if key not in known})
        yield replace(run, remarks=(*run.remarks, _INTERACTIVITY.format(gpus)), unread=unread)


INFERENCEX = ClientFormat(
    _INFERENCEX,
    (b'"tput_per_gpu"',),
    lambda document: {*document} >= {"tput_per_gpu", "conc"},
    _read_inferencex,
)
