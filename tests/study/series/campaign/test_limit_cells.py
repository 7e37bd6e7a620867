"""Limit cells: a campaign whose cells are searches, from its file to the comparison of the limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders.campaign_files import INSTANT, cells, failures, the_directory, written
from builders.loops import loop_over, read_tables
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.study.importers import result_sources
from loadgen.study.series.campaign import arms, campaign_file

TABLES = read_tables("limit_cells")
PACED = {"preset": "jetson-thor/qwen3-8b-bf16"}  # a slow one: few requests are simulated
LIMIT: dict[str, Any] = {
    "slo": "ttft p50 < 10s", "over": "concurrency", "max_runs": 3, "min_duration_s": 0.3, "budget_s": 10,
    "highest": 2,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_each_cell_is_a_search_and_the_limits_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, {**PACED, "name": "A"}, {**PACED, "name": "B"}, repeats=1, limit=LIMIT)
    assert cli.main(["campaign", str(path)]) == 0
    place = the_directory()
    assert failures(place) == {}
    assert cells(place) == ["r0-A-embedded-tiny", "r0-B-embedded-tiny"]
    read = result_sources.read_sources([str(place)])
    ends = [(limit.name, limit.record.ended) for limit in read.limits]
    assert ends == [("A", "everything-passes"), ("B", "everything-passes")]
    arms_of = {run.cell.arm for limit in read.limits for run in limit.runs if run.cell}
    assert arms_of == {"A on embedded", "B on embedded"}
    out = capsys.readouterr().out
    assert "Highest concurrency at ttft p50 < 10000 ms" in out
    assert "A: limit: at least 2 at a time" in out
    assert "2 of 2 cells are finished" in out


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_budget_too_small_is_advised_by_the_files_keys(tmp_path: Path) -> None:
    path = written(tmp_path, {**PACED, "name": "A"}, repeats=1, limit=LIMIT | {"budget_s": 3})
    assert cli.main(["campaign", str(path)]) == 1
    (reason,) = failures(the_directory()).values()
    assert reason.startswith("budget_s = 3 is too small for two runs: at 1 at a time one takes")
    assert ": give budget_s = " in reason


def test_a_dry_run_estimates_searches_by_their_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = LIMIT | {"budget_s": 600}
    path = written(tmp_path, {**INSTANT, "name": "A"}, {**INSTANT, "name": "B"}, repeats=2, limit=limit)
    assert cli.main(["campaign", str(path), "--dry-run"]) == 0
    assert "\nestimated time: at most 40 min of searches; starts" in capsys.readouterr().out


@loop_over(("changes", "message"), TABLES["refused_tables"])
def test_what_is_wrong_with_a_limit_names_the_file_and_the_key(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    table = {key: value for key, value in (LIMIT | changes).items() if value is not None}
    with pytest.raises(UsageError, match=rf"c\.toml: {message}"):
        campaign_file.load_campaign(written(tmp_path, INSTANT, limit=table))


@loop_over(("workload", "changes", "message"), TABLES["refused_loads"])
def test_what_cannot_be_searched_is_refused_before_anything_starts(
    tmp_path: Path, workload: str, changes: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, INSTANT, profiles=[workload], limit=LIMIT | changes)
    (tmp_path / "ramp.toml").write_text('schedule = "rate 2 for 60s"\n', "utf-8")
    with pytest.raises(UsageError, match=rf"checkpoint 'instant': \[limit\], profile {message}"):
        arms.make_arms(campaign_file.load_campaign(path), path)


def test_the_commands_of_a_preview_are_searches(tmp_path: Path) -> None:
    path = written(tmp_path, INSTANT, limit=LIMIT)
    loaded = campaign_file.load_campaign(path)
    (arm,) = arms.make_arms(loaded, path)
    words = arms.render_command(arm, 5, 7, loaded.limit)
    assert words.startswith("loadgen limit --preset=instant")
    assert "--slo 'ttft p50 < 10s' --within 5% --budget 10s --max-runs 3 --over concurrency" in words
    assert words.endswith("--min-duration 0.3s --to 2")
    assert "--repeat" not in words
