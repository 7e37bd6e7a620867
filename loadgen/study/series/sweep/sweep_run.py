"""Sweep run: a sweep from its request to its last point, begun or resumed; the command and the API use it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from loadgen.base.errors import UsageError
from loadgen.base.secrecy import command_line
from loadgen.plan.plan_inputs import Seed
from loadgen.report import run_directory, run_place
from loadgen.report.sweep_record import FINISHED, SWEEP, SweepPoint, SweepRecord, blank
from loadgen.run.bench import seeded
from loadgen.run.signals import SIGNALS, Interrupts
from loadgen.study.series.points.point_servers import PointServers
from loadgen.study.series.sweep import vllm_layout
from loadgen.study.series.sweep.grid import GridPoint
from loadgen.study.series.sweep.sweep_request import SweepRequest
from loadgen.study.series.sweep.sweep_store import SERVERS, SweepStore, updated
from loadgen.study.series.sweep.sweeping import Sweeping


def begun(request: SweepRequest) -> SweepStore:
    """The directory of a sweep that begins, with its record; raises UsageError where there can be none."""
    base, now = Path(request.options.run_dir or "runs"), run_place.now()
    fixed = request.fixed  # of files that are there
    directory = run_place.create_directory(base, f"sweep-{request.name}", now)
    store = SweepStore(directory, begun_here=True)
    store.write(
        SweepRecord(
            name=request.name,
            command=tuple(command_line()),
            fixed=fixed,
            seed=seeded(request.options).value,
            axis=request.variation.axis,
            points=planned(request.points),
        )
    )
    return store


def planned(points: Sequence[GridPoint]) -> tuple[SweepPoint, ...]:
    """The points as a record has them before any is measured."""
    return tuple(
        SweepPoint(number=point.number, settings=point.settings, serve=point.serve, repeat=point.repeat)
        for point in points
    )


def resumed(request: SweepRequest, directory: Path | None) -> SweepStore:
    """The directory of the same sweep that goes on, None: the latest such one in its run directory.

    Raises UsageError where there is none, or where it was begun by another command.
    """
    if directory is None:
        return _latest(request, Path(request.options.run_dir or "runs"))
    store = SweepStore(directory)
    record = store.record()
    if why := _difference(record, request, request.fixed):
        began = shlex.join(record.command)
        raise UsageError(f"{directory} is another sweep: {why}; resume with its flags: {began}")
    return store


def _latest(request: SweepRequest, base: Path) -> SweepStore:
    """The sweep of this request that began last under `base`; raises UsageError."""
    others: list[str] = []
    fixed = request.fixed
    for path in sorted(base.glob(f"*/{SWEEP}"), reverse=True):
        store = SweepStore(path.parent)
        with contextlib.suppress(UsageError):  # a damaged one
            if not (why := _difference(store.record(), request, fixed)):
                return store
            others.append(f"; of the latest, {store.directory}, {why}")
    raise UsageError(
        f"no sweep by this command to resume under {base}: give its flags, or its directory to --resume"
        + "".join(others[:1])
    )


def _difference(record: SweepRecord, request: SweepRequest, fixed: str) -> str:
    """Why a record is of another sweep; "" where it is of this one."""
    seed = request.options.seed
    if seed is not None and seed != record.seed:
        return f"the seed is {record.seed}"
    if [_identity(point) for point in record.points] != [_identity(p) for p in planned(request.points)]:
        return "the points differ"
    return "" if record.fixed == fixed else "what is not varied differs, or a file that is read"


def _identity(point: SweepPoint) -> tuple[object, ...]:
    """What a point is, whatever came of it."""
    return point.number, point.settings, point.serve, point.repeat


def finished(
    request: SweepRequest, store: SweepStore, say: Callable[[str], None], interrupts: Interrupts = SIGNALS
) -> SweepRecord:
    """Measure what is left of a sweep, and give what came of its points; `say` gets a line for each.

    Raises StoreError, MeasureError where a server that is not ours is gone, and KeyboardInterrupt: what is
    done stays.
    """
    with store.locked():
        store.drop()  # what an earlier process left
        record, options = _readable(store, request.points, say), request.options
        seed = Seed(record.seed, chosen=options.seed is not None)
        servers = PointServers(options, request.asked, store.directory / SERVERS, say, interrupts)
        vllm_layout.complete(store, record, request.points)
        try:
            with servers:
                sweeping = Sweeping(store, record, request.points, servers, seed, say)
                sweeping.run()
        finally:
            store.drop()
    return sweeping.record


def _readable(store: SweepStore, points: Sequence[GridPoint], say: Callable[[str], None]) -> SweepRecord:
    """The record, its finished points only those whose runs can be read; the others are planned again."""
    record = store.record()
    for known, point in zip(record.points, points, strict=True):
        if known.state not in FINISHED:
            continue
        try:
            run_directory.load(store.directory / known.directory)
        except UsageError as error:
            say(f"{point.label}: its run cannot be read, and is measured again: {error}")
            store.set_damaged_aside(point)
            record = updated(record, blank(known))
            store.write(record)
    return record
