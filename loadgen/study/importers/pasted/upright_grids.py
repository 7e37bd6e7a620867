"""Upright grids: any table as one of a row a run: turned, its titles joined, its statistics gathered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from loadgen.features.roofline import machines
from loadgen.study.importers.pasted import headings
from loadgen.study.importers.pasted.numbers import parse_cell, translate_title
from loadgen.study.importers.pasted.page_reader import Grid, Row
from loadgen.study.importers.pasted.row_figures import is_measured, read_column, read_columns

_MOST_METRICS = 200
_UNITS = frozenset({"unit", "units"})
_PLAIN = frozenset({"", "value", "values", "result", "results", "metric", "metrics", "measured"})
_CHANGE = re.compile(
    r"change|delta|diff\w*|improve\w*|speed-?up|gain|reduction|vs\.?|ratio|[Δ%×]|提升|加速|改善|変化",
    re.IGNORECASE,
)
_RELATIVE = re.compile(r"\s*[-+−]?\s*\d[\d.,]*\s*[%x×]\s*|\s*[-+−]\s*\d.*|\s*[-–—]?\s*", re.IGNORECASE)
_STATISTIC = re.compile(
    r"p ?(\d\d?(?:\.\d+)?)|(\d\d?(?:\.\d+)?) ?th|avg\.?|average|mean|median|min(?:imum)?|max(?:imum)?"
    r"|std\.?(?: ?dev(?:iation)?)?"
)
_RANKS = {"avg": "mean", "average": "mean", "minimum": "min", "maximum": "max"}
_SHARE = re.compile(r"(\d\d?(?:\.\d+)?) ?%")  # a percentile below a title that says so, else any share
_SHARED = re.compile(r"|\S*(?:percentiles?|quantiles?|ranks?|statistics?|stats?)", re.IGNORECASE)
_COUNTS = frozenset({"n", "count", "counts", "samples"})  # of what a statistic is of
_LEVELS = frozenset({"min", "max"})  # a statistic, or the name of a load
_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")  # of a title in one: InputTokens
# What genai-perf and aiperf call figures whose definition is that of another name, and counts, in lower case.
_NVIDIA = {
    "inter token latency": "TPOT", "inter chunk latency": "ITL", "request count": "Successful requests",
    "completed request count": "Successful requests", "error request count": "Failed requests",
    "input sequence length": "Input length", "output sequence length": "Output length",
    "benchmark duration (sec)": "Benchmark duration (s)",
}  # fmt: skip
_CORNERS = frozenset({"statistic", "metric"})
_COUNTED = re.compile(r" \((?:requests|count|tokens)\)")
ENGINES = ("Transformers", "vLLM", "SGLang", "TensorRT-LLM", "llama.cpp", "LMDeploy", "TGI", "Ollama", "MLX")


def turn_upright(grid: Grid) -> Grid:
    """Return a table with a row a run: turned if its first column has figures' titles, statistics joined."""
    grid = _join_heads(grid) if len(grid.titles) > 1 and grid.rows else grid
    if len(grid.titles) < 2 or not 0 < len(grid.rows) <= _MOST_METRICS:
        return grid
    if is_measured(read_column(grid.titles[0]).key) and all(map(_is_thing, grid.titles[1:])):
        # One figure, named in its corner, over models or loads: it is not read.
        return replace(grid, titles=("", *grid.titles[1:]))
    measured = any(is_measured(key) for key in _list_keys(grid))
    turned = grid if measured else _turn(grid)
    return _gather_ranks(turned) or turned


def _list_keys(grid: Grid) -> list[str]:
    return [column.key for column in read_columns(grid.titles, [row.cells for row in grid.rows])]


