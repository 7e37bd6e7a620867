"""`loadgen sweep`: one workload at many loads, lengths or server settings, each point a run."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from loadgen.base import signals
from loadgen.base.errors import ExitCode, MeasureError, UsageError, decide_exit_code
from loadgen.base.parsing import integer_between
from loadgen.base.printing import print_one_object, print_text, refuse_without_result
from loadgen.base.text import clean_text, format_count, wrap_text
from loadgen.plan.profile import Profile
from loadgen.report import run_directory
from loadgen.report.fail_conditions import find_failing
from loadgen.report.load_identity import Load
from loadgen.run.command.options import bench_parser, parse
from loadgen.study import load_table
from loadgen.study.load_table import LoadRow
from loadgen.study.series import series_store
from loadgen.study.series.series_store import StoreError, split_own_flags
from loadgen.study.series.sweep import grid, sweep_run
from loadgen.study.series.sweep.grid import GridPoint, Variation
from loadgen.study.series.sweep.sweep_run import SweepRequest, SweepStore
from loadgen.study.sweep_record import FINISHED, SweepRecord

_LATEST = ""  # --resume without a directory
_MOST_REPEATS = 1000
_NEGATIVE = re.compile(r"-\.?\d")  # begins a list of numbers, which is refused by its values, not as a flag


# Flags that are none of `bench`, by their names in the parser.
_OWN = ("concurrency", "rate", "vary", "link", "serve_param", "point_repeats", "resume", "preview")


def main(argv: Sequence[str]) -> int:
    """Run `loadgen sweep`, new or resumed, and return its exit code, 0 if any point was measured.

    --dry-run only prints the points. Raises LoadgenError.
    """
    request, own = read_request(argv)
    options, store, resume, preview = request.options, None, own.get("resume"), own.get("preview", False)
    if resume is not None:
        store = sweep_run.resume_sweep(request, None if resume == _LATEST else Path(resume))
    refuse_without_result(options.json, {"--dry-run": preview})
    if preview:
        print_text("\n".join(_preview_sweep(request, store)), sys.stdout)
        return ExitCode.FIGURES
    with print_one_object(options.json) as results:
        store = store or sweep_run.begin_sweep(request)
        code = _run_sweep(request, store)
        results.append(store.read_record().model_dump(mode="json"))
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
    return sweep_run.make_request(options, variation, partial(series_store.load_workload, options)), own


def _preview_sweep(request: SweepRequest, store: SweepStore | None) -> Iterator[str]:
    finished = [] if store is None else grid.list_finished(store.read_record().points, request.points)
    over = {point.number for point, _ in finished}
    done = f", {len(over)} are done" if over else ""
    yield f"{request.name}: {format_count(len(request.points), 'point')}{done}"
    for point in request.points:
        done = ", done" if point.number in over else ""
        yield f"  {point.number + 1:>3} {point.label}: {sweep_run.describe_amount(point.workload)}{done}"
    left = [point for point in request.points if point.number not in over]
    if request.options.launching.wanted:
        starts = format_count(len({tuple(point.serve.items()) for point in left}), "start")
        yield f"{starts} of a server, unless it ends by itself"
    timed = [(point, known.duration_s) for known, point in finished]
    time = sweep_run.describe_time(sweep_run.forecast_time(left, timed, (), request.options))
    yield f"estimated time: {time}; warm-up and starts come on top" if time else "estimated time: unknown"
    yield "nothing was started or written (--dry-run)"


def _run_sweep(request: SweepRequest, store: SweepStore) -> int:
    """Measure what is left of a sweep, print its table and the next commands, and return the exit code."""
    quiet = request.options.quiet

    def say(line: str) -> None:
        if not quiet:
            print_text("\n".join(wrap_text(clean_text(line))), sys.stdout)

    resume = series_store.show_resume_command(store.directory)
    try:
        record = sweep_run.finish_sweep(request, store, say)
    except KeyboardInterrupt as stop:
        _print_points(request, store, store.read_record())
        print_text(f"interrupted; resume with: {resume}", sys.stdout)
        return decide_exit_code(signal=signals.read_number(stop))
    except StoreError as error:
        raise StoreError(f"{error}; when it can be written: {resume}") from None
    except MeasureError as error:
        if store.remove_empty():
            raise
        _print_points(request, store, store.read_record())
        raise MeasureError(f"{error.summary}; resume with: {resume}") from None
    _print_points(request, store, record)
    states = [point.state for point in record.points]
    if not any(state in FINISHED for state in states):
        raise MeasureError(f"every point failed, the first: {record.points[0].reason}")
    if failed := states.count("failed"):
        print_text(f"measure {format_count(failed, 'failed point')} again: {resume}", sys.stdout)
    return decide_exit_code(failed_on=_find_failing(store.directory, record, request.options.failing))


def _find_failing(directory: Path, record: SweepRecord, asked: Collection[str]) -> set[str]:
    """Find which of the conditions `asked` hold at any point; a point without a run is one of failures."""
    found: set[str] = set()
    for point in record.points if asked else ():
        if point.state in FINISHED:
            found |= find_failing(run_directory.load(directory / point.directory), asked)
        elif "failures" in asked:
            found.add("failures")
    return found


def _print_points(request: SweepRequest, store: SweepStore, record: SweepRecord) -> None:
    if table := draw_sweep_table(store.directory, record, request.points):
        print_text(f"\n{table}", sys.stdout)
    over = sum(point.state in FINISHED for point in record.points)
    print_text(f"{over} of {len(record.points)} points are measured: {store.directory}", sys.stdout)
    if any(point.directory for point in record.points):
        print_text(f"to see:  loadgen report --html {shlex.quote(str(store.directory))}", sys.stdout)


_FAILED = "FAILED"


def draw_sweep_table(directory: Path, record: SweepRecord, points: Sequence[GridPoint]) -> str:
    """Return the table of the points that are over, read from their directories, in 80 columns.

    Repeats are merged to one row; a point of which every repeat failed has a row FAILED; reasons and damaged
    runs are notes below. "" if no run could be read.
    """
    rows: dict[str, list[LoadRow]] = {}
    failed: dict[str, Profile] = {}
    notes: list[str] = []
    for point, planned in zip(record.points, points, strict=True):
        of = replace(planned, repeat=0).label
        if point.state in FINISHED:
            try:
                run = run_directory.load(directory / point.directory)
                rows.setdefault(of, []).append(load_table.make_load_row(run))
            except UsageError as error:
                notes.append(str(error))
        elif point.state == "failed":
            failed[of] = planned.workload
        if point.reason:
            outcome = _FAILED if point.state == "failed" else "ended early"
            notes.append(f"{planned.label}: {outcome}: {point.reason}")
    order = dict.fromkeys(replace(planned, repeat=0).label for planned in points)
    measured = [row for of in rows.values() for row in of]
    if not measured:
        return ""
    drawn: list[LoadRow] = []
    for of in order:
        drawn += load_table.merge_repeats(rows[of]) if of in rows else []
        if of in failed and of not in rows:
            first, workload = measured[0], failed[of]
            load = Load(
                name=workload.name,
                requests=workload.num_prompts,
                max_concurrency=workload.max_concurrency,
                request_rate_per_s=workload.request_rate,
                asked_input_len=workload.input_len,
                asked_output_len=workload.output_len,
                duration_s=workload.duration,
            )
            drawn.append(LoadRow(first.name, load, verdict=_FAILED, simulated=first.simulated))
    return load_table.render_load_table(drawn, notes)
