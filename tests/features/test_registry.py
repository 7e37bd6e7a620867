"""A row of a feature stands by a row of the core; those of one place in the order of the features."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from loadgen import features
from loadgen.features import combine_rows, import_rows
from loadgen.report.report import SECTIONS
from loadgen.report.request_rows import COLUMNS
from loadgen.verdict.doubts import DOUBTS
from loadgen.verdict.verdict import CHECKABLE

# By table: the names of all rows.
NAMES = {
    "doubts": [doubt.code for doubt in DOUBTS],
    "sections": [section.name for section in SECTIONS],
    "columns": [*COLUMNS, "session", "turn"],
    "checkable": [check.name for check in CHECKABLE],
}


def test_rows_stand_before_and_after_those_that_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    own: list[Any] = [
        SimpleNamespace(DOUBTS={"after b": ("b1", "b2"), "before a": ("a0",)}),
        SimpleNamespace(DOUBTS={"after b": ("b3",), "before a": ("a1",)}),
    ]
    monkeypatch.setattr(features, "import_rows", lambda table: own)
    assert combine_rows("abc", "doubts", str) == ("a0", "a1", "a", "b", "b1", "b2", "b3", "c")


def test_each_row_of_a_feature_is_in_its_table_by_a_row_of_the_core() -> None:
    for table, names in NAMES.items():
        places = [
            place.split(" ", 1) for module in import_rows(table) for place in getattr(module, table.upper())
        ]
        assert {word for word, _ in places} <= {"before", "after"}
        assert {name for _, name in places} <= set(names)
