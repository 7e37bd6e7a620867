"""Measuring: one run of a series, kept or its failure explained, so that the next one can follow."""

from __future__ import annotations

import errno
import gc
from pathlib import Path

import msgspec
from msgspec.structs import replace

from loadgen.base import clock
from loadgen.base.errors import LoadgenError, ServerDied
from loadgen.plan.plan_inputs import Seed
from loadgen.plan.profile import Profile
from loadgen.report.run_directory import Result
from loadgen.run.session import Session
from loadgen.server.discovery import ServerProbe
from loadgen.study.series.kept_directory import StoreError
from loadgen.verdict import sections

# With these nothing else can be kept either: the series stops, and what is done stays.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class MeasuredPoint(msgspec.Struct, frozen=True):
    """What measuring a point came to: a run and its directory, or why there is none that counts."""

    run: Result | None = None  # None: nothing was measured
    directory: Path | None = None  # that holds the run
    reason: str = ""  # why the point failed; "": the run is whole, or ended early as saturated
    duration_s: float = 0.0
    signal: int = 0  # that ended it; 0: none
    server_gone: bool = False  # it ended, or answers no more


def measured(session: Session, workload: Profile, seed: Seed, place: Path) -> MeasuredPoint:
    """Measure one run and keep it in a directory of its own below `place`; raises StoreError.

    What fails of a run is its reason: the series goes on. A signal while nothing is measured is raised as
    KeyboardInterrupt; one during a run ends it, and is among what it came to.
    """
    gc.collect()  # it is off while anything is measured: see cli.run
    inside = replace(session, options=replace(session.options, run_dir=str(place)))
    began_ns = clock.now_ns()
    try:
        run, directory = inside.run(workload, seed)
    except Exception as error:  # one run's fault must not cost the others
        check_disk(error)
        reason = session.hidden(typed(error)).summary
        return MeasuredPoint(reason=reason, duration_s=_since_s(began_ns), server_gone=bool(gone(session)))
    kept = inside.keep(run, directory)
    if kept.errors:
        raise StoreError(kept.errors[0])
    # A run that was ended since the server fell behind shows what it was to show.
    reason = "" if run.facts.saturated and run.records.ok.any() else unfinished(run)
    why_gone = "" if run.records.ok.all() else gone(session, failed=True)
    if why_gone:  # it ended during the run, whose figures are not of the whole load
        reason = f"{reason}: {why_gone}" if reason else f"the server ended during the run: {why_gone}"
    return MeasuredPoint(
        run,
        directory,
        reason,
        _since_s(began_ns),
        run.facts.signal or kept.signal,
        bool(why_gone),
    )


def unfinished(run: Result) -> str:
    """Why a run is not a finished one; "" where it is."""
    if not run.records.ok.any():
        reason = "".join(f", the first with {first.kind}: {first.detail}" for first in run.records.failed[:1])
        return f"every request failed{reason}"
    return f"cut short: {run.facts.partial}" if run.facts.partial else ""


def death(session: Session, failed: bool) -> LoadgenError | None:
    """How a server that was started here ended; None while it runs."""
    try:
        session.check_alive(failed)
    except ServerDied as error:
        return session.hidden(error)
    return None


def gone(session: Session, failed: bool = False) -> str:
    """Why a server will answer no more, be it ours or not; "" where it is ready."""
    if (died := death(session, failed)) is not None:
        return died.summary
    if session.served.engine.hosted:
        return ""
    reason = ServerProbe(session.access, session.root.tls).poll()
    return "" if reason is None else str(session.hidden(LoadgenError(reason)))


def typed(error: Exception) -> LoadgenError:
    """The error, one that is not of ours as a fault of loadgen."""
    if isinstance(error, LoadgenError):
        return error
    return LoadgenError(f"loadgen itself failed; please report it: {sections.reason(error)}")


def check_disk(error: Exception) -> None:
    """Raise StoreError where the cause is a disk that takes nothing more."""
    cause = error.__cause__ or error.__context__
    if isinstance(error, LoadgenError) and isinstance(cause, OSError) and cause.errno in _DISK:
        raise StoreError(str(error)) from None


def _since_s(began_ns: int) -> float:
    return (clock.now_ns() - began_ns) / 1e9
