"""`loadgen sweep`: one workload at many loads, lengths or server settings, each point a run."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base import files
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import ExitCode, MeasureError, UsageError, decide_exit_code
from loadgen.base.parsing import integer_between
from loadgen.base.passages import render_passage
from loadgen.base.printing import print_one_object, print_text, refuse_without_result
from loadgen.base.secrecy import hide_argument_secrets
from loadgen.base.signals import SIGNALS, Interrupts
from loadgen.base.structs import replace
from loadgen.base.text import clean_text, format_count, wrap_text
from loadgen.figures import objectives
from loadgen.plan.request_sources import Seed
from loadgen.report import run_directory
from loadgen.report.run import check_fail_on, find_failing
from loadgen.run.attach import collect_settings
from loadgen.run.command.bench import check, make_seed
from loadgen.run.command.options import Options, bench_parser, parse
from loadgen.run.launched_server import dry_run
from loadgen.settings.validation import ServerSettings
from loadgen.study import load_table
from loadgen.study.load_table import LoadRow
from loadgen.study.series import grid, point_runs, series_store
from loadgen.study.series.campaign.arms import (
    Planned,
    Start,
    describe_progress,
    estimate_left,
    list_cells,
    name_server,
    read_pace,
)
from loadgen.study.series.campaign.execution import Execution, describe_amount, finish_series
from loadgen.study.series.campaign.steps import Arm
from loadgen.study.series.grid import Build, GridPoint, Variation
from loadgen.study.series.series_store import SeriesStore, split_own_flags
from loadgen.study.series.time_estimate import Pace
from loadgen.study.sweep_record import (
    FINISHED,
    POINTS,
    SWEEP,
    SweepRecord,
    SweptPoint,
    list_unfinished,
    name_point,
    read_points,
)

_LATEST = ""  # --resume without a directory
_MOST_REPEATS = 1000
_NEGATIVE = re.compile(r"-\.?\d")  # begins a list of numbers, which is refused by its values, not as a flag


# Flags that are none of `bench`, by their names in the parser.
_OWN = ("concurrency", "rate", "vary", "link", "serve_param", "point_repeats", "preview")


def main(argv: Sequence[str]) -> int:
    """Run `loadgen sweep`, new or resumed, and return its exit code, 0 if any point was measured.

    --dry-run only prints the points. Raises LoadgenError.
    """
    request, own = read_request(argv)
    options, store, resume, preview = request.options, None, request.options.resume, own.get("preview", False)
    if resume is not None:
        store = resume_sweep(request, None if resume == _LATEST else Path(resume))
    refuse_without_result(options.json, {"--dry-run": preview})
    if preview:
        print_text("\n".join(_preview_sweep(request, store)), sys.stdout)
        return ExitCode.FIGURES
    with print_one_object(options.json) as results:
        store = store or begin_sweep(request)
        code = _run_sweep(request, store, argv, is_new=resume is None)
        record = SweepRecord.read(store.directory)
        points = [point.json() for point in read_points(store.directory, record)]
        results.append({**record.model_dump(mode="json"), "points": points})
        return code


def sweep_parser() -> argparse.ArgumentParser:
    """Make the parser of `bench`, with what is varied."""
    parser = bench_parser()
    parser.prog = "loadgen sweep"
    parser.usage = "%(prog)s --concurrency LIST|--rate LIST|--vary KEY=LIST [FLAG ...]"
    parser.description = (
        "Measure one workload at many points, each a run of its own in the sweep's directory."
    )
    parser.epilog = (
        "A point lasts as --num-prompts or --duration has it, or the profile's duration; else a rate is held "
        "for 60 s and a concurrency for 10 requests or sessions each, 50 at least. Each point gets new "
        "prompts, and the prefix cache is emptied before it where the server can. A rate at which the server "
        "falls further and further behind ends early. The other flags are those of `loadgen bench`."
    )
    parser._negative_number_matcher = _NEGATIVE
    parser.conflict_handler = "resolve"  # --repeat and --dry-run mean the sweep's points here
    group = parser.add_argument_group("what is varied (docs/sweeps.md)")
    # fmt: off
    add = group.add_argument
    add("--concurrency", metavar="LIST", help="requests in flight, as 1,2,4…512: … goes on to the last")
    add("--rate", metavar="LIST", help="requests per second, as 0.05,0.1…2 (with --concurrency: the grid)")
    add("--vary", action="append", metavar="KEY=LIST",
        help="values of any key of a profile, as input_len=512,2048; with ; between values that hold commas "
        "(repeatable: the grid)")
    add("--link", action="append", nargs="+", metavar="KEY=LIST",
        help="lists that vary together, as input_len=512,2048 output_len=128,64")
    add("--serve-param", action="append", metavar="FLAG=LIST",
        help="a flag of the server that --launch starts, as max-num-seqs=8,16,32: it is started again only "
        "where its flags differ")
    add("--repeat", dest="point_repeats", type=integer_between(1, _MOST_REPEATS), metavar="N",
        help="measure every point N times, one whole pass after the other")
    add("--resume", nargs="?", const=_LATEST, metavar="DIR",
        help="go on with a sweep of the same flags: its directory, or the latest in --run-dir; points that "
        "failed are measured again")
    add("--dry-run", dest="preview", action="store_true",
        help="show the points, their order and the time, then exit")
    # fmt: on
    return parser


def read_request(argv: Sequence[str]) -> tuple[SweepRequest, dict[str, Any]]:
    """Read the sweep of a command line, and its own flags that were given; raises UsageError.

    Concurrency varies fastest, then rate.
    """
    options, own = split_own_flags(parse(argv, sweep_parser()), _OWN)
    fields = [grid.parse_link([text], "--vary") for text in own.get("vary", ())]
    fields += map(grid.parse_link, own.get("link", ()))
    for name, key in (("rate", grid.RATE), ("concurrency", grid.CONCURRENCY)):
        if name in own:
            fields.append(grid.parse_loads(f"--{name}", key, own[name]))
    serve = tuple(map(grid.parse_serve_param, own.get("serve_param", ())))
    variation = Variation(tuple(fields), serve, own.get("point_repeats", 1))
    return make_request(options, variation, partial(series_store.load_workload, options)), own


def _preview_sweep(request: SweepRequest, store: SeriesStore | None) -> Iterator[str]:
    """Yield the lines of --dry-run: each point, which are done, the server's starts and the time."""
    starts = plan_starts(request)
    over = set() if store is None else store.list_finished()
    done = f", {len(over)} are done" if over else ""
    yield f"{request.name}: {format_count(len(request.points), 'point')}{done}"
    for number, planned in enumerate(list_cells(starts), 1):
        done = ", done" if planned.id in over else ""
        yield f"  {number:>3} {planned.label}: {describe_amount(planned.workload)}{done}"
    if request.options.launching.wanted:
        left = sum(any(planned.id not in over for planned in start.planned) for start in starts)
        yield f"{format_count(left, 'start')} of a server, unless it ends by itself"
    pace = Pace() if store is None else read_pace(store, starts)
    time = estimate_left(pace, starts, over).words
    yield f"estimated time: {time}; warm-up and starts come on top" if time else "estimated time: unknown"
    yield "nothing was started or written (--dry-run)"


