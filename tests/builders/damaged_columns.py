"""Damaged columns: changes to the arrays of a kept run, as a stranger's file may hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NamedColumns = dict[str, Any]


def put(name: str, at: int, value: float) -> Callable[[NamedColumns], None]:
    """One value of a column is another."""

    def change(columns: NamedColumns) -> None:
        columns[name][at] = value

    return change


def turned(name: str, turn: Callable[[Any], Any]) -> Callable[[NamedColumns], None]:
    """A column is what `turn` makes of it."""

    def change(columns: NamedColumns) -> None:
        columns[name] = turn(columns[name])

    return change
