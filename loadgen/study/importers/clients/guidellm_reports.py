"""guidellm reports: its JSON report and the tables that it prints; its names of latencies are not vLLM's.

0.2 and 0.3 print two tables, of two lines of titles; later versions several, of three. A title is above as
many columns as bars follow it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from loadgen.base.parsing import read_figure
from loadgen.base.text import format_count
from loadgen.base.untrusted import read_list, read_mapping
from loadgen.report.load_identity import Load
from loadgen.study.importers import json_fields
from loadgen.study.importers.json_fields import (
    ClientFormat,
    find_first,
    find_value,
    read_count,
    read_fields,
    read_reported_number,
    read_word,
)
from loadgen.study.importers.pasted import numbers, page_reader
from loadgen.study.run_summary import Reported, shorten_name

_NAME = "guidellm"
# Its versions have the counts of requests here: 0.4 in the metrics, 0.2 and 0.3 next to them; or a list.
_COUNTS = (
    "metrics.request_totals", "request_totals", "run_stats.requests_made", "metrics.request_latency",
    "requests",
)  # fmt: skip
# Rates of the requests that succeeded, over the window that it measured.
_RATES: json_fields.Fields = {
    "request_throughput": (read_reported_number, "requests_per_second.successful.mean"),
    "output_throughput": (read_reported_number, "output_tokens_per_second.successful.mean"),
    "total_token_throughput": (read_reported_number, "tokens_per_second.successful.mean"),
    "max_concurrent_requests": (read_count, "request_concurrency.total.max"),
}
_STATISTICS: json_fields.Fields = {
    "mean": (read_reported_number, "mean"),
    "median": (read_reported_number, "median"),
    "std": (read_reported_number, "std_dev"),
    **{f"p{rank}": (read_reported_number, f"percentiles.p{rank}") for rank in json_fields.RANKS},
}
_TIMINGS = ("info.timings", "scheduler_info.request_timings")  # of a request
_LOAD: json_fields.Fields = {
    "asked_input_len": (read_count, "config.spec.data.0.prompt_tokens"),
    "asked_output_len": (read_count, "config.spec.data.0.output_tokens"),
    "seed": (read_count, "config.spec.seed.value"),
}
_MODELS = (
    "benchmark.config.backend.model", "config.spec.backend.model", "args.model",
    "benchmark.worker.backend_model", "benchmark.benchmarker.backend.model",
)  # fmt: skip
_FROM_REQUESTS = (
    "guidellm: TPOT is (last - first token) / (tokens - 1), its ITL; its own TPOT includes the TTFT"
)
_NO_REQUESTS = "guidellm: from its summary, whose percentiles are by nearest rank"
UNEVEN = "guidellm: no TPOT: its ITL is weighted by tokens, and the lengths differ"


def _read_guidellm(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield a run for each benchmark of a report: a sweep has many; the file names one without a model."""
    benchmarks = read_list(document.get("benchmarks"))
    for index, benchmark in enumerate(benchmarks, 1):
        where = f"{source} benchmark {index}" if len(benchmarks) > 1 else source
        yield _read_benchmark(document, read_mapping(benchmark), source, where)