def _run_sweep(request: SweepRequest, store: SeriesStore, argv: Sequence[str], is_new: bool) -> int:
    """Measure what is left, print the points, and return the exit code; raises MeasureError if all failed."""
    quiet = request.options.quiet

    def say(line: str) -> None:
        if not quiet:
            print_text("\n".join(wrap_text(clean_text(line))), sys.stdout)

    resume = series_store.show_resume_command("sweep", argv, store.directory)
    show = partial(_print_points, request, store)
    with run_sweep(request, store, say) as execution:
        code = finish_series(execution, resume, is_new, show=show)
    if code:
        return code
    points = show()
    if not any(point.state in FINISHED for point in points):
        raise MeasureError(f"every point failed, the first: {points[0].reason}")
    if failed := sum(point.state == "failed" for point in points):
        print_text(f"measure {format_count(failed, 'failed point')} again: {resume}", sys.stdout)
    asked, found = request.options.failing, set[str]()
    for point in points if asked else ():
        if point.state in FINISHED:
            found |= find_failing(run_directory.load(store.directory / point.directory), asked)
        elif "failures" in asked:  # a point without a run is one of failures
            found.add("failures")
    return decide_exit_code(failed_on=found)


def _print_points(request: SweepRequest, store: SeriesStore) -> tuple[SweptPoint, ...]:
    """Print the table of a sweep's points and how many are finished; return the points, read from disk."""
    points = read_points(store.directory, SweepRecord.read(store.directory))
    if table := draw_sweep_table(store.directory, points):
        print_text(f"\n{table}", sys.stdout)
    print_text(f"{describe_progress(store, plan_starts(request))}: {store.directory}", sys.stdout)
    if any(point.directory for point in points):
        print_text(f"to see:  loadgen report --html {shlex.quote(str(store.directory))}", sys.stdout)
    return points


