"""`loadgen limit`: what is refused before anything runs, and a search that is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen import cli
from loadgen.campaign.limit.command import read
from loadgen.campaign.limit.finding import check_budget
from loadgen.campaign.limit.trial import SearchSettings
from loadgen.errors import UsageError
from loadgen.metrics.objectives import Objective

SLO = ["--slo", "ttft p99 < 500ms"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param([], "--slo is missing", id="no objective"),
        pytest.param(["--slo", "tftt p99 < 1s"], "unknown figure 'tftt'", id="figure"),
        pytest.param(["--slo", "ttft p99 < 500"], "the limit has no unit", id="unit"),
        pytest.param(["--slo", "ttft p99 < 1s, ttft p99 < 2s"], "of the same percentile", id="twice"),
        pytest.param([*SLO, "--within", "5x"], "'5x' is no share from 0.1% to 100%", id="share"),
        pytest.param([*SLO, "--budget", "soon"], "'soon' is no time: write 90s, 30m or 2h", id="time"),
        pytest.param([*SLO, "--max-runs", "1"], "--max-runs", id="one run"),
        pytest.param([*SLO, "--from", "9", "--to", "3"], "give the lower one first", id="bounds"),
        pytest.param([*SLO, "--over", "concurrency", "--start", "1.5"], "whole numbers", id="half a stream"),
        pytest.param([*SLO, "--duration", "9"], "--duration does not apply to a search", id="duration"),
        pytest.param([*SLO, "--repeat", "3"], "--repeat does not apply to a search", id="repeat"),
        pytest.param([*SLO, "--profile", "qwen-speed"], "`loadgen ladder` measures it", id="ladder"),
        pytest.param([*SLO, "--schedule", "rate 2 for 60s"], "varies one rate", id="schedule"),
        pytest.param([*SLO, "--bursts", "5 every 10s"], "varies one rate", id="bursts"),
        pytest.param([*SLO, "--resume", "nowhere"], "is not a search's directory", id="nothing to resume"),
    ],
)
def test_a_wrong_command_ends_with_a_line_and_2(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["limit", "--run-dir", str(tmp_path), *argv]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_budget_too_small_for_two_runs_is_refused_with_the_sum() -> None:
    slow = SearchSettings(
        "rate", (Objective("ttft", 99, 500),), start=0.05, lowest=0.01, highest=1, budget_s=1800
    )
    with pytest.raises(UsageError, match=r"^--budget 30 min is too small for two runs: .* 2 h 55 min \(524 "):
        check_budget(slow)


@pytest.mark.realtime
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_a_search_learned_is_kept_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.toml").write_text('input_len = 8\noutput_len = 4\nslo = "e2el p50 < 60s"\n', "utf-8")
    argv = [
        "limit",
        "--preset",
        "instant",
        "--profile",
        str(tmp_path / "short.toml"),
        "--seed",
        "3",
        "--quiet",
    ]
    argv += ["--over", "concurrency", "--min-duration", "0.3s", "--to", "4"]
    argv += ["--run-dir", str(tmp_path / "runs"), "--no-observe"]
    assert cli.main(argv) == 0
    (directory,) = (tmp_path / "runs").iterdir()
    record = read(directory)
    assert [run.load for run in record.runs] == [1, 4]
    assert (record.ended, record.highest_passing) == ("everything-passes", 4)
    assert record.goodput_per_s is not None
    assert "limit: at least 4 at a time" in capsys.readouterr().out
    assert cli.main([*argv, "--resume", str(directory)]) == 0
    assert read(directory).runs == record.runs
    assert cli.main([*argv, "--slo", "e2el p50 < 9s", "--resume", str(directory)]) == 2