def _turn(grid: Grid) -> Grid:
    """Return a table whose first column has figures' titles with its columns as rows; any other unchanged.

    Of the columns those of a change and those that say the same of all are left out.
    """
    table = [row.cells for row in grid.rows]
    first = 2 if translate_title(grid.titles[1]).lower().strip() in _UNITS else 1
    metrics = [f"{cells[0]} ({cells[1]})" if first == 2 and cells[1].strip() else cells[0] for cells in table]
    ranked = any(map(_find_rank, grid.titles[first:]))
    if ranked and grid.titles[0].lower() in _CORNERS:
        metrics = [*map(_name_nvidias, metrics)]
    known = [read_column(metric, cells[first:]).key for metric, cells in zip(metrics, table, strict=True)]
    if not any(map(is_measured, known)):
        return grid
    kept = [
        at
        for at in range(first, len(grid.titles))
        if not _is_one_word(grid, at)
        and not (_CHANGE.search(grid.titles[at]) and all(_RELATIVE.fullmatch(cells[at]) for cells in table))
    ]
    # A column that is headed by a word for any figure has no name.
    titles = (grid.titles[at] for at in kept)
    labels = ["" if translate_title(title).lower().strip() in _PLAIN else title for title in titles]
    rows = (
        Row(grid.first, (label, *(cells[at] for cells in table)), at + 1)
        for at, label in zip(kept, labels, strict=True)
    )
    return Grid((_title_labels(grid.titles[0], labels), *metrics), tuple(rows), grid.first, grid.last)


def _name_nvidias(metric: str) -> str:
    """Return a metric of NVIDIA's clients by its definition here."""
    plain = _COUNTED.sub("", " ".join(metric.lower().split()))
    name, bracket, unit = plain.partition(" (")
    return _NVIDIA.get(plain, f"{_NVIDIA[name]}{bracket}{unit}" if name in _NVIDIA else metric)


def name_left_out(grid: Grid, upright: Grid) -> list[str]:
    """Name the rows or columns that `upright` lacks: `turn_upright` left them out as statistics of others."""
    kept = {(row.line, row.column) for row in upright.rows}
    if upright.titles == grid.titles:
        return [f"line {row.line}" for row in grid.rows if (row.line, row.column) not in kept]
    if not any(row.column for row in upright.rows):
        return []
    every = enumerate(grid.titles, 1)
    return [repr(title) for at, title in every if _find_rank(title) and at not in {at for _, at in kept}]


def _is_thing(label: str) -> bool:
    """Whether a column is headed by a model, its storage, a load, a count or a machine."""
    title = headings.parse_title(label)
    known = title.model or title.quantization or headings.find_concurrency(label) is not None
    return bool(known) or label.strip().isdecimal() or machines.recognise_machine(label) is not None


def _join_heads(grid: Grid) -> Grid:
    """Join the first row to the titles where it goes on with them, as Mean and P99 below TTFT."""
    first = grid.rows[0].cells
    below = [cell if cell != title else "" for title, cell in zip(grid.titles, first, strict=True)]
    filled = [cell for cell in below if cell]
    if len(filled) < 2 or not all(_find_rank(cell) for cell in filled):
        return grid
    named, above = list[str](), ""
    for title, cell in zip(grid.titles, below, strict=True):
        above = title or (above if cell else "")
        named.append(f"{cell} {above}".strip())
    return Grid(tuple(named), grid.rows[1:], grid.first, grid.last)


def _is_one_word(grid: Grid, at: int) -> bool:
    cells = {row.cells[at] for row in grid.rows}
    return len(cells) == 1 < len(grid.rows) and not any(map(str.isdigit, cells.pop()))


def _gather_ranks(grid: Grid) -> Grid | None:
    """Return a table whose rows are statistics with one row for each run; None of any other.

    One column names them (`Stat`, evalscope's `Percentile`). What stands before it is the run's, as are
    columns behind it that are no figures, where a statistic would stand twice. Where it names other rows too,
    as runs by their numbers, the statistics are of these, and are left out.
    """
    for at, title in enumerate(grid.titles):
        named = [row.cells[at].lower().strip() for row in grid.rows]
        ranks = ["n" if cell in _COUNTS else _find_rank(cell, title) for cell in named]
        if {*ranks} <= _LEVELS | {"", "n"}:
            continue
        if not all(ranks):
            kept = [row for row, rank in zip(grid.rows, ranks, strict=True) if not rank]
            return Grid(grid.titles, tuple(kept), grid.first, grid.last)
        table = [row.cells for row in grid.rows]
        figured = {n for n, each in enumerate(read_columns(grid.titles, table)) if is_measured(each.key)}
        before, plain = [*range(at)], [n for n in range(len(grid.titles)) if n != at and n not in figured]
        for own in (before, plain) if figured else ():
            groups: dict[tuple[str, ...], dict[str, Row]] = {}
            for row, rank in zip(grid.rows, ranks, strict=True):
                groups.setdefault(tuple(row.cells[n] for n in own), {}).setdefault(rank, row)
            if sum(map(len, groups.values())) == len(grid.rows):
                return _join_ranks(grid, at, own, groups)
    return None