def draw_sweep_table(directory: Path, points: Sequence[SweptPoint]) -> str:
    """Return the table of the points that are over, read from their directories, in 80 columns.

    Repeats are merged to one row; points that failed or were ended early, and damaged runs, are notes below.
    "" if no run could be read.
    """
    rows, notes = list[LoadRow](), list_unfinished(point for point in points if point.state != "planned")
    for point in points:
        if point.state in FINISHED:
            try:
                rows.append(load_table.make_load_row(run_directory.load(directory / point.directory)))
            except UsageError as error:
                notes.append(str(error))
    if not rows:
        return ""
    return render_passage(load_table.make_load_passage(load_table.merge_repeats(rows), notes))


def begin_sweep(request: SweepRequest) -> SeriesStore:
    """Create the directory of a new sweep, below the run directory, with its record; raises UsageError."""
    base, now = Path(request.options.run_dir or "runs"), read_wall_clock()
    fixed = request.fixed  # of files that are there
    store = open_store(files.create_directory(base, f"sweep-{request.name}", now))
    store.write_record(
        SweepRecord(
            name=request.name,
            command=tuple(hide_argument_secrets()),
            fixed=fixed,
            seed=make_seed(request.options).value,
            axis=request.variation.axis,
            points=tuple(point for point, _ in request.points),
        )
    )
    return store


def open_store(directory: Path) -> SeriesStore:
    """Return the store of a sweep's directory."""
    return SeriesStore(directory, "sweep", POINTS)


def resume_sweep(request: SweepRequest, directory: Path | None) -> SeriesStore:
    """Return the store of the same sweep in `directory`; if None, the latest such below the run directory.

    Nothing is written. Raises UsageError where there is none, or `directory` has another sweep.
    """
    fixed, others = request.fixed, list[str]()
    if directory is not None:
        record = SweepRecord.read(directory)
        if why := _find_difference(record, request, fixed):
            began = shlex.join(record.command)
            raise UsageError(f"{directory} is another sweep: {why}; resume with its flags: {began}")
        return open_store(directory)
    base = Path(request.options.run_dir or "runs")
    for path in sorted(base.glob(f"*/{SWEEP}"), reverse=True):
        with contextlib.suppress(UsageError):  # a damaged one
            if not (why := _find_difference(SweepRecord.read(path.parent), request, fixed)):
                return open_store(path.parent)
            others.append(f"; of the latest, {path.parent}, {why}")
    raise UsageError(
        f"no sweep by this command to resume under {base}: give its flags, or its directory to --resume"
        + "".join(others[:1])
    )


