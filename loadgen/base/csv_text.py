"""CSV text: rows as comma-separated values that no spreadsheet takes for formulas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadgen.base.printable import plain

_FORMULA = re.compile(r"[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:inf|nan)|-")  # "-": nothing ran


def csv_table(keys: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A header and a line a row, empty where a row lacks the key."""
    return csv_text([keys, *([row.get(key) for key in keys] for row in rows)])


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """The rows, a header among them: None and NaN are empty, True and False as JSON spells them.

    A text that a spreadsheet would compute begins with an apostrophe.
    """
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value if value == value else None
    formula = _FORMULA.match(value) is not None and _NUMBER.fullmatch(value) is None
    return plain(f"'{value}" if formula else value)
