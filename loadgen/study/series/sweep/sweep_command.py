"""`loadgen sweep`: one workload at many loads, lengths or server settings, each point a run."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import re
import shlex
import shutil
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base import files, signals
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import ExitCode, MeasureError, UsageError, decide_exit_code
from loadgen.base.parsing import integer_between
from loadgen.base.printing import print_one_object, print_text, refuse_without_result
from loadgen.base.secrecy import hide_argument_secrets, hide_secrets
from loadgen.base.signals import SIGNALS, Interrupts
from loadgen.base.structs import replace
from loadgen.base.tables import render_passage
from loadgen.base.text import clean_text, format_count, wrap_text
from loadgen.figures import objectives
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.report import run_directory
from loadgen.report.fail_conditions import check_fail_on, find_failing
from loadgen.report.load_identity import Load
from loadgen.report.result_file import OURS
from loadgen.report.run_directory import RESULT, Result
from loadgen.run.attach import collect_settings
from loadgen.run.command.bench import check, make_seed
from loadgen.run.command.options import Options, bench_parser, parse
from loadgen.run.session import Session
from loadgen.settings.validation import ServerSettings
from loadgen.study import load_table, sweep_record
from loadgen.study.load_table import LoadRow
from loadgen.study.series import point_runs, series_store
from loadgen.study.series.point_runs import MeasuredPoint, PointServers, Step
from loadgen.study.series.series_store import (
    FAILED,
    INTERRUPTED,
    SERVERS,
    UNFINISHED,
    SeriesStore,
    StoreError,
    split_own_flags,
)
from loadgen.study.series.sweep import grid
from loadgen.study.series.sweep.grid import Build, GridPoint, Variation
from loadgen.study.series.time_estimate import Pace, TimeLeft
from loadgen.study.sweep_record import FINISHED, SWEEP, PointState, SweepPoint, SweepRecord, format_value

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
        store = resume_sweep(request, None if resume == _LATEST else Path(resume))
    refuse_without_result(options.json, {"--dry-run": preview})
    if preview:
        print_text("\n".join(_preview_sweep(request, store)), sys.stdout)
        return ExitCode.FIGURES
    with print_one_object(options.json) as results:
        store = store or begin_sweep(request)
        code = _run_sweep(request, store, argv)
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
    return make_request(options, variation, partial(series_store.load_workload, options)), own


def _preview_sweep(request: SweepRequest, store: SweepStore | None) -> Iterator[str]:
    finished = [] if store is None else grid.list_finished(store.read_record().points, request.points)
    over = {point.number for point, _ in finished}
    done = f", {len(over)} are done" if over else ""
    yield f"{request.name}: {format_count(len(request.points), 'point')}{done}"
    for point in request.points:
        done = ", done" if point.number in over else ""
        yield f"  {point.number + 1:>3} {point.label}: {describe_amount(point.workload)}{done}"
    left = [point for point in request.points if point.number not in over]
    if request.options.launching.wanted:
        starts = format_count(len({tuple(point.serve.items()) for point in left}), "start")
        yield f"{starts} of a server, unless it ends by itself"
    timed = [(point, known.duration_s) for known, point in finished]
    time = forecast_time(left, timed, (), request.options).words
    yield f"estimated time: {time}; warm-up and starts come on top" if time else "estimated time: unknown"
    yield "nothing was started or written (--dry-run)"


def _run_sweep(request: SweepRequest, store: SweepStore, argv: Sequence[str]) -> int:
    """Measure what is left of a sweep, print its table and the next commands, and return the exit code."""
    quiet = request.options.quiet

    def say(line: str) -> None:
        if not quiet:
            print_text("\n".join(wrap_text(clean_text(line))), sys.stdout)

    resume = series_store.show_resume_command("sweep", argv, store.directory)
    try:
        record = finish_sweep(request, store, say)
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
    return render_passage(load_table.make_load_passage(drawn, notes))


def begin_sweep(request: SweepRequest) -> SweepStore:
    """Create the directory of a new sweep, below the run directory, with its record of planned points.

    Raises UsageError where it cannot.
    """
    base, now = Path(request.options.run_dir or "runs"), read_wall_clock()
    fixed = request.fixed  # of files that are there
    directory = files.create_directory(base, f"sweep-{request.name}", now)
    store = SweepStore(directory, begun_here=True)
    store.write_record(
        SweepRecord(
            name=request.name,
            command=tuple(hide_argument_secrets()),
            fixed=fixed,
            seed=make_seed(request.options).value,
            axis=request.variation.axis,
            points=tuple(map(plan_point, request.points)),
        )
    )
    return store


def plan_point(point: GridPoint | SweepPoint, attempts: int = 0) -> SweepPoint:
    """Return a point as a record has it before it is measured, and after it was begun `attempts` times."""
    names = ("number", "settings", "serve", "repeat")
    return SweepPoint(**{name: getattr(point, name) for name in names}, attempts=attempts)


def resume_sweep(request: SweepRequest, directory: Path | None) -> SweepStore:
    """Return the store of the same sweep in `directory`; if None, the latest such below the run directory.

    Nothing is written. Raises UsageError where there is none, or `directory` has another sweep.
    """
    fixed, others = request.fixed, list[str]()
    if directory is not None:
        store = SweepStore(directory)
        record = store.read_record()
        if why := _find_difference(record, request, fixed):
            began = shlex.join(record.command)
            raise UsageError(f"{directory} is another sweep: {why}; resume with its flags: {began}")
        return store
    base = Path(request.options.run_dir or "runs")
    for path in sorted(base.glob(f"*/{SWEEP}"), reverse=True):
        store = SweepStore(path.parent)
        with contextlib.suppress(UsageError):  # a damaged one
            if not (why := _find_difference(store.read_record(), request, fixed)):
                return store
            others.append(f"; of the latest, {store.directory}, {why}")
    raise UsageError(
        f"no sweep by this command to resume under {base}: give its flags, or its directory to --resume"
        + "".join(others[:1])
    )


def _find_difference(record: SweepRecord, request: SweepRequest, fixed: str) -> str:
    """Return why a record is of another sweep than `request`, whose hash is `fixed`; "" if it is the same."""
    seed = request.options.seed
    if seed is not None and seed != record.seed:
        return f"the seed is {record.seed}"
    if [*map(plan_point, record.points)] != [*map(plan_point, request.points)]:
        return "the points differ"
    return "" if record.fixed == fixed else "what is not varied differs, or a file that is read"


def finish_sweep(
    request: SweepRequest, store: SweepStore, say: Callable[[str], None], interrupts: Interrupts = SIGNALS
) -> SweepRecord:
    """Lock the store, measure what is left of a sweep, and return its record; `say` gets lines on points.

    Damaged runs are measured again. However it ends, the finished runs are written as vLLM's plots read them.
    Raises StoreError, MeasureError where a server that was not started here is gone, and KeyboardInterrupt.
    """
    with store.lock():
        record, options = store.read_record(), request.options
        seed = Seed(record.seed, chosen=options.seed is not None)
        servers = PointServers(options, request.asked, store.directory / SERVERS, say, interrupts)
        sweeping = Sweeping(store, record, request.points, servers, seed, say)
        sweeping.drop_damaged()
        try:
            with servers:
                sweeping.run()
        finally:
            write_layout(store, sweeping.record, request.points)
    return sweeping.record


POINTS = "points"


class SweepStore(SeriesStore):
    """One sweep's directory; its record decides what is finished.

    points/<point>/         the run of a finished point: a run directory
    vllm/                   the runs as `vllm bench sweep plot` reads them
    """

    def __init__(self, directory: Path, begun_here: bool = False) -> None:
        super().__init__(directory, "sweep", POINTS)
        self._begun_here = begun_here  # by this command or call, not by an earlier one

    def read_record(self) -> SweepRecord:
        """Read the record in `sweep.json`; raises UsageError if missing, damaged, or not a sweep's."""
        return sweep_record.read_record(self.directory / SWEEP, SweepRecord, sweep_record.FORMAT, "a sweep's")

    def remove_empty(self) -> bool:
        """Remove the directory if this process began it and no point was measured; return whether it did."""
        runs = (self.directory / name for name in (POINTS, FAILED, INTERRUPTED, UNFINISHED))
        planned = all(point.state == "planned" for point in self.read_record().points)
        empty = self._begun_here and planned and not any(place.exists() for place in runs)
        if empty:
            shutil.rmtree(self.directory, ignore_errors=True)
        return empty


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
        workloads = [point.workload for point in self.points]
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
    for point in points:
        objectives.check_workload(point.workload)
    check_fail_on(options.fail_on, [point.workload for point in points])
    first = points[0]
    name = build({**options.overrides, **first.settings}).name or "bench"
    if first.workload.ladder is not None:
        raise UsageError(f"{name} is a ladder of input lengths: run it with `loadgen ladder`")
    check(options)
    asked = collect_settings(options, [point.workload for point in points])
    if options.launching.wanted:
        from loadgen.run.launched_server import dry_run  # few sweeps start servers

        for serve in {tuple(point.serve.items()): point.serve for point in points}.values():
            dry_run(options, point_runs.overlay_settings(asked, serve))  # raises where it cannot be started
    return SweepRequest(name, options, variation, points, asked)


