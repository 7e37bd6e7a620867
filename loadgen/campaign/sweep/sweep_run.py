"""Sweep run: a sweep from its request to its last point, begun or resumed; the command and the API use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from loadgen.campaign.points.point_servers import PointServers
from loadgen.campaign.sweep import sweep_store
from loadgen.campaign.sweep.grid import GridPoint
from loadgen.campaign.sweep.sweep_request import SweepRequest
from loadgen.campaign.sweep.sweep_store import SERVERS, SweepStore
from loadgen.campaign.sweep.sweeping import Sweeping
from loadgen.endpoint.secrecy import command_line
from loadgen.errors import UsageError
from loadgen.results import run_place
from loadgen.results.sweep_record import SweepPoint, SweepRecord
from loadgen.session.bench import seeded
from loadgen.session.signals import SIGNALS, Interrupts
from loadgen.workload.plan_inputs import Seed


def begun(request: SweepRequest) -> SweepStore:
    """The directory of a sweep that begins, with its record; raises UsageError where there can be none."""
    base, now = Path(request.options.run_dir or "runs"), run_place.now()
    store = SweepStore(run_place.create_directory(base, f"sweep-{request.name}", now))
    store.write(
        SweepRecord(
            name=request.name,
            command=tuple(command_line()),
            fixed=request.fixed,
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
    """The directory of the same sweep that goes on, None: the latest in its run directory.

    Raises UsageError where there is none, or where it was begun by another command.
    """
    if directory is None:
        return sweep_store.latest(Path(request.options.run_dir or "runs"), request.fixed)
    store = SweepStore(directory)
    record, options = store.record(), request.options
    why = ""
    if options.seed is not None and options.seed != record.seed:
        why = f"its seed is {record.seed}"
    elif [_identity(point) for point in record.points] != [_identity(p) for p in planned(request.points)]:
        why = "it has other points"
    elif record.fixed != request.fixed:
        why = "what is not varied differs"
    if why:
        began = " ".join(record.command)
        raise UsageError(f"{directory} is another sweep: {why}; resume with its flags: {began}")
    return store


def _identity(point: SweepPoint) -> tuple[object, ...]:
    """What a point is, whatever came of it."""
    return point.settings, point.serve, point.repeat


def finished(
    request: SweepRequest, store: SweepStore, say: Callable[[str], None], interrupts: Interrupts = SIGNALS
) -> SweepRecord:
    """Measure what is left of a sweep, and give what came of its points; `say` gets a line for each.

    Raises StoreError, MeasureError where a server that is not ours is gone, and KeyboardInterrupt: what is
    done stays.
    """
    with store.locked():
        store.drop()  # what an earlier process left
        record, options = store.record(), request.options
        seed = Seed(record.seed, chosen=options.seed is not None)
        servers = PointServers(options, request.asked, store.directory / SERVERS, say, interrupts)
        try:
            with servers:
                sweeping = Sweeping(store, record, request.points, servers, seed, say)
                sweeping.run()
        finally:
            store.drop()
    return sweeping.record
