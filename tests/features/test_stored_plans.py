"""Traces, data sets and conversations that are made here: each is the plan that is stored."""

from __future__ import annotations

from pathlib import Path

from builders.loops import loop_over
from builders.stored_plans import StoredPlan, describe, read_stored


@loop_over("row", read_stored())
def test_a_file_makes_the_plan_that_is_stored(row: StoredPlan, tmp_path: Path) -> None:
    assert describe(row, tmp_path) == row["plan"]
