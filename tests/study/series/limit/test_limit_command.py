"""`loadgen limit`: what is refused before anything runs, and a search that is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from builders.loops import loop_over, loop_over_named, read_tables
from loadgen import cli
from loadgen.base import parsing
from loadgen.base.errors import UsageError
from loadgen.figures.objectives import Objective, Standing
from loadgen.study.limit_record import LimitRecord, LimitRun
from loadgen.study.series.limit.limit_command import continue_search, find_failing_search
from loadgen.study.series.limit.limit_search import check_budget
from loadgen.study.series.limit.search import Search

TABLES = read_tables("limit_command")
PACED = "jetson-thor/qwen3-8b-bf16"  # slow enough for a client of processes to hold any load
SLO = ["--slo", "ttft p99 < 500ms"]
ASKED = LimitRecord(
    name="bench", command=("loadgen", "limit", "--slo", "ttft p99 < 1s"), axis="rate",
    objectives=("ttft p99 < 1000 ms",), within=0.05, budget_s=60, fixed="digest", seed=3,
)  # fmt: skip
USERS = ["--turns", "2", "--users", "4", "--user-rate", "1"]


@loop_over_named(("argv", "message"), TABLES["refused"])
def test_a_wrong_command_ends_with_a_line_and_2(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["limit", "--run-dir", str(tmp_path), *argv]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@loop_over(
    ("standing", "asked", "holds"),
    [
        (Standing.NOT_SHOWN, {"slo", "failures", "suspect"}, {"slo"}),
        (Standing.FAILS, {"failures", "suspect"}, set()),
        (Standing.MEETS, {"slo"}, set()),
    ],
)
def test_an_objective_is_missed_where_no_load_passes(
    standing: Standing, asked: set[str], holds: set[str]
) -> None:
    run = LimitRun(number=0, load=1, directory="gone", standing=standing, reason="")
    passing = 1.0 if standing is Standing.MEETS else None
    record = ASKED.model_copy(update={"runs": (run,), "highest_passing": passing})
    assert find_failing_search(Path(), record, asked) == holds


@loop_over(
    ("start", "budget_s", "advised"),
    [(0.05, 100, "385m"), (7.7, 100, "155s"), (100, 100, "137s"), (100, 600, "")],
)
def test_a_budget_too_small_for_two_runs_gets_advice_that_works(
    start: float, budget_s: float, advised: str
) -> None:
    small = Search("rate", (Objective("ttft", 99, 500),), start, 0.01, 9e9, budget_s=budget_s)
    if advised:
        with pytest.raises(UsageError, match=f"--budget 100s is too small .*: give --budget {advised}$"):
            check_budget(small)
        small = replace(small, budget_s=parsing.parse_seconds(advised))
    check_budget(small)


def test_a_search_is_resumed_within_bounds_that_hold_its_runs() -> None:
    run = LimitRun(number=1, load=1.0, directory="", standing=Standing.MEETS, reason="")
    before = ASKED.model_copy(update={"runs": (run,)})
    asked = ASKED.model_copy(update={"lowest": 100.0})
    with pytest.raises(UsageError, match="the search has a run at 1: give bounds that hold it"):
        continue_search(before, asked)
    with pytest.raises(UsageError, match=r"resume with its flags: loadgen limit --slo 'ttft p99 < 1s'$"):
        continue_search(before, asked.model_copy(update={"fixed": "another"}))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_a_search_learned_is_kept_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.toml").write_text('input_len = 8\noutput_len = 4\nslo = "e2el p50 < 60s"\n', "utf-8")
    argv = ["limit", "--preset", PACED, "--profile", str(tmp_path / "short.toml"), "--seed", "3", "--quiet"]
    argv += ["--over", "concurrency", "--min-duration", "0.3s", "--budget", "36s", "--to", "4"]
    argv += ["--run-dir", str(tmp_path / "runs"), "--no-observe"]
    assert cli.main(argv) == 0
    (directory,) = (tmp_path / "runs").iterdir()
    record = LimitRecord.read(directory)
    assert [run.load for run in record.runs] == [1, 4]
    assert (record.ended, record.highest_passing) == ("everything-passes", 4)
    assert record.goodput_per_s is not None
    assert "limit: at least 4 at a time" in capsys.readouterr().out
    assert cli.main([*argv, "--resume", str(directory)]) == 0
    assert LimitRecord.read(directory).runs == record.runs
    for flag, value in (("slo", "e2el p50 < 9s"), ("model", "x"), ("transport", "httpx"), ("seed", "4")):
        assert cli.main([*argv, f"--{flag}", value, "--resume", str(directory)]) == 2
        assert "--resume: " in capsys.readouterr().err