def _join_ranks(
    grid: Grid, at: int, own: Sequence[int], groups: Mapping[tuple[str, ...], Mapping[str, Row]]
) -> Grid:
    """Return a table with a row for each group of statistics, by their rank in column `at`."""
    every = dict.fromkeys(rank for rows in groups.values() for rank in rows if rank != "n")
    metrics = [n for n in range(len(grid.titles)) if n not in {*own, at}]
    titles, rows = [grid.titles[n] for n in own] or ["load"], list[Row]()
    columns = list[str]()
    for cells, by_rank in groups.items():
        row = _title_ranks(
            (grid.titles[n], {rank: by_rank[rank].cells[n] if rank in by_rank else "" for rank in every})
            for n in metrics
        )
        columns = columns or [title for title, _ in row]
        by_title = dict(row)
        read = (by_title.get(title, "") for title in columns)
        rows.append(Row(next(iter(by_rank.values())).line, (*(cells or ("",)), *read)))
    return Grid((*titles, *columns), tuple(rows), grid.first, grid.last)


def _title_ranks(metrics: Iterable[tuple[str, Mapping[str, str]]]) -> list[tuple[str, str]]:
    """Return title and cell of each statistic of some metrics, by rank; of what is not known the mean alone.

    A rate of several ranks is of each request, and none of the run: it keeps a title that is not read.
    """
    row = list[tuple[str, str]]()
    for metric, cells in metrics:
        metric = _WORDS.sub(" ", metric)
        filled = [cell for cell in cells.values() if parse_cell(cell) is not None]
        for rank, cell in cells.items():
            titled = f"{rank} {metric}"
            if not read_column(titled, filled).key and rank == "mean":  # a rate has no rank
                rate = is_measured(read_column(metric, filled).key)
                titled = f"{metric} of each request" if rate and len(filled) > 1 else metric
            if read_column(titled, filled).key or rank == "mean":  # what is not known is named
                row.append((titled, cell))
    return row


def _find_rank(title: str, column: str | None = None) -> str:
    """Return a title's statistic as keys have it, as p99; "" of others. In a `column` of ranks 90% is p90."""
    plain = translate_title(title).lower().strip()
    share = _SHARE.fullmatch(plain)
    if share is not None and column is not None and _SHARED.fullmatch(translate_title(column).strip()):
        return f"p{share[1]}"
    if (match := _STATISTIC.fullmatch(plain)) is None:
        return ""
    if rank := match[1] or match[2]:
        return f"p{rank}"
    return "std" if plain.startswith("std") else _RANKS.get(plain.rstrip("."), plain.rstrip("."))


def _title_labels(corner: str, labels: Sequence[str]) -> str:
    """Return the title of a column of labels: from the table's corner, else what all are of, else a word."""
    parts = (part.strip() for part in re.split(r"[\\/|→]", corner))
    if named := next((part for part in parts if read_column(part).key), ""):
        return named
    filled = [label for label in labels if label]
    kinds = (
        ("Model", lambda label: headings.parse_title(label).model != ""),
        ("Quantization", lambda label: headings.parse_title(label).quantization != ""),
        ("Engine", lambda label: any(label.lower().startswith(name.lower()) for name in ENGINES)),
        ("GPU", lambda label: machines.recognise_machine(label) is not None),
        ("Load", lambda label: headings.find_concurrency(label) is not None),
    )
    return next((title for title, holds in kinds if filled and all(map(holds, filled))), "Configuration")