_MOST_STARTS = 2  # of a server with the same flags, before they are given up: a port may be taken in between
_LONG_S = 30.0  # of a point that is announced


@dataclass
class Sweeping:
    """The part of a sweep that is left; `record` is what came of its points so far."""

    store: SweepStore
    record: SweepRecord
    points: Sequence[GridPoint]
    servers: PointServers
    seed: Seed
    say: Callable[[str], None]  # a line for each point
    _queue: deque[GridPoint] = field(default_factory=deque)
    _starts: Counter[tuple[tuple[str, str], ...]] = field(default_factory=Counter)  # that failed, by flags

    @property
    def left(self) -> list[GridPoint]:
        """The points in the record that are not finished, in order; failed ones are among them."""
        over = zip(self.record.points, self.points, strict=True)
        return [planned for point, planned in over if point.state not in FINISHED]

    def drop_damaged(self) -> None:
        """Set finished points whose runs cannot be read to planned, and move those runs to `interrupted`."""
        for known, point in grid.list_finished(self.record.points, self.points):
            try:
                run_directory.load(self.store.directory / known.directory)
            except UsageError as error:
                self.say(f"{point.label}: its run cannot be read, and is measured again: {error}")
                with self.store.writing():
                    self.store.set_aside(POINTS, point.id)
                self._update(point, "planned")

    def run(self) -> None:
        """Measure every point that is left; a point that fails is recorded with its reason.

        Raises StoreError where nothing can be kept, KeyboardInterrupt, and MeasureError where a server that
        was not started here is gone: what is left can be resumed.
        """
        left = self.left
        self._queue.extend(left)
        if left and not self.servers.restartable:
            self.servers.session(left[0].workload)  # where it is not ready, there is no sweep to announce
        if left:
            begun = format_count(len(self.points), "point")
            begun = begun if len(left) == len(self.points) else f"{len(left)} of {begun} left"
            time = self._estimate(left).words
            self.say(f"{', '.join(filter(None, (begun, time)))}, in {self.store.directory}")
        point_runs.run_series(self, self.servers)

    def choose(self) -> Step[GridPoint] | None:
        """Return the next point, which stays queued; None if there is none."""
        point = self._queue[0] if self._queue else None
        return None if point is None else Step(point, point.workload, point.serve)

    def measure(self, step: Step[GridPoint], session: Session) -> MeasuredPoint:
        """Take a point from the queue, record that it is under way, announce it if long, and measure it.

        Each attempt has new prompts.
        """
        point = self._queue.popleft()
        before = self.record.points[point.number].attempts
        self._update(point, "under-way", attempts=before + 1)
        self._announce(point, before)
        seed = replace(self.seed, repeat=point.number, attempt=before)
        session = replace(session, heading=self._show_place(point))
        return point_runs.measure_point(session, point.workload, seed, self.store.begin(point.id))

    def _show_place(self, point: GridPoint) -> str:
        return f"[{point.number + 1}/{len(self.points)}] "

    def _estimate(self, left: Sequence[GridPoint]) -> TimeLeft:
        finished = grid.list_finished(self.record.points, self.points)
        done = [(planned, known.duration_s) for known, planned in finished]
        return forecast_time(left, done, self.servers.starts_s, self.servers.options)

    def _announce(self, point: GridPoint, attempts: int) -> None:
        if attempts:
            self.say(f"{self._show_place(point)}{point.label}: attempt {attempts + 1}, with new prompts")
        takes = self._estimate([point])
        if takes.unknown or takes.seconds >= _LONG_S:
            words = "" if point.workload.duration is not None else takes.words
            time = f", {words}" if words else ""
            self.say(
                f"{self._show_place(point)}{point.label}: measuring {describe_amount(point.workload)}{time}"
            )

    def keep(self, step: Step[GridPoint], outcome: MeasuredPoint) -> None:
        """Record a point as done, saturated or failed, move its run to its place, and print its line.

        Where a server does not start, the point stays queued; the second time all points with its flags fail.
        A point that a signal ended is planned again. Raises MeasureError where a server that was not started
        here is gone.
        """
        point = step.what
        if outcome.error is not None and outcome.unserved:
            if not self.servers.restartable:
                raise outcome.error
            # The end of its log follows on other lines.
            reason = "".join(hide_secrets(str(outcome.error)).splitlines()[:1])
            self._starts[tuple(point.serve.items())] += 1
            if self._starts[tuple(point.serve.items())] == _MOST_STARTS:
                for failed in [each for each in self._queue if each.serve == point.serve]:
                    self._queue.remove(failed)
                    self._update(failed, "failed", reason=reason)
                    self._report(failed, f"FAILED: {reason}")
            return
        if outcome.signal:
            self._update(point, "planned")
            return
        state: PointState = "failed" if outcome.reason else "done"
        directory, verdict, reason = "", "", outcome.reason
        if outcome.run is not None and outcome.directory is not None:
            if state == "done" and outcome.run.facts.saturated:
                state, reason = "saturated", outcome.run.facts.partial
            place = (self.store.fail if outcome.reason else self.store.finish)(point.id, outcome.directory)
            directory = str(place.relative_to(self.store.directory))
            verdict = outcome.run.verdict.level.value
        self._update(
            point,
            state,
            directory=directory,
            verdict=verdict,
            reason=reason,
            duration_s=round(outcome.duration_s, 3),
        )
        if outcome.run is None or outcome.reason:
            self._report(point, f"FAILED: {outcome.reason}")
        else:
            self._report(point, _summarize_run(outcome.run))
        if outcome.server_gone and not self.servers.restartable:
            raise MeasureError("the server answers no more: start it again")

    def _update(self, point: GridPoint, state: PointState, **outcome: object) -> None:
        known = self.record.points[point.number]
        changed = plan_point(known, known.attempts).model_copy(update={"state": state, **outcome})
        points = (*self.record.points[: point.number], changed, *self.record.points[point.number + 1 :])
        self.record = self.record.model_copy(update={"points": points})
        self.store.write_record(self.record)

    def _report(self, point: GridPoint, outcome: str) -> None:
        rest = self._estimate([planned for planned in self.left if planned.number > point.number])
        self.say(f"{self._show_place(point)}{point.label}: {outcome}{rest.ending}")


