"""CSV text: rows as comma-separated values that no spreadsheet takes for formulas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from loadgen.protocol.printable import plain

_FORMULA = re.compile(r"[=+\-@\t\r\n]")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:inf|nan)|-")  # "-": nothing ran


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """The rows, a header among them; a text that a spreadsheet would compute begins with an apostrophe."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    formula = _FORMULA.match(value) is not None and _NUMBER.fullmatch(value) is None
    return plain(f"'{value}" if formula else value)
