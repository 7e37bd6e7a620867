"""The public API of many runs: `loadgen.sweep` and `loadgen.limit`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack, cast

from msgspec import Meta

from loadgen.base import signals
from loadgen.base.errors import MeasureError
from loadgen.base.parsing import MOST_SECONDS
from loadgen.base.secrecy import hide_argument_secrets
from loadgen.base.signals import Interrupts
from loadgen.base.structs import replace
from loadgen.plan.profile import Profile
from loadgen.report import run_directory
from loadgen.report.run import Place, Run
from loadgen.run.command import keywords
from loadgen.run.command.api import BackgroundRun, Interrupted
from loadgen.run.command.options import Options
from loadgen.settings.keyword_types import BenchOptions
from loadgen.study.limit_record import Limit
from loadgen.study.series import grid, sweep_command
from loadgen.study.series.grid import Variation
from loadgen.study.series.limit import limit_command
from loadgen.study.series.sweep_command import SweepRequest
from loadgen.study.sweep_record import Sweep, SweepRecord, read_points

Load = Annotated[float, Meta(gt=0)]
Time = Annotated[float, Meta(gt=0, le=MOST_SECONDS)]


class SweepOptions(BenchOptions, total=False):
    """The options of `sweep`: what is varied, and those of `bench` for every point."""

    concurrency: list[int] | str  # requests in flight, as [1, 2, 4] or "1,2,4…512"
    rate: list[float] | str  # requests per second
    vary: dict[str, list[Any]]  # keys of a profile, each with its values: all combinations
    link: list[dict[str, list[Any]]]  # in each, keys whose values vary together
    repeats: Annotated[int, Meta(ge=1, le=1000)]  # of every point
    resume: str  # the directory of a sweep with the same options that goes on


class LimitOptions(BenchOptions, total=False):
    """The options of `limit`: the search's, and those of `bench` for every run; `slo` must be met."""

    over: Literal["rate", "concurrency"]
    within: Annotated[float, Meta(ge=0.001, le=1)]  # of the limit, that the interval may reach: 0.05 is 5 %
    budget_s: Time  # of all runs together
    max_runs: Annotated[int, Meta(ge=2, le=1000)]
    min_duration_s: Time  # of a run
    start: Load  # the first load
    lowest: Load  # no load below this one
    highest: Load  # no load above this one
    resume: str  # the directory of a search with the same options that goes on


class SweepInterrupted(Interrupted):
    """Ctrl-C ended a sweep: `sweep` has the points until then, None where no point was measured."""

    def __init__(self, sweep: Sweep | None) -> None:
        super().__init__(None)
        self.sweep = sweep


class LimitInterrupted(Interrupted):
    """Ctrl-C ended a search: `limit` is what was known by then, None where nothing was."""

    def __init__(self, limit: Limit | None) -> None:
        super().__init__(None)
        self.limit = limit


@keywords.add_keyword_signature(SweepOptions)
def sweep(
    base_url: str | Sequence[str] | None = None,
    profile: Place | Profile | None = None,
    **options: Unpack[SweepOptions],
) -> Sweep:
    """Measure one workload at many points: loads, lengths, any keys of a profile; docs/sweeps.md.

    Server and profile are named as of `bench`, whose options each run takes. A point that fails is a point
    with its reason. Nothing is printed, and only `run_dir` leaves something on disk: the sweep's directory,
    which `resume` goes on with.

    Raises LoadgenError where an option is wrong or no point could be measured, and SweepInterrupted on
    Ctrl-C. Where a server that was not started here is gone, what was measured is returned: see
    Sweep.partial.
    """
    given = keywords.check_keywords(cast("Mapping[str, Any]", options), SweepOptions, "sweep()")
    fields = [
        grid.make_linked_dimension("vary", {key: values}) for key, values in given.pop("vary", {}).items()
    ]
    fields += [grid.make_linked_dimension("link", lists) for lists in given.pop("link", ())]
    for name, key in (("rate", grid.RATE), ("concurrency", grid.CONCURRENCY)):
        if (loads := given.pop(name, None)) is not None:
            parse = grid.parse_loads if isinstance(loads, str) else grid.make_load_dimension
            fields.append(parse(name, key, loads))
    variation = Variation(tuple(fields), repeats=given.pop("repeats", 1))
    asked = keywords.make_options(base_url, given, variation.keys)

    def build(keys: Mapping[str, Any]) -> Profile:
        return keywords.make_profile(profile, keys, "sweep()")

    request = sweep_command.make_request(asked, variation, build)
    call = BackgroundRun(lambda interrupts: _make_sweep(request, interrupts))
    try:
        return call.wait()
    except KeyboardInterrupt:
        raise SweepInterrupted(call.partial) from None