def _read_benchmark(
    document: Mapping[str, Any], benchmark: Mapping[str, Any], source: str, where: str
) -> Reported:
    """Make the run of a benchmark, its latencies from its requests if all are listed, else its summary."""
    metrics = read_mapping(benchmark.get("metrics"))
    requests = [r for r in read_list(find_value(benchmark, "requests.successful")) if isinstance(r, dict)]
    spans = ("duration", "start_time", "end_time")
    duration, begin, end = (read_figure(benchmark.get(key)) for key in spans)
    totals = {
        "completed": _count_requests(benchmark, "successful"),
        "failed": _count_requests(benchmark, "errored"),
        "duration": end - begin if duration is None and begin is not None and end is not None else duration,
        "total_input_tokens": _count_tokens(metrics, "prompt_token_count"),
        "total_output_tokens": _count_tokens(metrics, "output_token_count"),
        **read_fields(metrics, _RATES),
    }
    whole = bool(requests) and len(requests) == totals["completed"]  # a sample of them is not all
    latencies, remarks = _read_requests(requests) if whole else _read_summary(metrics)
    each = read_mapping(find_value(metrics, "iter_tokens_per_iteration.successful"))
    if (each.get("mean"), each.get("std_dev")) == (1, 0):  # one token a message: its mean is that of the gaps
        latencies["mean_itl_ms"] = find_value(metrics, "inter_token_latency_ms.successful.mean")
    incomplete = _count_requests(benchmark, "incomplete")
    if incomplete:
        remarks.append(f"guidellm: {format_count(incomplete, 'request')} unfinished at the end, not counted")
    model = find_first({**document, "benchmark": benchmark}, read_word, *_MODELS) or ""
    return json_fields.make_run(
        _NAME,
        shorten_name(model) or Path(source).stem,
        {**totals, **latencies},
        _make_load(document, benchmark),
        where,
        remarks,
        started=None if begin is None or not 0 < begin < 1e11 else datetime.fromtimestamp(begin, UTC),
    )


def _count_requests(benchmark: Mapping[str, Any], outcome: str) -> int | None:
    counted: int | None = find_first(benchmark, _read_count, *(f"{place}.{outcome}" for place in _COUNTS))
    return counted


def _read_count(value: object) -> int | None:
    """Read a count given as a number, as `count` of a summary, or by a list of requests; else None."""
    if isinstance(value, list):
        return len(value) or None
    return read_count(find_value(value, "count") if isinstance(value, dict) else value)


