"""A search whose server dies or that a signal ends goes on; what `loadgen limit` refuses before it runs."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from builders import made_runs
from builders.loops import loop_over, loop_over_named, read_tables
from builders.made_runs import run
from loadgen import cli
from loadgen.base import parsing
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.signals import Stopped
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Client
from loadgen.figures.objectives import Objective, Standing, parse_objectives
from loadgen.host.cpu_use import CpuUse
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.report.run import Run
from loadgen.report.run_directory import Result
from loadgen.run.command.options import Options
from loadgen.run.session import Session
from loadgen.settings.validation import ServerSettings
from loadgen.study.limit_record import LimitRecord, LimitRun, SearchEnd
from loadgen.study.series.limit import limit_command, limit_search
from loadgen.study.series.limit.limit_command import continue_search, find_failing_search
from loadgen.study.series.limit.limit_search import (
    LimitSearch,
    check_budget,
    make_entry,
    make_trial,
    set_load,
)
from loadgen.study.series.limit.search import NextRun, Search
from loadgen.study.series.point_runs import MeasuredPoint, PointServers
from loadgen.study.series.series_store import SeriesStore

TABLES = read_tables("limit_search")

OBJECTIVES = parse_objectives("e2el p50 < 400ms")
TINY = Profile(name="tiny", input_len=8, output_len=4, max_concurrency=1)
ASKED = LimitRecord(
    name="tiny", command=("loadgen", "limit"), axis="concurrency", objectives=("e2el p50 < 400 ms",),
    within=0.05, budget_s=None,
)  # fmt: skip
MOST = 10  # requests in flight at which a request still takes 200 ms, and not 800
SAVED: list[Path] = []  # where runs are saved that several tests copy
DIED = MeasuredPoint(reason="the server ended", duration_s=1.0, server_gone=True)


@dataclass
class FewStarts(PointServers):
    """Servers that start as often as `starts` says; `serve` opens one, and `close` ends it."""

    starts: int = 1
    serving: bool = False

    def session(self, workload: Profile, serve: Mapping[str, str] | None = None) -> Session:
        if not self.serving:
            if not self.starts:
                raise MeasureError("it does not start")
            self.starts -= 1
            self.serving = True
        return cast(Session, None)

    def close(self) -> None:
        self.serving = False


@dataclass
class Played:
    """Measures in no time; what is `spoiled`, by the number of the run, comes to that instead, once."""

    spoiled: dict[int, MeasuredPoint | Stopped] = field(default_factory=dict)
    seeds: list[Seed] = field(default_factory=list)

    def __call__(self, session: Session, workload: Profile, seed: Seed, place: Path) -> MeasuredPoint:
        self.seeds.append(seed)
        point = self.spoiled.pop(seed.repeat, None)
        if isinstance(point, Stopped):
            raise point
        if point is not None:
            return point
        streams = workload.max_concurrency or 1
        made, saved = _saved(streams, seed.repeat)
        directory = shutil.copytree(saved, place / f"{seed.repeat:03}")
        return MeasuredPoint(made, directory, duration_s=made.metrics.duration_s)


@cache
def _saved(streams: int, number: int) -> tuple[Result, Path]:
    """A run with so many requests in flight, and a directory that holds it: to save one takes long."""
    speed = 2.0 if streams <= MOST else 0.5
    made = made_runs.run(requests=60, concurrency=streams, speed=speed, seed=number)
    return made, Run(made).save(SAVED[0] / f"{streams}-{number}")


@pytest.fixture(scope="module", autouse=True)
def _place_of_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    SAVED[:] = [tmp_path_factory.mktemp("runs")]


def search(
    directory: Path, monkeypatch: pytest.MonkeyPatch, record: LimitRecord = ASKED,
    spoiled: Mapping[int, MeasuredPoint | Stopped] | None = None, ours: bool = True, starts: int = 1,
    played: Played | None = None,
) -> LimitSearch:  # fmt: skip
    """A search that has ended, with a server of ours or not, that starts so often."""
    options = Options(quiet=True, preset="instant" if ours else None, base_url=None if ours else "http://h")
    servers = FewStarts(options, ServerSettings(), directory, print, starts=starts)
    monkeypatch.setattr(limit_search, "measure_point", played or Played(dict(spoiled or {})))
    kept = SeriesStore(directory, "limit")
    ended = LimitSearch(servers, TINY, OBJECTIVES, record, kept, Seed(3), lambda _: None)
    with kept.lock():
        assert ended.find() == LimitRecord.read(directory)
    return ended


def test_a_search_ends_between_what_passes_and_what_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = search(tmp_path, monkeypatch).record
    assert (record.ended, record.highest_passing, record.lowest_failing) == ("within", MOST, MOST + 1)
    assert record.alone_s == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("at", [0, 2])
def test_a_run_that_was_cut_has_other_prompts_when_it_is_made_again(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played({at: Stopped(signal.SIGINT)})
    stopped = search(tmp_path, monkeypatch, played=played).record
    assert stopped.attempts == 1
    search(tmp_path, monkeypatch, limit_command.continue_search(stopped, ASKED), played=played)
    seeds = [(seed.repeat, seed.attempt) for seed in played.seeds]
    assert seeds[: at + 1] == [(number, 0) for number in range(at + 1)]
    assert seeds[at + 1 : at + 3] == [(at, 1), (at + 1, 0)]


def test_a_run_whose_server_died_at_its_end_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_runs.run(requests=60, concurrency=16, speed=2.0, failed=1)
    directory = Run(made).save(tmp_path / "runs" / "003")
    died = MeasuredPoint(made, directory, "the server ended during the run", 1.0, server_gone=True)
    record = search(tmp_path, monkeypatch, spoiled={3: died}, ours=False).record
    assert [run.passed for run in record.runs] == [True, True, False]
    assert (record.highest_passing, record.lowest_failing) == (4, 16)


def test_a_server_of_ours_that_dies_fails_its_run_and_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = search(tmp_path, monkeypatch, spoiled={3: DIED}, starts=2).record
    died = record.runs[2]
    assert (died.load, died.passed, died.reason) == (16, False, "the server ended")
    assert len(record.runs) > 3
    assert (record.ended, record.highest_passing, record.lowest_failing) == ("within", MOST, MOST + 1)


@loop_over(("ours", "notes"), [(False, ()), (True, ("it does not start",))])
def test_a_server_that_is_gone_for_good_ends_the_search(
    ours: bool, notes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = search(tmp_path, monkeypatch, spoiled={3: DIED}, ours=ours).record
    assert (record.ended, record.notes) == ("server-died", notes)
    assert [run.passed for run in record.runs] == [True, True, False]
    assert (record.highest_passing, record.lowest_failing) == (4, 16)


def test_an_objective_whose_latency_no_answer_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_token = made_runs.run(requests=5, tokens=1, concurrency=1)
    probed = MeasuredPoint(one_token, duration_s=1.0)
    asked = ASKED.model_copy(update={"objectives": ("tpot p50 < 400 ms",)})
    monkeypatch.setattr(limit_search, "measure_point", lambda *_: probed)
    servers = FewStarts(Options(preset="instant"), ServerSettings(), tmp_path, print)
    kept = SeriesStore(tmp_path, "limit")
    goals = parse_objectives("tpot p50 < 400ms")
    searching = LimitSearch(servers, TINY, goals, asked, kept, Seed(3), lambda _: None)
    with pytest.raises(UsageError, match=r"no response has this figure \(one token has no TPOT or ITL\)"):
        searching.find()


@loop_over(("end", "lowest_failing"), [("client-limited", 20.0), ("client-limited", None), ("within", None)])
def test_a_search_that_the_client_limited_points_to_the_client(
    end: SearchEnd, lowest_failing: float | None, tmp_path: Path
) -> None:
    standing = Standing.NOT_SHOWN
    limited = LimitRun(number=1, load=9, directory="", standing=standing, reason="late", disturbed=True)
    record = ASKED.model_copy(update={"runs": (limited,), "lowest_failing": lowest_failing})
    cause = limit_search._find_cause(record, end, OBJECTIVES, tmp_path)
    assert (cause["bottleneck"], cause["evidence"]) == ("client", "late")


def test_a_rate_is_searched_for_without_the_cap_of_its_workload() -> None:
    capped = Profile(name="capped", input_len=8, output_len=4, request_rate=2.0, max_concurrency=4)
    made = set_load(capped, "rate", NextRun(16.0, 60.0))
    assert (made.request_rate, made.max_concurrency, made.duration) == (16.0, None, 60.0)


CLIENTS = {
    "stopped": Client(transport="wire", cpu_s=1.0, wall_s=2.0, stopped_s=9.0),
    "late": Client(transport="httpx", cpu_s=59.0, wall_s=60.0),
}
BUSY = CpuUse(duration_s=20, cpus=2, server=0.9, client=0.2, others=0.8, waiting=0.9)


def make_run(client: str = "", cpu: str = "", asked: dict[str, Any] | None = None, **given: Any) -> Result:
    """A run of that client, on CPUs that are busy, as if its profile had asked for something else."""
    facts: dict[str, Any] = {"client": CLIENTS[client]} if client else {}
    facts |= {"cpu_use": BUSY} if cpu else {}
    made = run(**given, **facts)
    if client == "late":
        made.records.unstamped_reads[:] = 20
    profile = made.facts.profile.model_copy(update=asked or {})
    return Result(replace(made.facts, profile=profile), made.records)


@loop_over(("given", "slo", "standing", "reason"), TABLES["runs"])
def test_what_a_run_shows(given: dict[str, Any], slo: str, standing: str, reason: str) -> None:
    goals = parse_objectives(slo)
    row = make_entry(1, 4, MeasuredPoint(make_run(**given), duration_s=1.0), goals, "runs/1")
    assert (row.standing, row.passed) == (standing, standing == "meets")
    assert row.reason.startswith(reason) if reason else row.reason == ""
    assert row.disturbed is reason.startswith("disturbed")
    assert row.ran_out is ("left" in reason)
    trial = make_trial(row, goals)
    assert (trial.standing, trial.beyond) == (standing, standing == "fails")
    assert LimitRun.model_validate_json(row.model_dump_json()) == row


PACED = "jetson-thor/qwen3-8b-bf16"  # slow enough for a client of processes to hold any load
SLO = ["--slo", "ttft p99 < 500ms"]
RATED = LimitRecord(
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
    record = RATED.model_copy(update={"runs": (run,), "highest_passing": passing})
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
    before = RATED.model_copy(update={"runs": (run,)})
    asked = RATED.model_copy(update={"lowest": 100.0})
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
