"""`loadgen limit`: the highest load of a server that still meets objectives, with its interval."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.base import files, parsing, signals
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import UsageError, decide_exit_code
from loadgen.base.parsing import integer_between, number_between, parse_with
from loadgen.base.passages import print_passages
from loadgen.base.printing import print_one_object, print_text
from loadgen.base.secrecy import hide_argument_secrets
from loadgen.base.signals import Interrupts
from loadgen.base.structs import replace
from loadgen.base.text import quote_value
from loadgen.figures import objectives
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.report import run_directory
from loadgen.report.run import find_failing
from loadgen.run.attach import collect_settings
from loadgen.run.command import bench
from loadgen.run.command.options import Options, bench_parser, parse
from loadgen.settings.validation import validate_table
from loadgen.study import limit_record
from loadgen.study.limit_record import BUDGET_KEY, LOAD_KEYS, LimitRecord, LimitTable
from loadgen.study.series import series_store
from loadgen.study.series.limit.limit_search import ANSWERS, LimitSearch
from loadgen.study.series.point_runs import PointServers
from loadgen.study.series.series_store import SeriesStore, StoreError
from loadgen.verdict.verdict import Level

_MOST_RUNS = 1000
_LEAST_S, _LEAST_SHARE = 0.001, 0.001
OWN_KEYS = tuple(LimitTable.model_fields)  # of a search, not of each run
_LOAD_FLAGS = ("--start", "--from", "--to")  # of the first load, the lowest and the highest


def main(argv: Sequence[str]) -> int:
    """Run `loadgen limit`, print its answer, and return the exit code.

    It is 0 if the search found a limit, or that a bound is one, in runs that are not all INVALID.
    """
    options, own = series_store.split_own_flags(parse(argv, limit_parser()), OWN_KEYS)
    with print_one_object(options.json) as results:
        command = hide_argument_secrets(["loadgen", "limit", *argv])
        found = find_limit(options, own, command, partial(series_store.print_progress, options.quiet))
        record = found.record
        results.append(record.model_dump(mode="json"))
        print_text("", sys.stdout)
        print_passages([limit_record.make_search_passage(record)])
        print_text(f"search: {found.kept.directory}", sys.stdout)
        if found.signal:
            resume = series_store.show_resume_command("limit", argv, found.kept.directory)
            print_text(f"interrupted; resume with: {resume}", sys.stdout)
            return decide_exit_code(signal=found.signal)
        ended_with_one = record.ended is not None and record.limit is not None
        measured = ended_with_one or record.ended in ANSWERS
        measured = measured and any(run.verdict != Level.INVALID for run in record.runs)
        failed_on = find_failing_search(found.kept.directory, record, options.failing) if measured else set()
        return decide_exit_code(measured=measured, whole=record.ended != "server-died", failed_on=failed_on)


def find_failing_search(directory: Path, record: LimitRecord, asked: Collection[str]) -> set[str]:
    """Find which --fail-on conditions in `asked` hold for the first run at the highest load that is met.

    Without such a run only `slo` does, with one it never does; raises UsageError where the run is damaged.
    """
    serving = record.list_serving()
    if not serving:
        return {"slo"} & set(asked)
    asked = set(asked) - {"slo"}  # it passes by the search's own rule
    return find_failing(run_directory.load(directory / serving[0].directory), asked) if asked else set()


def find_limit(
    options: Options,
    given: Mapping[str, Any],
    command: Sequence[str],
    say: Callable[[str], None],
    workload: Profile | None = None,
    interrupts: Interrupts = signals.SIGNALS,
) -> LimitSearch:
    """Search for the limit to its end, in a new directory or the resumed one, and return the search.

    `given` are fields of the request. Without a `workload` it is the one that the options name,
    and messages name flags. The prefix cache is emptied before each run, and saturated ones end early; `say`
    gets lines. Raises UsageError or MeasureError.
    """
    check_limit_options(options)
    names, budget = (_LOAD_FLAGS, "--budget") if workload is None else (LOAD_KEYS, BUDGET_KEY)
    if workload is None:
        if len(options.profiles) > 1:
            raise UsageError("--profile: one workload per search")
        workload = series_store.load_workload(options, options.overrides)
        objectives.check_workload(workload)
    fields = {**given, "slo": given.get("slo") or workload.slo}
    goals, resume = objectives.parse_objectives(fields["slo"]), options.resume
    if not goals:
        raise UsageError("--slo is missing: give what must hold, as --slo 'ttft p90 < 500ms'")
    bench.check(options)
    request = validate_table(LimitTable, fields, "limit")
    request.check(workload, names)
    axis, shown = request.choose_axis(workload), list(map(str, goals))
    content = workload.model_dump(mode="json"), series_store.hash_files([workload])
    asked = request.make_record(
        axis,
        shown,
        name=workload.name or "search",
        command=tuple(command),
        fixed=series_store.digest_options(options, content, axis, shown),
        seed=bench.make_seed(options).value,
    )
    say(f"objectives: {', '.join(asked.objectives)}")
    if resume is not None:
        kept = SeriesStore(Path(resume), "limit")
        LimitRecord.read(kept.directory)  # before its lock is made: there may be no search
    else:
        base = Path(options.run_dir or "runs")
        kept = SeriesStore(files.create_directory(base, "limit", read_wall_clock()), "limit")
    inside = replace(options, reset_cache=True, stop_when_saturated=True)
    asked_settings = collect_settings(options, [workload])
    with kept.lock(), PointServers(inside, asked_settings, kept.directory, say, interrupts) as servers:
        if resume is not None:
            asked = continue_search(LimitRecord.read(kept.directory), asked, options.seed)
        seed = Seed(asked.seed, chosen=options.seed is not None)
        found = LimitSearch(servers, workload, goals, asked, kept, seed, say, budget)
        try:
            found.find()
        except StoreError as error:
            if names is LOAD_KEYS:
                raise
            resume = series_store.show_resume_command("limit", command[2:], kept.directory)
            raise StoreError(f"{error}; when it can be written: {resume}") from None
    return found


def continue_search(before: LimitRecord, asked: LimitRecord, seed: int | None = None) -> LimitRecord:
    """Return `before` with the width, budget and number of runs of `asked`, and its bounds if given.

    Raises UsageError if the seed, workload, server or objectives differ, or a run lies outside the bounds.
    """
    if seed is not None and seed != before.seed:
        raise UsageError(f"--resume: the seed of the search is {before.seed}: leave --seed out")
    if before.fixed != asked.fixed:
        raise UsageError(
            "--resume: workload, server or objectives differ from those of the search: start another, or "
            f"resume with its flags: {shlex.join(before.command)}"
        )
    update: dict[str, object] = {
        "within": asked.within, "budget_s": asked.budget_s, "most_runs": asked.most_runs, "ended": None,
        "notes": (),
    }  # fmt: skip
    given = {name: getattr(asked, name) for name in ("start", "lowest", "highest", "least_run_s")}
    update |= {name: value for name, value in given.items() if value is not None}
    resumed = before.model_copy(update=update)
    for load in [run.load for run in before.runs]:
        if not (resumed.lowest or 0.0) <= load <= (resumed.highest or math.inf):
            raise UsageError(f"--resume: the search has a run at {load:g}: give bounds that hold it")
    return resumed


def limit_parser() -> argparse.ArgumentParser:
    """Make the parser of `bench`, with the flags of a search."""
    parser = bench_parser()
    parser.prog, parser.conflict_handler = "loadgen limit", "resolve"
    parser.usage = "%(prog)s --slo 'ttft p90 < 500ms' [--over WHAT] [FLAG ...]"
    parser.description = (
        "Find the highest load at which percentiles of latency or speed stay within limits, with a 95 % "
        "interval, by whole runs: docs/limits.md. A run of P99 needs 459 requests, one of P90 44."
    )
    parser.epilog = "The other flags are those of `loadgen bench`."
    group = parser.add_argument_group("the search")
    # fmt: off
    add, load = group.add_argument, number_between(1e-6, 1e9)
    add("--slo", metavar="LIST",
        help="objectives to stay within, as 'ttft p90 < 500ms, tps_user p10 > 30', mlperf/llama3.1-8b or "
        "agentperf/gpt-oss-120b-1 (default: of the profile)")
    add("--over", choices=("rate", "concurrency"),
        help="load that is varied (default: concurrency for a profile with only that, else rate)")
    add("--within", type=parse_with(partial(parsing.parse_share, least=_LEAST_SHARE)), metavar="P%",
        help="end once the interval reaches no further than this from the limit (default 5%%)")
    add("--budget", dest="budget_s", type=parse_with(_parse_seconds), metavar="TIME",
        help="time of all runs together, as 30m or 2h (default 30m)")
    add("--max-runs", type=integer_between(2, _MOST_RUNS), metavar="N", help="most runs (default 12)")
    add("--min-duration", dest="min_duration_s", type=parse_with(_parse_seconds), metavar="TIME",
        help="least time of a run (default: 60 s, or 10 times the P99 of E2EL if that is longer)")
    add("--start", type=load, metavar="LOAD",
        help="first load (default: from requests sent one at a time)")
    add("--from", dest="lowest", type=load, metavar="LOAD", help="lowest load that is tried")
    add("--to", dest="highest", type=load, metavar="LOAD", help="highest load that is tried")
    # fmt: on
    return parser


def _parse_seconds(text: str) -> float:
    seconds = parsing.parse_seconds(text)
    if not _LEAST_S <= seconds <= parsing.YEAR_S:
        raise ValueError(f"{quote_value(text)}: give a time from 1ms to a year")
    return seconds


def check_limit_options(options: Options) -> None:
    """Raise UsageError for a flag of `loadgen bench` that a search would not heed, with advice."""
    shortest = "--min-duration is the least time of a run"
    never = "an INVALID run never passes"
    varied = "the search varies the load: --start, --from and --to bound it, --over names what is varied"
    series_store.refuse_flags(
        options,
        "a search",
        {
            "--repeat": (options.repeat > 1, "the search repeats runs itself"),
            "--duration": ("duration" in options.overrides, shortest),
            "--num-prompts": ("num_prompts" in options.overrides, shortest),
            "--max-duration": (options.max_duration_s is not None, shortest),
            "--request-rate": ("request_rate" in options.overrides, varied),
            "--max-concurrency": ("max_concurrency" in options.overrides, varied),
            "--save-result": (options.saves, "limit.json and the run directories have every figure"),
            "--strict": (options.strict, never),
            "--fail-on invalid": ("invalid" in options.fail_on, never),
            "--dry-run": (options.launching.dry_run, "`loadgen bench --dry-run` shows the server's command"),
        },
    )