def describe_amount(workload: Profile) -> str:
    """Return how much a workload measures: its duration, else its sessions, else its requests."""
    if workload.duration:
        return f"{workload.duration:g} s"
    if workload.num_sessions is not None:
        return format_count(workload.num_sessions, "session")
    return "all requests" if workload.num_prompts is None else format_count(workload.num_prompts, "request")


def _summarize_run(run: Result) -> str:
    metrics = run.metrics
    tokens = f"{metrics.output_throughput_per_s:.1f} tok/s, "
    # An answer that comes whole has no first token.
    name, latency = ("TTFT", metrics.ttft) if metrics.times_tokens else ("E2EL", metrics.e2el)
    early = ", ended early: saturated" if run.facts.saturated else ""
    standing = load_table.judge_standing(run)
    slo = f"objectives: {standing}, " if standing else ""
    return f"{tokens}mean {name} {latency.mean_ms:.1f} ms, {slo}{run.verdict.level.value}{early}"


def forecast_time(
    left: Sequence[GridPoint],
    done: Sequence[tuple[GridPoint, float]],
    starts_s: Sequence[float],
    options: Options,
) -> TimeLeft:
    """Estimate the time of the points `left`, by the seconds of those done and of the starts so far.

    Each combination of server flags that no point done had costs one start.
    """
    served = [point.serve for point, _ in done]
    starts = {tuple(point.serve.items()) for point in left if point.serve not in served}
    taken = [(point.time(options), seconds) for point, seconds in done]
    pace = Pace(taken, [("", seconds) for seconds in starts_s])
    return pace.estimate_left((point.time(options) for point in left), [""] * len(starts))