def _find_difference(record: SweepRecord, request: SweepRequest, fixed: str) -> str:
    """Return why a record is of another sweep than `request`, whose hash is `fixed`; "" if it is the same."""
    seed = request.options.seed
    if seed is not None and seed != record.seed:
        return f"the seed is {record.seed}"
    if record.points != tuple(point for point, _ in request.points):
        return "the points differ"
    return "" if record.fixed == fixed else "what is not varied differs, or a file that is read"


@contextlib.contextmanager
def run_sweep(
    request: SweepRequest, store: SeriesStore, say: Callable[[str], None], interrupts: Interrupts = SIGNALS
) -> Iterator[Execution]:
    """Lock the store and yield the execution of what is left of a sweep; `say` gets lines on points."""
    with store.lock():
        starts, options = plan_starts(request), request.options
        seed = Seed(SweepRecord.read(store.directory).seed, chosen=options.seed is not None)
        done, pace = store.list_finished(), read_pace(store, starts)
        yield Execution(store, starts, seed, done, pace, say, options.quiet, interrupts)


def plan_starts(request: SweepRequest) -> tuple[Start, ...]:
    """Plan a sweep as one arm, whose server is started again only where its flags differ."""
    starts, options = list[Start](), request.options
    for serve, group in groupby(request.points, key=lambda each: each[0].serve):
        points = list(group)
        server = f"{name_server(options)} {name_point({}, serve)}".strip()
        profiles = tuple(workload for _, workload in points)
        settings = point_runs.overlay_settings(request.asked, serve)
        planned = [
            Planned(
                workload,
                options,
                (point.settings, serve),  # a point takes as long as its repeats, else as the others
                id=point.id,
                label=point.label,
                number=point.number,
            )
            for point, workload in points
        ]
        arm = Arm(request.name, server, {}, options, profiles, {}, settings)
        starts.append(Start(arm, "sweep", tuple(planned)))
    return tuple(starts)


class SweepRequest(msgspec.Struct, frozen=True):
    """A sweep as its command or its caller has it."""

    name: str  # the workload's, without what is varied
    options: Options
    variation: Variation
    points: tuple[GridPoint, ...]
    asked: ServerSettings  # of a server that is started, without what is varied

    @property
    def fixed(self) -> str:
        """A hash of all that changes a figure: workloads without their names, their files, and options."""
        workloads = [workload for _, workload in self.points]
        measured = [workload.model_dump(mode="json", exclude={"name"}) for workload in workloads]
        return series_store.digest_options(self.options, measured, series_store.hash_files(workloads))


def make_request(options: Options, variation: Variation, build: Build) -> SweepRequest:
    """Make the sweep of the options and check every point, starting nothing; raises UsageError.

    `build` makes the workload of the options' keys and a point's over them. The prefix cache is emptied
    before each point, and saturated ones end early.
    """
    if len(options.profiles) > 1:
        raise UsageError("--profile: one workload is swept at a time")
    saves = options.saves, "the run directories have every figure"
    series_store.refuse_flags(options, "a sweep", {"--save-result": saves})
    options = replace(options, reset_cache=True, stop_when_saturated=True)
    grid.check_variation(variation, options.overrides, options.launching.wanted)
    points = grid.list_points(variation, options.overrides, build)
    workloads = [workload for _, workload in points]
    for workload in workloads:
        objectives.check_workload(workload)
    check_fail_on(options.fail_on, workloads)
    name = build({**options.overrides, **points[0][0].settings}).name or "bench"
    if workloads[0].ladder is not None:
        raise UsageError(f"{name} is a ladder of input lengths: run it with `loadgen ladder`")
    check(options)
    asked = collect_settings(options, workloads)
    if options.launching.wanted:
        for serve in {tuple(point.serve.items()): point.serve for point, _ in points}.values():
            dry_run(options, point_runs.overlay_settings(asked, serve))  # raises where it cannot be started
    return SweepRequest(name, options, variation, points, asked)