@keywords.add_keyword_signature(LimitOptions)
def limit(
    base_url: str | Sequence[str] | None = None,
    profile: Place | Profile | None = None,
    **options: Unpack[LimitOptions],
) -> Limit:
    """Search for the highest load at which `slo` is met, as "ttft p90 < 500ms, tpot p90 < 50ms".

    Server and profile are named as of `bench`, whose options each run takes; docs/limits.md describes the
    search, its defaults and what may be promised. Nothing is printed, and only `run_dir` leaves something on
    disk: the search's directory, which `resume` goes on with. Limit.record.ended has why the search is over.

    Raises LoadgenError where an option is wrong or nothing can be measured, and LimitInterrupted on Ctrl-C.
    """
    given = keywords.check_keywords(cast("Mapping[str, Any]", options), LimitOptions, "limit()")
    own = {name: given.pop(name) for name in limit_command.OWN_KEYS if name in given}
    asked = keywords.make_options(base_url, given)
    workload = keywords.make_profile(profile, asked.overrides, "limit()")
    call = BackgroundRun(lambda interrupts: _make_search(asked, own, workload, interrupts))
    try:
        return call.wait()
    except KeyboardInterrupt:
        raise LimitInterrupted(call.partial) from None


def _make_sweep(request: SweepRequest, interrupts: Interrupts) -> Sweep:
    """Run a sweep in the calling thread and load its runs; what ends it early makes it partial."""
    resume = request.options.resume
    with _place_runs(request.options) as (options, written):
        request = replace(request, options=options)
        store = (
            sweep_command.begin_sweep(request)
            if resume is None
            else sweep_command.resume_sweep(request, Path(resume))
        )
        record, partial = SweepRecord.read(store.directory), ""
        try:
            with sweep_command.run_sweep(request, store, lambda line: None, interrupts) as execution:
                execution.run()
        except (MeasureError, signals.Stopped) as stop:
            if not store.list_finished():
                if resume is None:
                    store.remove_empty()
                raise
            partial = stop.summary if isinstance(stop, MeasureError) else str(stop)
        points = tuple(
            replace(point, run=_load_run(store.directory / point.directory, written))
            if point.directory
            else point
            for point in read_points(store.directory, record)
        )
        return Sweep(record, points, store.directory if written else None, partial)


def _make_search(
    options: Options, own: Mapping[str, Any], workload: Profile, interrupts: Interrupts
) -> Limit:
    """Search in the calling thread, and load its runs; raises Stopped if a signal came before the first."""
    with _place_runs(options) as (placed, written):
        found = limit_command.find_limit(
            placed, own, hide_argument_secrets(), lambda line: None, workload, interrupts
        )
        if found.signal and not found.record.runs:
            raise signals.Stopped(found.signal)
        tried = [run.directory for run in found.record.runs if run.directory]
        runs = tuple(_load_run(found.kept.directory / directory, written) for directory in tried)
        return Limit(found.record, runs, found.kept.directory if written else None)


def _load_run(directory: Path, written: bool) -> Run:
    """Load the run of a directory; its path is part of the run only if it is `written`, and so stays."""
    return Run(run_directory.load(directory), directory if written else None)


@contextmanager
def _place_runs(options: Options) -> Iterator[tuple[Options, bool]]:
    """Yield options with a directory to write to, and whether it stays: a temporary one is removed."""
    if options.run_dir is not None or options.resume is not None:
        yield options, True
        return
    with tempfile.TemporaryDirectory(prefix="loadgen-", ignore_cleanup_errors=True) as unseen:
        yield replace(options, run_dir=unseen), False
