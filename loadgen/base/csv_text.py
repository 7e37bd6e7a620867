"""CSV text: rows as comma-separated values that no spreadsheet takes for formulas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadgen.base.printable import clean_text

_FORMULA = re.compile(r"[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:inf|nan)|-")  # "-": nothing ran


def format_csv_table(keys: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Write a header and a line for each row, empty where a row lacks the key."""
    return format_csv([keys, *([row.get(key) for key in keys] for row in rows)])


def format_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Write rows, a header among them: None and NaN are empty, booleans as in JSON.

    A text that a spreadsheet would compute begins with an apostrophe.
    """
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_format_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _format_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value if value == value else None
    formula = _FORMULA.match(value) is not None and _NUMBER.fullmatch(value) is None
    return clean_text(f"'{value}" if formula else value)
