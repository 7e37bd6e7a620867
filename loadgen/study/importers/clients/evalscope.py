"""evalscope: the summary and the percentiles of `evalscope perf`, whose keys are the titles of its tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.base.untrusted import read_list, read_mapping
from loadgen.report import labels
from loadgen.study.importers import json_fields
from loadgen.study.importers.pasted import tables
from loadgen.study.importers.pasted.grids import Grid, Row
from loadgen.study.run_summary import Reported, short_name

CLIENT = "evalscope"
MARKS: tuple[bytes, ...] = (b'"Percentiles"', b'"Number of concurrency"', b'"Total Requests"')
_RANKS = "Percentiles"
_SUMMARY, _PERCENTILES, _ARGUMENTS = (f"benchmark_{name}.json" for name in ("summary", "percentile", "args"))
_OF_A_LOAD = re.compile(r"(?:parallel|rate|sla)_.*")  # the directory of one of several loads


def is_result(document: Mapping[str, Any]) -> bool:
    """Whether a document is a summary, or percentiles of either version, joined by `join_percentiles`."""
    lower = {key.lower() for key in document}
    counted = "total requests" in lower and {"number of concurrency", "concurrency"} & lower
    return bool(counted) or isinstance(document.get(_RANKS), list)


def join_percentiles(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join rows of percentiles, a document each in newer versions, to the one document of older ones."""
    if not documents or not all(isinstance(each.get(_RANKS), str) for each in documents):
        return documents
    return [{key: [each.get(key) for each in documents] for key in documents[0]}]


def is_part(path: Path) -> bool:
    """Whether a file is the percentiles of a summary next to it, which is read with them."""
    return path.name == _PERCENTILES and path.with_name(_SUMMARY).is_file()


def read_runs(document: Mapping[str, Any], source: str) -> Iterator[Reported]:
    """Yield the one run of a summary with the percentiles next to it, or of percentiles alone."""
    path = Path(source)
    arguments = _read_next_to(path.with_name(_ARGUMENTS))
    more = _read_next_to(path.with_name(_PERCENTILES)) if path.name == _SUMMARY else {}
    grids = [_summary_grid(document)] if _RANKS not in document else [_percentile_grid(document)]
    grids += [_percentile_grid(more)] if isinstance(more.get(_RANKS), list) else []
    found = [run for grid in grids for run in tables.read_client_table(grid, CLIENT, source)]
    if not found:
        raise UsageError(f"{source} has no figures")
    figures = {key: value for run in reversed(found) for key, value in run.figures.items()}
    yield replace(
        found[0],
        name=_model(arguments, path),
        figures=figures,
        remarks=tuple(dict.fromkeys(remark for run in found for remark in run.remarks)),
        unread=labels.settings(arguments),
    )


def _summary_grid(document: Mapping[str, Any]) -> Grid:
    rows = ((key, tables.format_cell(value)) for key, value in document.items())
    return Grid(("Key", "Value"), tuple(Row(1, cells) for cells in rows), 1, 1)


def _percentile_grid(document: Mapping[str, Any]) -> Grid:
    """Percentiles as the table that it prints, a row each."""
    columns = {key: [*map(tables.format_cell, read_list(value))] for key, value in document.items()}
    rows = zip(*columns.values(), strict=False)
    return Grid(tuple(columns), tuple(Row(1, cells) for cells in rows), 1, 1)


def _model(arguments: Mapping[str, Any], path: Path) -> str:
    """The model that was named to it, else the directory that it names after the model."""
    if model := short_name(json_fields.word(arguments.get("model"))):
        return model
    directory = path.absolute().parent
    return directory.parent.name if _OF_A_LOAD.fullmatch(directory.name) else directory.name or path.stem


def _read_next_to(path: Path) -> dict[str, Any]:
    """The object of a file next to another; empty where there is none that can be read."""
    try:
        content = json_fields.decode_text(json_fields.read_bounded(path), path)
    except UsageError:
        return {}
    parts = join_percentiles([part.value for part in json_fields.read_documents(content) if not part.error])
    return read_mapping(parts[0]) if parts else {}
