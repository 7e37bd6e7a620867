"""guidellm tables: what `guidellm benchmark` prints at its end, a run for each row of its tables.

0.2 and 0.3 print two tables, of two lines of titles; later versions several, of three. A title is above as
many columns as bars follow it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from loadgen.study.importers import guidellm, json_fields, numbers, pages
from loadgen.study.importers import text as texts
from loadgen.study.run_summary import Load, Reported, short_name

MARKS: tuple[bytes, ...] = (b"Benchmarks Stats", b"Request Latency Statistics")
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
    (r"requests made comp", "completed", 1.0),
    (r"requests made err", "failed", 1.0),
    (r"requests made inc", "incomplete", 1.0),
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
    (r"req latency \((?:ms|sec)\) (mean|median|p99)|request latency sec (mdn|p95)", "{}_e2el_ms", 1e3),
    (r"ttft \(ms\) (mean|median|p99)|ttft ms (mdn|p95)", "{}_ttft_ms", 1.0),
    (r"itl \(ms\) (mean|median|p99)|itl ms (mdn|p95)", "{}_tpot_ms", 1.0),
)
_LENGTHS = (
    "input_len_median", "input_len_p95", "total_input_tokens",
    "output_len_median", "output_len_p95", "total_output_tokens",
)  # fmt: skip
_FACTS = {"strategy", "incomplete", "input_len", "output_len"}
_MOST_ABOVE = 60  # lines above a report's first table, in which its model stands
_ROUNDED = 0.05  # of a length with one decimal
Cells = dict[str, str]


def tells(text: str) -> bool:
    """Whether a text may have such tables."""
    return any(mark.decode() in text for mark in MARKS)


def read(text: str, path: Path) -> list[Reported]:
    """Every row of a text's tables, those of one report together; raises UsageError of too many rows."""
    reports = [*_reports(pages.split(pages.uncoloured(text)))]
    texts.check_results(path, sum(len(tables[0][1]) for _, tables in reports))
    return [
        replace(run, unread={**run.unread, **({"report": str(number)} if len(reports) > 1 else {})})
        for number, (above, tables) in enumerate(reports, 1)
        for run in _runs(above, tables, path)
    ]


def _reports(lines: Sequence[str]) -> Iterator[tuple[list[str], list[tuple[int, list[Cells]]]]]:
    """The lines of each report and its tables: a table's first titles occur once in a report."""
    tables, titles, above = list[tuple[int, list[Cells]]](), list[tuple[str, ...]](), list[str]()
    at = 0
    while at < len(lines):
        found = _table(lines, at) if _TITLE.match(lines[at].strip(" |")) else None
        if found is None:
            above.append(lines[at])
            at += 1
            continue
        head, rows, at = found
        if head in titles or (tables and len(rows) != len(tables[0][1])):
            yield above, tables
            tables, titles, above = [], [], above[-_MOST_ABOVE:]
        titles.append(head)
        tables.append((at - len(rows), rows))
    if tables:
        yield above, tables


def _table(lines: Sequence[str], begin: int) -> tuple[tuple[str, ...], list[Cells], int] | None:
    """The titles of a table, its rows by them, and the line behind it; None of what is no such table."""
    heads, at = list[list[str]](), begin
    while at < len(lines) and at - begin < 4 and not _RULE.fullmatch(lines[at].strip()):
        heads.append(_spread(lines[at]))
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


def _spread(line: str) -> list[str]:
    """A line of titles, each as often as it has columns below it."""
    plain = line.strip()
    framed = plain.startswith("|")
    parts = _GROUP.findall(plain.removeprefix("|"))
    spans = [len(bars) for _, bars in parts]
    if parts and not framed:
        spans[-1] += 1  # no bar ends the line
    return [title.strip() for (title, _), span in zip(parts, spans, strict=True) for _ in range(span)]


def _runs(above: Sequence[str], tables: Sequence[tuple[int, list[Cells]]], path: Path) -> Iterator[Reported]:
    said = "\n".join(above)
    named = _MODEL.findall(said)
    asked = {which: int(count) for which, count in _ASKED.findall(said)}
    extras = next((match[1] for line in above if (match := _EXTRAS.fullmatch(line)) is not None), "None")
    of_all = (_ALL,) if _OF_ALL in said else ()
    joined = [
        {title: cell for _, rows in tables for title, cell in rows[number].items()}
        for number in range(len(tables[0][1]))
    ]
    read_rows = [*map(_values, joined)]
    strategies = Counter(strategy for _, strategy in read_rows)
    in_seconds = any(title.startswith("req latency (ms)") for title in joined[0]) if joined else False
    for number, (values, named_strategy) in enumerate(read_rows):
        even = _is_even(values, asked)
        remarks = [*([] if even else [guidellm.UNEVEN]), _NO_TPOT, *of_all]
        remarks += [_SECONDS] * in_seconds
        figures = {
            key: value
            for key, value in values.items()
            if key not in _FACTS and not key.startswith(("input_len", "output_len"))
            if even or not key.endswith("_tpot_ms")
        }
        figures, empty = json_fields.kept(figures)
        if not json_fields.has_figures(figures) and figures.get("completed") != 0:
            continue
        strategy = _STRATEGY.fullmatch(named_strategy)
        row = f", row {number + 1}" if strategies[named_strategy] > 1 else ""
        yield Reported(
            name=short_name(named[-1]) if named else path.stem,
            figures=figures,
            load=_load(strategy, values, asked, named_strategy + row),
            source=f"{path}:{tables[-1][0] + number}",
            told_by=guidellm.CLIENT,
            remarks=(*remarks, *empty),
            unread={} if extras == "None" else {"extras": extras},
        )


def _values(cells: Cells) -> tuple[dict[str, float], str]:
    """A row's numbers by their keys, and the strategy that it names."""
    values, strategy = dict[str, float](), ""
    for title, cell in cells.items():
        for pattern, key, times in _KEYS:
            if (match := re.fullmatch(pattern, title)) is None:
                continue
            rank = next(filter(None, match.groups()), "")
            key = key.format({"mdn": "median"}.get(rank, rank))
            if key == "strategy":
                strategy = cell
            elif (value := json_fields.written_number(cell)) is not None:
                values.setdefault(key, numbers.scaled(value, times))
            break
    return values, strategy


def _is_even(values: Mapping[str, float], asked: Mapping[str, int]) -> bool:
    """Whether every answer has the same length: then its ITL, weighted by tokens, is the TPOT of vLLM."""
    if "output_len" in values and "output" in asked:  # as long as was asked for, on average
        return abs(values["output_len"] - asked["output"]) <= _ROUNDED
    known = [value for key in _LENGTHS if (value := values.get(key))]
    if len(known) < len(_LENGTHS):
        return False
    prompt, prompt_p95, prompts, answer, answer_p95, answers = known
    count = answers / answer
    return (prompt, answer) == (prompt_p95, answer_p95) and count.is_integer() and count == prompts / prompt


def _load(
    strategy: re.Match[str] | None, values: Mapping[str, float], asked: Mapping[str, int], name: str
) -> Load:
    kind, written = (strategy[1], strategy[2]) if strategy is not None else ("", None)
    at = float(written) if written else None
    rated = kind in ("constant", "poisson", "async")
    limit = {"synchronous": 1.0, "concurrent": at}.get(kind)
    completed, failed = (json_fields.count(values.get(key)) for key in ("completed", "failed"))
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
