"""Bench series: a `loadgen bench` of several runs, and the tables of their speeds, loads and repeats."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from loadgen.base.errors import SIGNALLED
from loadgen.base.passages import render_passage
from loadgen.base.printing import print_text
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.report.result_file import write_result
from loadgen.report.run_directory import Result
from loadgen.run.command import progress
from loadgen.run.command.bench import run_once
from loadgen.run.session import Session
from loadgen.settings.validation import ServerSettings
from loadgen.study import load_table, repeats
from loadgen.study.load_table import LoadRow
from loadgen.study.series.ladder_command import LadderClimb
from loadgen.study.series.point_runs import PointServers
from loadgen.study.speed import ladder_rows, speed_rows


def run_all(
    session: Session, profiles: Sequence[Profile], seed: Seed, results: list[Mapping[str, Any]]
) -> int:
    """Run each profile until a signal ends one; print their common tables, and return the worst exit code.

    A profile that is named again gets new prompts. With --json each run's object is added to `results`.
    """
    worst = 0
    tabled: list[Result] = []
    loads: list[LoadRow] = []
    for position, workload in enumerate(profiles):
        # A profile named twice is a repeat: with the same prompts it would measure the cache.
        before = [earlier.name for earlier in profiles[:position]].count(workload.name)
        first = replace(seed, repeat=before * session.options.repeat)
        if workload.ladder is not None:
            ladder = LadderClimb.begin(workload, session.options)
            servers = PointServers(
                session.options, ServerSettings(), ladder.directory, progress.warn, given=session
            )
            climb = partial(LadderClimb.climb_on, servers=servers, seed=first)
            code, runs = ladder.finish(climb), list[Result]()
        else:
            code, runs = _run_repeats(session, workload, first, results)
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


def _run_repeats(
    session: Session, workload: Profile, first: Seed, results: list[Mapping[str, Any]]
) -> tuple[int, list[Result]]:
    """Run a profile --repeat times, with new prompts each, and print and write the spreads of several."""
    worst = 0
    runs: list[Result] = []
    for repeat in range(session.options.repeat):
        if runs:
            gc.collect()  # it is off while anything is measured: see cli.run
        code, run, directory = run_once(
            session, workload, replace(first, repeat=first.repeat + repeat), results
        )
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
