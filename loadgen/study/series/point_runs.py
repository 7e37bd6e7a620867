"""Point runs: the loop of every series, a run kept or its failure explained, and the server it is on."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, TypeVar

import msgspec

from loadgen.base import clock, errors, signals
from loadgen.base.errors import LoadgenError, ServerDied, UsageError
from loadgen.base.signals import SIGNALS, Interrupts
from loadgen.base.structs import replace
from loadgen.facts.run_facts import Cell
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.report import run_directory
from loadgen.report.run_directory import Result
from loadgen.run.attach import attach
from loadgen.run.command.options import Options
from loadgen.run.session import Session
from loadgen.server.control import ServerProbe
from loadgen.settings.validation import FLAGS, ServerSettings, validate_table
from loadgen.study.series.series_store import StoreError, strip_resume

# These errors mean that nothing else can be kept either: the series stops, and what is done stays.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class MeasuredPoint(msgspec.Struct, frozen=True):
    """The run of a point and its directory, or why there is none that counts."""

    run: Result | None = None  # None: nothing was measured
    directory: Path | None = None  # that holds the run
    reason: str = ""  # why the point failed; "": the run is whole, or ended early as saturated
    duration_s: float = 0.0
    signal: int = 0  # that ended it; 0: none
    server_gone: bool = False  # it ended, or answers no more
    died: LoadgenError | None = None  # how a server that was started here ended
    error: LoadgenError | None = None  # why nothing was measured, with its details
    unserved: bool = False  # no server was there to measure, and none started


What = TypeVar("What")


class Step(msgspec.Struct, Generic[What], frozen=True):
    """One step of a series: what it is to its chooser, and its workload."""

    what: What
    workload: Profile


class Chooser(Protocol[What]):
    """A series: a list, a grid or a search, which chooses each step and keeps what came of it."""

    def choose(self) -> Step[What] | None:
        """Return the next step; None where the series is over."""

    def measure(self, step: Step[What], session: Session) -> MeasuredPoint:
        """Measure a step on the session's server, and return what came of it."""

    def keep(self, step: Step[What], point: MeasuredPoint) -> None:
        """Store what came of a step; one that a signal ended stays to be measured."""


def run_series(chooser: Chooser[What], servers: PointServers) -> None:
    """Measure the steps of a series one by one, on a server that is kept, until its chooser has no more.

    The chooser stores each point, also one without a server, with the error. Raises Stopped, a
    KeyboardInterrupt, after a point that a signal ended, and what the chooser raises, as StoreError.
    """
    while (step := chooser.choose()) is not None:
        try:
            session = servers.session(step.workload)
        except Exception as error:  # a server's fault must not cost what other servers measure
            why = convert_error(error)
            chooser.keep(step, MeasuredPoint(reason=why.summary, error=why, unserved=True))
            continue
        try:
            point = chooser.measure(step, session)
        except KeyboardInterrupt as stop:  # while nothing was measured
            point = MeasuredPoint(signal=signals.read_number(stop))
        chooser.keep(step, point)
        if point.signal:
            raise signals.Stopped(point.signal)
        if point.server_gone:
            servers.replace_server(point.died)