def _read_requests(requests: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Compute the statistics in ms of TTFT, TPOT (of several tokens) and E2EL; return them and a remark."""
    several = [request for request in requests if (read_figure(request.get("output_tokens")) or 0) > 1]
    samples = {
        "ttft": [read_figure(request.get("time_to_first_token_ms")) for request in requests],
        "tpot": [read_figure(request.get("inter_token_latency_ms")) for request in several],
        "e2el": [*map(_compute_e2el_ms, requests)],
    }
    figures = dict[str, Any]()
    for key, values in samples.items():
        figures |= json_fields.compute_statistics(key, (value for value in values if value is not None))
    return figures, [_FROM_REQUESTS]


def _compute_e2el_ms(request: Mapping[str, Any]) -> float | None:
    """Compute a request's E2EL to its last token, else to the end of its latency; None without both."""
    ends = ("last_token_iteration", "request_start")
    last, sent = (find_first(request, read_figure, *(f"{place}.{end}" for place in _TIMINGS)) for end in ends)
    if last is not None and sent is not None:
        return float((last - sent) * 1e3)
    latency_s = read_figure(request.get("request_latency"))
    return None if latency_s is None else latency_s * 1e3


def _read_summary(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Read from the summary the latencies that are defined as vLLM's, in ms, and remarks on the others."""
    remarks = [_NO_REQUESTS, "guidellm: E2E runs to the response's end, not to its last token"]
    summaries = [("ttft", "time_to_first_token_ms", 1.0), ("e2el", "request_latency", 1e3)]
    if find_value(metrics, "output_token_count.successful.std_dev") == 0:
        summaries.append(("tpot", "inter_token_latency_ms", 1.0))
    else:
        remarks.append(UNEVEN)
    return {
        f"{statistic}_{key}_ms": value * scale
        for key, name, scale in summaries
        for statistic, value in read_fields(find_value(metrics, f"{name}.successful"), _STATISTICS).items()
        if value is not None
    }, remarks


def _count_tokens(metrics: Mapping[str, Any], name: str) -> int | None:
    summary = find_value(metrics, f"{name}.successful")
    total, mean, requests = (read_figure(find_value(summary, key)) for key in ("total_sum", "mean", "count"))
    if total is None and mean is not None:
        total = read_figure(mean * (requests or 0))
    return None if total is None else round(total)


def _make_load(document: Mapping[str, Any], benchmark: Mapping[str, Any]) -> Load:
    """Make the load of a benchmark by its strategy; a strategy without a rate is unlimited."""
    strategy = read_mapping(
        find_value(benchmark, "config.strategy") or find_value(benchmark, "args.strategy")
    )
    kind, rate = read_word(strategy.get("type_")), read_figure(strategy.get("rate"))
    streams = find_first(strategy, read_count, "streams", "max_concurrency")
    # Requests of the measured window that its end did not cut off; without a count all created.
    sent = _count_requests(benchmark, "total")
    if sent is None:
        sent = read_count(find_value(benchmark, "scheduler_state.created_requests"))
    if sent is not None:
        sent = max(sent - (_count_requests(benchmark, "incomplete") or 0), 0)
    return Load(
        requests=sent,
        max_concurrency=1 if kind == "synchronous" else streams if kind == "concurrent" else None,
        request_rate_per_s=math.inf if rate is None and kind else rate,
        **read_fields(document, _LOAD),
    )


GUIDELLM = ClientFormat(
    _NAME,
    (b'"guidellm_version"', b'"generative_benchmark', b'"inter_token_latency_ms"'),
    lambda document: any(
        isinstance(find_value(each, "metrics.time_to_first_token_ms"), dict)
        for each in read_list(document.get("benchmarks"))
    ),
    _read_guidellm,
)
PRINTED_MARKS: tuple[bytes, ...] = (b"Benchmarks Stats", b"Request Latency Statistics")
_GROUP = re.compile(r"([^|]+)(\|{1,40}|$)")
_RULE = re.compile(r"\|?[-=]{2,}(?:\|[-=]+)*\|?")
_TITLE = re.compile(r"(?:Metadata|Benchmark) *\|")
_STRATEGY = re.compile(
    r"(synchronous|throughput|concurrent|constant|poisson|async)(?:@(\d{1,9}(?:\.\d{1,20})?))?"
)
_MODEL = re.compile(
    r"(?:\bfor model |validated with model |backend_model=')([^\s']{1,200}?)(?=[.']?(?:\s|$))"
)
_ASKED = re.compile(r"\b(prompt|output)_tokens=(\d{1,7})\b")
_EXTRAS = re.compile(r"\s*Extras:\s*(\S.{0,300})")
_OF_ALL = "Server Throughput Statistics (All Requests)"
_ALL = "guidellm: rates are of all requests, of those that failed or were cut off too"
_SECONDS = "guidellm: its Req Latency is in seconds, whatever unit its title has"
_NO_TPOT = "guidellm: its TPOT includes the TTFT: left out"
# Titles in lower case, from the group to the statistic: the key of what stands below them, and its unit.
_KEYS: tuple[tuple[str, str, float], ...] = (
    (r"(?:metadata benchmark|benchmark strategy)", "strategy", 1.0),
    (r"metadata duration \(s\)|timings dur sec", "duration", 1.0),
    (r"requests made comp|requests comp tot", "completed", 1.0),
    (r"requests made err|requests err tot", "failed", 1.0),
    (r"requests made inc|requests inc tot", "incomplete", 1.0),
    (r"prompt tok total comp|input tokens comp tot", "total_input_tokens", 1.0),
    (r"output tok total comp|output tokens comp tot", "total_output_tokens", 1.0),
    (r"prompt tok/req comp", "input_len", 1.0),
    (r"output tok/req comp", "output_len", 1.0),
    (r"input tok per req (mdn|p95)", "input_len_{}", 1.0),
    (r"output tok per req (mdn|p95)", "output_len_{}", 1.0),
    (r"request stats per second|requests per sec mean", "request_throughput", 1.0),
    (r"request stats concurrency|requests concurrency mean", "concurrency", 1.0),
    (r"out tok/sec mean|output tokens per sec mean", "output_throughput", 1.0),
    (r"tot tok/sec mean|total tokens per sec mean", "total_token_throughput", 1.0),
    (r"req latency \((?:ms|sec)\) (mean|median|p99)|request latency sec (mean|mdn|p95)", "{}_e2el_ms", 1e3),
    (r"ttft \(ms\) (mean|median|p99)|ttft ms (mean|mdn|p95)", "{}_ttft_ms", 1.0),
    (r"itl \(ms\) (mean|median|p99)|itl ms (mean|mdn|p95)", "{}_tpot_ms", 1.0),
)
_SPREAD = re.compile(r" ?(?:±.{0,40}|\*)$")  # behind a number of 0.8: its interval, or that it has none
_LENGTHS = (
    "input_len_median", "input_len_p95", "total_input_tokens",
    "output_len_median", "output_len_p95", "total_output_tokens",
)  # fmt: skip
_FACTS = {"strategy", "incomplete", "input_len", "output_len"}
_MOST_ABOVE = 60  # lines above a report's first table, in which its model stands
_ROUNDED = 0.05  # of a length with one decimal
Cells = dict[str, str]


def read_report(text: str, path: Path) -> list[Reported]:
    """Read every row of a text's tables, those of one report together; [] without such tables.

    With several reports each run is labelled by its number. Raises UsageError of over 10,000 rows.
    """
    if not any(mark.decode() in text for mark in PRINTED_MARKS):
        return []
    reports = [*_split_reports(page_reader.split_lines(text))]
    json_fields.check_results(path, sum(len(tables[0][1]) for _, tables in reports))
    return [
        replace(run, unread={**run.unread, **({"report": str(index)} if len(reports) > 1 else {})})
        for index, (above, tables) in enumerate(reports, 1)
        for run in _read_rows(above, tables, path)
    ]


def _split_reports(lines: Sequence[str]) -> Iterator[tuple[list[str], list[tuple[int, list[Cells]]]]]:
    """Yield each report of a text: the lines above its tables, and each table after its first row's line.

    Lines count from 1. A table's titles occur once in a report, and its tables have equally many rows.
    """
    tables, titles, above = list[tuple[int, list[Cells]]](), list[tuple[str, ...]](), list[str]()
    at = 0
    while at < len(lines):
        found = _read_table(lines, at) if _TITLE.match(lines[at].strip(" |")) else None
        if found is None:
            above.append(lines[at])
            at += 1
            continue
        head, rows, at = found
        if head in titles or (tables and len(rows) != len(tables[0][1])):
            yield above, tables
            tables, titles, above = [], [], above[-_MOST_ABOVE:]
        titles.append(head)
        tables.append((at - len(rows) + 1, rows))
    if tables:
        yield above, tables


def _read_table(lines: Sequence[str], begin: int) -> tuple[tuple[str, ...], list[Cells], int] | None:
    """Read a table's titles, its rows by them, and the index of the line after it; None of anything else."""
    heads, at = list[list[str]](), begin
    while at < len(lines) and at - begin < 4 and not _RULE.fullmatch(lines[at].strip()):
        heads.append(_spread_titles(lines[at]))
        at += 1
    titles = tuple(" ".join(filter(None, parts)).lower() for parts in zip(*heads, strict=False))
    if len({*map(len, heads)}) != 1 or not any(re.fullmatch(_KEYS[0][0], title) for title in titles):
        return None
    rows, at = list[Cells](), at + 1
    while at < len(lines) and "|" in lines[at] and not _RULE.fullmatch(lines[at].strip()):
        cells = [cell.strip() for cell in lines[at].strip().removeprefix("|").removesuffix("|").split("|")]
        if len(cells) != len(titles):
            return None
        rows.append(dict(zip(titles, cells, strict=True)))
        at += 1
    return titles, rows, at


def _spread_titles(line: str) -> list[str]:
    """Return the title above each column: a grouping line's title is repeated for each of its columns."""
    plain = line.strip()
    framed = plain.startswith("|")
    parts = _GROUP.findall(plain.removeprefix("|"))
    spans = [len(bars) for _, bars in parts]
    if parts and not framed:
        spans[-1] += 1  # no bar ends the line
    return [title.strip() for (title, _), span in zip(parts, spans, strict=True) for _ in range(span)]


def _read_rows(
    above: Sequence[str], tables: Sequence[tuple[int, list[Cells]]], path: Path
) -> Iterator[Reported]:
    """Yield a run for each row with figures, joined over a report's tables; the model is from `above`."""
    head = "\n".join(above)
    models = _MODEL.findall(head)
    asked = {which: int(tokens) for which, tokens in _ASKED.findall(head)}
    extras = next((match[1] for line in above if (match := _EXTRAS.fullmatch(line)) is not None), "None")
    of_all = (_ALL,) if _OF_ALL in head else ()
    joined = [
        {title: cell for _, rows in tables for title, cell in rows[index].items()}
        for index in range(len(tables[0][1]))
    ]
    read_rows = [*map(_read_values, joined)]
    strategies = Counter(named for _, named in read_rows)
    in_seconds = any(title.startswith("req latency (ms)") for cells in joined[:1] for title in cells)
    for index, (values, strategy) in enumerate(read_rows):
        even = _has_one_length(values, asked)
        remarks = [*([] if even else [UNEVEN]), _NO_TPOT, *of_all, *([_SECONDS] if in_seconds else [])]
        figures = {
            key: value
            for key, value in values.items()
            if key not in _FACTS and not key.startswith(("input_len", "output_len"))
            if even or not key.endswith("_tpot_ms")
        }
        figures, empty = json_fields.drop_unmeasured(figures)
        if not json_fields.has_figures(figures) and figures.get("completed") != 0:
            continue
        row = f", row {index + 1}" if strategies[strategy] > 1 else ""
        yield Reported(
            name=shorten_name(models[-1]) if models else path.stem,
            figures=figures,
            load=_make_strategy_load(strategy, values, asked, strategy + row),
            source=f"{path}:{tables[-1][0] + index}",
            told_by=_NAME,
            remarks=(*remarks, *empty),
            unread={} if extras == "None" else {"extras": extras},
        )


def _read_values(cells: Cells) -> tuple[dict[str, float], str]:
    """Return the figures and lengths of a row by key, the first of each, and its strategy, "" without."""
    values, strategy = dict[str, float](), ""
    for title, cell in cells.items():
        for pattern, key, times in _KEYS:
            if (match := re.fullmatch(pattern, title)) is None:
                continue
            rank = next(filter(None, match.groups()), "")
            key = key.format({"mdn": "median"}.get(rank, rank))
            if key == "strategy":
                strategy = cell
            elif (value := json_fields.parse_number(_SPREAD.sub("", cell))) is not None:
                values.setdefault(key, numbers.scale_figure(value, times))
            break
    return values, strategy


def _has_one_length(values: Mapping[str, float], asked: Mapping[str, int]) -> bool:
    """Whether answers have one length, by mean and request or by median, P95 and total; False if unknown."""
    if "output_len" in values and "output" in asked:  # as long as was asked for, on average
        return abs(values["output_len"] - asked["output"]) <= _ROUNDED
    known = [value for key in _LENGTHS if (value := values.get(key))]
    if len(known) < len(_LENGTHS):
        return False
    prompt, prompt_p95, prompts, answer, answer_p95, answers = known
    each = answers / answer
    return (prompt, answer) == (prompt_p95, answer_p95) and each.is_integer() and each == prompts / prompt


def _make_strategy_load(
    strategy: str, values: Mapping[str, float], asked: Mapping[str, int], name: str
) -> Load:
    """Make the load that a strategy names, as constant@2.5; without a rate it is unlimited."""
    match = _STRATEGY.fullmatch(strategy)
    kind, at = (match[1], json_fields.parse_number(match[2] or "")) if match is not None else ("", None)
    rated = kind in ("constant", "poisson", "async")
    limit = {"synchronous": 1.0, "concurrent": at}.get(kind)
    completed, failed = (read_count(values.get(key)) for key in ("completed", "failed"))
    return Load(
        name=name,
        requests=None if completed is None or failed is None else completed + failed,
        input_len=values.get("input_len"),
        output_len=values.get("output_len"),
        asked_input_len=asked.get("prompt"),
        asked_output_len=asked.get("output"),
        max_concurrency=None if limit is None else int(limit),
        request_rate_per_s=at if rated else math.inf if kind else None,
    )
