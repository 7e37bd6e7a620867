"""Files of prompts, bodies, conversations and traces: each makes the plan that is stored, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import refused_files, stored_plans

REFUSED = refused_files.read_stored()
PLANS = stored_plans.read_stored()


@pytest.mark.parametrize("name", dict.fromkeys(file["name"] for file in REFUSED))
def test_a_file_that_cannot_be_sent_is_refused_as_it_is_stored(name: str, tmp_path: Path) -> None:
    files = [file for file in REFUSED if file["name"] == name]
    assert [refused_files.refuse(file, tmp_path) for file in files] == [file["refused"] for file in files]
    assert not any("\n" in file["refused"] for file in files)


@pytest.mark.parametrize("shows", dict.fromkeys(row["shows"] for row in PLANS))
def test_a_file_makes_the_plan_that_is_stored(shows: str, tmp_path: Path) -> None:
    rows = [row for row in PLANS if row["shows"] == shows]
    assert [stored_plans.describe(row, tmp_path) for row in rows] == [row["plan"] for row in rows]