def measure_point(session: Session, workload: Profile, seed: Seed, place: Path) -> MeasuredPoint:
    """Measure one run and write it to a directory of its own below `place`; raises StoreError.

    An exception in the run is the point's error and reason, so the series goes on; failed requests of a
    server that has ended are a reason too. A signal before the run is raised as KeyboardInterrupt; one during
    the run ends it, and is the point's `signal`.
    """
    gc.collect()  # it is off while the run is measured
    inside = replace(session, options=replace(session.options, run_dir=str(place)))
    began_ns = clock.now_ns()
    try:
        run, directory = inside.run(workload, seed)
    except Exception as error:  # one run's fault must not cost the others
        why = session.hide_error(explain_failure(error))
        died = find_death(session)
        gone, took_s = bool(died or explain_silence(session)), _measure_since_s(began_ns)
        return MeasuredPoint(reason=why.summary, duration_s=took_s, server_gone=gone, died=died, error=why)
    kept = inside.keep(run, directory)
    if kept.errors:
        raise StoreError(kept.errors[0])
    # A run that was ended since the server fell behind shows what it was to show.
    reason = "" if run.facts.saturated and run.records.ok.any() else explain_unfinished(run)
    failed = not run.records.ok.all()
    died = find_death(session, failed)
    why_gone = died.summary if died else explain_silence(session) if failed else ""
    if why_gone and failed:  # it ended during the run, whose figures are not of the whole load
        reason = f"{reason}: {why_gone}" if reason else f"the server ended during the run: {why_gone}"
    ended_by = run.facts.signal or kept.signal
    return MeasuredPoint(run, directory, reason, _measure_since_s(began_ns), ended_by, bool(why_gone), died)


def read_point(directory: Path) -> MeasuredPoint | None:
    """Read the whole run that a directory holds as it was measured; None where there is none."""
    try:
        run = run_directory.load(directory)
    except UsageError:
        return None
    if explain_unfinished(run) and not run.facts.saturated:
        return None
    return MeasuredPoint(run, directory, duration_s=run.metrics.duration_s)


def explain_unfinished(run: Result) -> str:
    """Return why a run is not whole: every request failed, or it was cut short; "" if it is."""
    if not run.records.ok.any():
        reason = "".join(f", the first with {first.kind}: {first.detail}" for first in run.records.failed[:1])
        return f"every request failed{reason}"
    return f"cut short: {run.facts.partial}" if run.facts.partial else ""


def find_death(session: Session, failed: bool = False) -> LoadgenError | None:
    """Return how a server that was started here ended, secrets hidden; None while it runs.

    `failed`: requests have failed, so that one about to end is waited for.
    """
    try:
        session.check_alive(failed)
    except ServerDied as error:
        return session.hide_error(error)
    return None


def explain_silence(session: Session) -> str:
    """Poll the server once and return why it is not ready, secrets hidden; "" if ready or a hosted API."""
    if session.served.engine.hosted:
        return ""
    reason = ServerProbe(session.access).poll()
    return "" if reason is None else str(session.hide_error(LoadgenError(reason)))


def convert_error(error: Exception) -> LoadgenError:
    """Return a LoadgenError as it is, any other exception as a LoadgenError that asks to report it."""
    if isinstance(error, LoadgenError):
        return error
    return LoadgenError(f"loadgen itself failed; please report it: {errors.describe_exception(error)}")


def explain_failure(error: Exception) -> LoadgenError:
    """Return why a step failed, as `convert_error`; raises StoreError where nothing more can be kept.

    That is a StoreError itself, or a LoadgenError whose cause is a full, read-only or failing disk.
    """
    cause = error.__cause__ or error.__context__
    if isinstance(error, StoreError):
        raise error
    if isinstance(error, LoadgenError) and isinstance(cause, OSError) and cause.errno in _DISK:
        raise StoreError(str(error)) from None
    return convert_error(error)


def _measure_since_s(began_ns: int) -> float:
    return (clock.now_ns() - began_ns) / 1e9


# Verbs of a run's command that begins it again: with its --resume nothing would be measured.
_BEGUN_AGAIN = ("sweep", "limit", "ladder")
_TEXTS = ("arguments", "environment")  # settings that are not a single value


