"""Bench series: a `loadgen bench` of several runs, and the tables of their speeds, loads and repeats."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.base.errors import SIGNALLED, ExitCode, UsageError, decide_exit_code
from loadgen.base.passages import render_passage
from loadgen.base.printing import print_text
from loadgen.base.structs import replace
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.report import run_directory, run_writer
from loadgen.report.result_file import OURS, write_result
from loadgen.report.run import find_failing
from loadgen.report.run_directory import RESULT, Result
from loadgen.run.command import progress
from loadgen.run.command.bench import run_once
from loadgen.run.session import Session
from loadgen.settings.validation import ServerSettings
from loadgen.study import load_table, repeats
from loadgen.study.load_table import LoadRow
from loadgen.study.series.ladder_command import LadderClimb
from loadgen.study.series.point_runs import PointServers, explain_unfinished
from loadgen.study.series.series_store import DAMAGE, read_json, show_resume_command, strip_resume
from loadgen.study.speed import ladder_rows, speed_rows


def run_all(
    session: Session,
    profiles: Sequence[Profile],
    seed: Seed,
    results: list[Mapping[str, Any]],
    argv: Sequence[str],
) -> int:
    """Run each profile until a signal ends one; print their common tables, and return the worst exit code.

    A profile that is named again gets new prompts. With --json each run's object is added to `results`. With
    --resume, the runs that an earlier command measured whole are read; where some are missing in the end,
    `argv`, the command line that was given, is printed with --resume. Raises LoadgenError.
    """
    series = BenchSeries(session, seed, results)
    if session.options.resume is not None:
        series.read_earlier(Path(session.options.resume), profiles)
    code = int(ExitCode.NOTHING)
    try:
        code = series.run(profiles)
    finally:  # also where the server has ended, or nothing can be written
        if series.places and code in (*SIGNALLED, ExitCode.NOTHING, ExitCode.UNWRITTEN):
            resume = show_resume_command("bench", argv, series.places[0])
            print_text(f"some runs are missing; resume with: {resume}", sys.stdout)
    return code


@dataclass
class BenchSeries:
    """The runs of a `loadgen bench` of several: those that are measured, and those there were before."""

    session: Session
    seed: Seed
    results: list[Mapping[str, Any]]  # each run's JSON, with --json
    earlier: list[tuple[Path, Result]] = field(default_factory=list)  # also those that were cut off
    places: list[Path] = field(default_factory=list)  # of the runs that are over

    def read_earlier(self, named: Path, profiles: Sequence[Profile]) -> None:
        """Read the runs of these profiles next to the named one, with its seed; raises UsageError if none."""
        options, wanted = self.session.options, list(map(_strip_server, profiles))
        seed = run_directory.load(named).facts.seed
        if options.seed not in (None, seed):
            raise UsageError(f"--resume: the seed of its runs is {seed}: leave --seed out")
        places = [place for place in sorted(named.parent.iterdir()) if _read_seed(place) == seed]
        runs = [(place, run_directory.load(place)) for place in places]
        self.earlier = [(place, run) for place, run in runs if run.facts.profile in wanted]
        if named not in (place for place, _ in self.earlier):
            raise UsageError(f"--resume: {named} is a run of another workload: give the command that made it")
        self.seed = Seed(seed, chosen=options.seed is not None)
        options = replace(options, run_dir=str(named.parent))
        self.session = replace(self.session, options=options, command=strip_resume(self.session.command))

    def run(self, profiles: Sequence[Profile]) -> int:
        """Run each profile until a signal ends one; print their common tables, return the worst exit code."""
        options, worst = self.session.options, 0
        tabled: list[Result] = []
        loads: list[LoadRow] = []
        for position, workload in enumerate(profiles):
            # A profile named twice is a repeat: with the same prompts it would measure the cache.
            before = [earlier.name for earlier in profiles[:position]].count(workload.name)
            first = replace(self.seed, repeat=before * options.repeat)
            if workload.ladder is not None:
                ladder = LadderClimb.begin(workload, options)
                servers = PointServers(
                    options, ServerSettings(), ladder.directory, progress.warn, given=self.session
                )
                climb = partial(LadderClimb.climb_on, servers=servers, seed=first)
                code, runs = ladder.finish(climb), list[Result]()
            else:
                code, runs = self._run_repeats(workload, first)
            worst = max(worst, code)
            if workload.table is not None:
                tabled += runs
            elif len(profiles) > 1:
                loads += map(load_table.make_load_row, runs)
            if worst in SIGNALLED:
                break
        if tabled:
            rows = list(map(ladder_rows.make_throughput_row, tabled))
            print_text("\n" + speed_rows.draw_throughput(rows, "text"), sys.stdout, end="")
        if len({row.load for row in loads}) > 1:
            drawn = render_passage(load_table.make_load_passage(load_table.merge_repeats(loads)))
            print_text("\n" + drawn, sys.stdout, end="")
        return worst

    def _run_repeats(self, workload: Profile, first: Seed) -> tuple[int, list[Result]]:
        """Run a profile --repeat times, with new prompts each, and print and write the spreads of several."""
        worst = 0
        runs: list[Result] = []
        for repeat in range(self.session.options.repeat):
            if runs:
                gc.collect()  # it is off while anything is measured: see cli.run
            code, run, directory = self._run_once(workload, replace(first, repeat=first.repeat + repeat))
            self.places.append(directory)
            worst = max(worst, code)
            if worst in SIGNALLED:
                break
            runs.append(run)
        if len(runs) > 1:
            spreads = repeats.measure_spreads([run.metrics for run in runs], [run.steady for run in runs])
            if spreads:
                print_text("\n" + render_passage(repeats.make_spread_passage(spreads)), sys.stdout, end="")
            path = directory.with_name(f"{directory.name}-repeats.json")
            write_result(path, repeats.encode_spreads(spreads))
            print_text(f"repeats: {path}", sys.stdout)
        return worst, runs

    def _run_once(self, workload: Profile, seed: Seed) -> tuple[int, Result, Path]:
        """Measure a run as `bench.run_once` does, or read it where an earlier command measured it whole."""
        asked, given = _strip_server(workload), self.session.options
        attempts = [
            (place, run)
            for place, run in self.earlier
            if run.facts.repeat == seed.repeat and run.facts.profile == asked
        ]
        if not attempts or not _is_whole(*attempts[-1]):
            # A server that was there may have the prompts of an earlier attempt in its cache.
            seed = replace(seed, attempt=0 if given.base_url is None else len(attempts))
            return run_once(self.session, workload, seed, self.results)
        directory, run = attempts[-1]
        print_text(f"run directory: {directory} (measured before)", sys.stdout)
        if given.json:
            self.results.append(run_writer.encode_run(run, given.save_detailed))
        return decide_exit_code(failed_on=find_failing(run, given.failing)), run, directory


def _strip_server(workload: Profile) -> Profile:
    return workload.model_copy(update={"server": None})


def _read_seed(place: Path) -> int | None:
    """Read the seed of a run, from its journal if it has no result; None where there is no run to read."""
    with contextlib.suppress(*DAMAGE, UsageError):
        stored = place / RESULT
        ours = read_json(stored)[OURS] if stored.exists() else {"seed": run_directory.load(place).facts.seed}
        return int(ours["seed"])
    return None


def _is_whole(place: Path, run: Result) -> bool:
    """Whether a run counts: it has a result, was not cut short, and its server was there to its end."""
    if explain_unfinished(run) or not (place / RESULT).exists():
        return False
    return bool(run.records.ok[run.records.end_ns.argmax()])
