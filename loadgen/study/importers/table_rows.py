"""Table rows: what a row of anyone's table has besides figures: its load, its labels, or no figure at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

import msgspec

from loadgen.base.layout import cut, some
from loadgen.report import labels
from loadgen.study.importers import columns, json_fields, titles
from loadgen.study.importers.columns import TableColumn
from loadgen.study.run_summary import Load, Reported

# Columns of these facts tell rows apart that are alike in all that is read from them.
_TELLING = ("", "note", "gpu_num", "test")
_COUNTS = ("max_concurrency", "input_length", "output_length", columns.LENGTHS, columns.RATE)
_PARTS = re.compile(r"(\d[\d,]{0,8})\s*(?:tok\w*)?\s*[/:x×,+→-]\s*>?\s*(\d[\d,]{0,8})")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")
_LEAST_FILLED = 2  # cells of a row; one alone is a heading between rows
_MOST_NAMED, _MOST_CELLS, _LONGEST_CELL = 8, 4, 24


class TableRows(msgspec.Struct, frozen=True):
    """The runs of tables, and a line on each table that has rows without figures."""

    runs: list[Reported]
    left: list[str]


def telling_columns(
    every: Sequence[TableColumn], named: Sequence[str], cells: Sequence[Sequence[str]]
) -> list[int]:
    """The places of the columns of labels: what tells one row from another and is read as no figure."""
    return [
        at
        for at, (column, title) in enumerate(zip(every, named, strict=True))
        if column.key in _TELLING and labels.is_label(title, [row[at] for row in cells])
    ]


def uncounted(facts: Mapping[str, str]) -> dict[str, str]:
    """The counts of a row that are not numbers, as 4k or 1k1k: they tell it from others all the same."""
    unread = ((key, facts.get(key, "")) for key in _COUNTS)
    return {key: cell for key, cell in unread if cell and not _is_read(key, cell)}


def _is_read(key: str, cell: str) -> bool:
    if key == columns.LENGTHS:
        return _PARTS.fullmatch(cell) is not None
    if key == columns.RATE:
        return columns.rate(cell) is not None
    return (whole(cell) if key == "max_concurrency" else mean(cell)) is not None


def without_figures(path: Path, rows: Iterable[tuple[int, Sequence[str]]], every: int) -> Iterator[str]:
    """A line that names the rows of a table that have none of its figures: out of memory, timed out."""
    named = []
    for line, cells in rows:
        filled = [cut(cell, _LONGEST_CELL) for cell in cells if cell.strip()]
        if len(filled) >= _LEAST_FILLED:
            named.append(f"line {line} ({', '.join(list(dict.fromkeys(filled))[:_MOST_CELLS])})")
    if named:
        yield f"{path}: {len(named)} of {every} rows of a table have no figures: {some(named, _MOST_NAMED)}"


def requested_load(facts: Mapping[str, str], named: str) -> Load:
    """The load that a row's cells ask for; `named` is the load of the heading above, or of the row's name."""
    limit, length = whole(facts.get("max_concurrency", "")), mean(facts.get("input_length", ""))
    prompts, answer = whole(facts.get("prompts", "")), mean(facts.get("output_length", ""))
    rate = columns.rate(facts.get(columns.RATE, ""))
    if (parts := _PARTS.fullmatch(facts.get(columns.LENGTHS, ""))) is not None:
        length, answer = whole(parts[1]), whole(parts[2])
    if limit is None:
        limit = titles.concurrency(facts.get("load", "") or named)
    counts = (("at a time", limit), ("requests/s", rate), ("prompts", prompts))
    facts_of_it = (f"{count:g} {noun}" for noun, count in counts if count)
    return Load(
        name=json_fields.word(facts.get("load", "") or named or next(facts_of_it, "")),
        requests=prompts,
        input_len=length,
        output_len=answer,
        asked_output_len=answer,
        max_concurrency=limit,
        request_rate_per_s=rate,
        asked_input_len=length,
    )


def whole(cell: str) -> int | None:
    """A count; None of anything else."""
    return json_fields.written_count(_THOUSANDS.sub("", cell.strip()))


def mean(cell: str) -> int | None:
    """A length in whole tokens, of a mean too; None of anything else."""
    count = whole(cell)
    amount = decimal(cell) if count is None else None
    return count if amount is None else round(amount)


def decimal(cell: str) -> Decimal | None:
    """A number above zero with the digits that it is written with; None of anything else."""
    text = _THOUSANDS.sub("", columns.number_text(cell))
    return Decimal(text) if re.fullmatch(r"\d{1,12}(?:\.\d{1,6})?", text) and float(text) > 0 else None