@dataclass
class PointServers:
    """The server that points are measured on; leaving the context ends one that was started here.

    The death of a `given` one, which another owns, ends the series.
    """

    options: Options
    asked: ServerSettings  # of a server that is started
    logs: Path  # directory for the logs of servers that are started
    say: Callable[[str], None]  # reports a server that does not end
    interrupts: Interrupts = SIGNALS
    cell: Cell | None = None  # of a campaign, that is measured now
    begin: Callable[[], None] = lambda: None  # called before a server is reached or started
    given: Session | None = None
    starts_s: list[float] = field(default_factory=list)  # how long each start took
    _stack: ExitStack = field(default_factory=ExitStack)
    _open: Session | None = None

    def __enter__(self) -> PointServers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = None
        self._stack.__exit__(kind, error, trace)

    @property
    def restartable(self) -> bool:
        """Whether a server that has ended can be started again: not one that --base-url names."""
        return self.given is None and self.options.base_url is None

    def session(self, workload: Profile) -> Session:
        """Return the given or the open session, else open one.

        That calls `begin`, reaches or starts the server, and adds the seconds of a start to `starts_s`.
        Raises LoadgenError where there is no server.
        """
        if self.given is not None:
            return self.given
        if self._open is None:
            self.close()
            self.begin()
            began_ns = clock.now_ns()
            options = replace(self.options, run_dir=str(self.logs))
            session = attach(options, self.asked, workload, self._stack, self.interrupts)
            if set(session.command[1:2]) & set(_BEGUN_AGAIN):
                session = replace(session, command=strip_resume(session.command))
            if self.restartable:
                self.starts_s.append(_measure_since_s(began_ns))
            self._open = session
        return self._open if self.cell is None else replace(self._open, cell=self.cell)

    def replace_server(self, died: LoadgenError | None) -> None:
        """End a server started here, so that another is started next; of a given one raise `died`, if any."""
        if self.restartable:
            self.close()
        elif self.given is not None and died is not None:
            raise died

    def close(self) -> None:
        """Close the session, and end its server if started here; `say` gets an error of its end."""
        self._open = None
        stack, self._stack = self._stack, ExitStack()
        try:
            stack.close()
        except LoadgenError as error:
            self.say(f"  {error}")


def do_on_server(servers: PointServers, workload: Profile, act: Callable[[Session], What]) -> What:
    """Call `act` with a session of the servers and return its value; any failure is a LoadgenError.

    Of a server that has ended it is that error, and the next session starts another. Raises StoreError where
    the disk takes nothing more, and KeyboardInterrupt on a signal.
    """
    try:
        session = servers.session(workload)
    except Exception as error:  # a server's fault must not cost what other servers measure
        raise convert_error(error) from None
    try:
        return act(session)
    except Exception as error:
        why, died = explain_failure(error), find_death(session, failed=True)
        if died is not None:
            servers.replace_server(died)
        raise died or session.hide_error(why) from None


def overlay_settings(asked: ServerSettings, serve: Mapping[str, str]) -> ServerSettings:
    """Return the settings with the flags `serve` over them; raises UsageError for a value that is not valid.

    A flag with the name of a setting, as `context-len`, is that setting; any other is the engine's own,
    passed as `--NAME=VALUE`, `true` and `false` as `--NAME` and `--no-NAME`.
    """
    own: dict[str, object] = {}
    arguments = list(asked.arguments or ())
    for name, value in serve.items():
        key = name.replace("-", "_")
        if key in _TEXTS:
            raise UsageError(f"--serve-param {name}: give single flags of the engine, as max-num-seqs=8,16")
        if key in ServerSettings.model_fields:
            own[key] = parse_value(value)
        elif (switch := SWITCHES.get(value)) is not None:
            arguments.append(f"--{name}" if switch else f"--no-{name}")
        else:
            arguments.append(f"--{name}={value}")
    if len(arguments) > len(asked.arguments or ()):
        own["arguments"] = tuple(arguments)
    return asked.merge_given(validate_table(ServerSettings, own, FLAGS))


SWITCHES = {"true": True, "false": False}


def parse_value(word: str) -> bool | int | float | str:
    """Return a word as True or False, else as an int or a float, else as it is."""
    if word in SWITCHES:
        return SWITCHES[word]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
