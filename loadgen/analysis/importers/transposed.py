"""Transposed: tables with metrics down the side and a configuration in each column, as rows of figures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from loadgen.analysis.importers import columns, titles, translation
from loadgen.analysis.importers.grids import Grid, Row

_UNITS = frozenset({"unit", "units"})
_PLAIN = frozenset({"", "value", "values", "result", "results", "metric", "metrics", "measured"})
_CHANGE = re.compile(
    r"change|delta|diff\w*|improve\w*|speed-?up|gain|reduction|vs\.?|ratio|[Δ%×]|提升|加速|改善|変化",
    re.IGNORECASE,
)
_RELATIVE = re.compile(r"\s*[-+−]?\s*\d[\d.,]*\s*[%x×]\s*|\s*[-+−]\s*\d.*|\s*[-–—]?\s*", re.IGNORECASE)
ENGINES = ("Transformers", "vLLM", "SGLang", "TensorRT-LLM", "llama.cpp", "LMDeploy", "TGI", "Ollama", "MLX")


def upright(grid: Grid) -> Grid:
    """A table whose first column has the titles of figures with its rows as columns; any other unchanged.

    A column of units is read with the titles; one of differences between the others is left out.
    """
    if len(grid.titles) < 2 or not grid.rows:
        return grid
    table = [row.cells for row in grid.rows]
    if any(columns.is_measured(column.key) for column in columns.columns(grid.titles, table)):
        return grid
    first = 2 if translation.in_english(grid.titles[1]).lower().strip() in _UNITS else 1
    metrics = [f"{cells[0]} ({cells[1]})" if first == 2 and cells[1].strip() else cells[0] for cells in table]
    known = [columns.column(metric, cells[first:]).key for metric, cells in zip(metrics, table, strict=True)]
    if not any(map(columns.is_measured, known)):
        return grid
    kept = [
        at
        for at in range(first, len(grid.titles))
        if not (_CHANGE.search(grid.titles[at]) and all(_RELATIVE.fullmatch(cells[at]) for cells in table))
    ]
    labels = [_named(grid.titles[at]) for at in kept]
    rows = (
        Row(grid.rows[0].line - 1, (label, *(cells[at] for cells in table)), at + 1)
        for at, label in zip(kept, labels, strict=True)
    )
    return Grid((_title(grid.titles[0], labels), *metrics), tuple(rows), grid.first, grid.last)


def _named(title: str) -> str:
    """What a column is of; "" of one that is headed by a word for any figure."""
    return "" if translation.in_english(title).lower().strip() in _PLAIN else title


def _title(corner: str, labels: Sequence[str]) -> str:
    """What the columns are of: as the table's corner has it, else what their titles are."""
    parts = (part.strip() for part in re.split(r"[\\/|→]", corner))
    if named := next((part for part in parts if columns.column(part).key), ""):
        return named
    filled = [label for label in labels if label]
    kinds = (
        ("Model", lambda label: titles.parse(label).model != ""),
        ("Engine", lambda label: any(label.lower().startswith(name.lower()) for name in ENGINES)),
        ("Load", lambda label: titles.concurrency(label) is not None),
    )
    return next((title for title, holds in kinds if filled and all(map(holds, filled))), "Configuration")