VLLM, SUMMARY = "vllm", "summary.json"
_LONGEST_NAME = 150


def write_layout(store: SeriesStore, record: SweepRecord, points: Sequence[GridPoint]) -> None:
    """Write a folder for each combination: `run=N.json` for each repeat, and all in `summary.json`.

    `vllm bench sweep plot` and `plot_pareto` read every summary.json below the directory they are given.
    Raises StoreError.
    """
    folders = defaultdict[str, list[dict[str, Any]]](list)
    for known, point in grid.list_finished(record.points, points):
        folders[_name_combination(point)].append(_read_run(store.directory / known.directory, point))
    with store.writing():
        for name, runs in folders.items():
            place = store.directory / VLLM / name
            series_store.create_directory(place)
            files.write_text(place / SUMMARY, json.dumps(runs, indent=4))
            for run in runs:
                files.write_text(place / f"run={run['run_number']}.json", json.dumps(run, indent=4))


def _read_run(directory: Path, point: GridPoint) -> dict[str, Any]:
    """Read a run's result without loadgen's own part, and add the varied values and the repeat's number."""
    try:
        stored = json.loads((directory / RESULT).read_bytes())
        if not isinstance(stored, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{directory / RESULT} is missing or damaged: {error}") from None
    stored.pop(OURS, None)
    # As vLLM's own parameters have what was varied: a number or a switch where it is one.
    served = {name.replace("-", "_"): point_runs.parse_value(value) for name, value in point.serve.items()}
    varied = {**served, **point.settings}
    for name, value in varied.items():
        if isinstance(value, float) and not math.isfinite(value):
            varied[name] = str(value)  # JSON has no infinity
    return {**stored, **varied, "run_number": point.repeat}


def _name_combination(point: GridPoint) -> str:
    """Return a combination's folder name: SERVE--max_num_seqs=8-BENCH--max_concurrency=4.

    Other signs become `_`, and a name that changed, or is cut at 150 characters, ends with a hash.
    """
    parts = []
    for kind, table in (("SERVE", point.serve), ("BENCH", point.settings)):
        if table:
            named = (f"{name.replace('-', '_')}={format_value(value)}" for name, value in table.items())
            parts.append(f"{kind}--{'-'.join(named)}")
    whole = "-".join(parts)
    plain = re.sub(r"[^\w.=-]+", "_", whole, flags=re.ASCII)[:_LONGEST_NAME]
    if plain == whole:
        return plain
    digest = hashlib.blake2b(whole.encode("utf-8", "surrogateescape"), digest_size=4)
    return f"{plain}-{digest.hexdigest()}"
