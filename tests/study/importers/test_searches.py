"""Searches: the directories of sweeps and of searches for a limit are read with their runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders import made_runs
from builders.made_limits import limit_record, limit_run
from loadgen.base.errors import UsageError
from loadgen.records.journal import JOURNAL
from loadgen.study.importers import result_sources
from loadgen.study.limit_record import LIMIT, LimitRecord
from loadgen.study.sweep_record import SWEEP, SweepRecord


def kept_run(directory: Path) -> None:
    """A run in a directory of its own."""
    directory.mkdir(parents=True)
    made_runs.keep(made_runs.run(), directory)


def written(directory: Path, record: SweepRecord | LimitRecord) -> Path:
    """The directory with its record."""
    directory.mkdir(parents=True, exist_ok=True)
    name = SWEEP if isinstance(record, SweepRecord) else LIMIT
    (directory / name).write_text(record.model_dump_json())
    return directory


def cut_off(directory: Path) -> None:
    """What is left of a run that was killed: its journal."""
    directory.mkdir(parents=True)
    (directory / JOURNAL).write_bytes(b"")


def test_a_run_that_a_signal_cut_off_is_no_run_of_its_search(tmp_path: Path) -> None:
    for number in ("000", "001"):
        kept_run(tmp_path / "runs" / number)
    written(tmp_path, limit_record(runs=(limit_run(0, 4, 120, 130),)))
    read = result_sources.read_sources([str(tmp_path)])
    assert [run.source for run in read.limits[0].runs] == [str(tmp_path / "runs" / "000")]
    assert [run.source for run in read.reported] == [str(tmp_path / "runs" / "000")]
    assert read.outside_searches.reported == ()


@pytest.mark.parametrize(
    ("place", "record"),
    [
        pytest.param(".", limit_record(runs=(limit_run(0, 4, 120, 130),)), id="a search"),
        pytest.param(
            "cells/r0", limit_record(runs=(limit_run(0, 4, 120, 130),)), id="a search in a campaign's cell"
        ),
    ],
)
def test_a_run_that_was_killed_and_measured_again_is_no_complaint(
    tmp_path: Path, place: str, record: SweepRecord | LimitRecord
) -> None:
    directory = tmp_path / place
    kept_run(directory / "runs" / "000")
    for left in ("runs/001", "probe/000", "unfinished/001", "interrupted/000", "interrupted/r1/limit"):
        cut_off(directory / left)
    written(directory, record)
    (tmp_path / "limit.lock").write_text("")
    if place != ".":
        (tmp_path / "campaign.json").write_text("{}")
        cut_off(tmp_path / "interrupted" / "r1" / "limit" / "runs" / "000")
        cut_off(tmp_path / "unfinished" / "r1")
    read = result_sources.read_sources([str(tmp_path)])
    assert [run.source for run in read.reported] == [str(directory / "runs" / "000")]
    assert read.errors == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 3}, "was written by a newer loadgen: it has format 3, this one reads 2"),
        ({"format": 1, "loadgen": "0.1"},
         "was written by loadgen 0.1: it has format 1, this one reads 2: measure again, or use the"),
        ({"axis": "weight"}, "is damaged: axis: input should be 'concurrency' or 'rate'"),
        ({"format": "new"}, "is damaged: format: "),
        ({"quota": 3}, "was made by another version of loadgen: this one does not know 'quota'"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_read_is_an_error(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    stored = limit_record().model_dump(mode="json") | changes
    (tmp_path / LIMIT).write_text(json.dumps(stored))
    with pytest.raises(UsageError, match=message):
        result_sources.read_sources([str(tmp_path)])
