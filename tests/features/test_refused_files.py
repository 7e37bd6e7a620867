"""Files of prompts, bodies, conversations and traces: each makes the plan that is stored, or is refused."""

from __future__ import annotations

from pathlib import Path

from builders import stored_plans
from builders.loops import loop_over
from builders.refused_files import RefusedFile, read_stored, refuse
from builders.stored_plans import StoredPlan


@loop_over("file", read_stored())
def test_a_file_that_cannot_be_sent_is_refused_as_it_is_stored(file: RefusedFile, tmp_path: Path) -> None:
    assert refuse(file, tmp_path) == file["refused"]
    assert "\n" not in file["refused"]


@loop_over("row", stored_plans.read_stored())
def test_a_file_makes_the_plan_that_is_stored(row: StoredPlan, tmp_path: Path) -> None:
    assert stored_plans.describe(row, tmp_path) == row["plan"]
