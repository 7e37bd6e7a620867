"""Execution: the steps of a campaign or a sweep measured one by one, each kept or its failure recorded."""

from __future__ import annotations

import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

from loadgen.base import clock, signals
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import LoadgenError, MeasureError, UsageError, decide_exit_code
from loadgen.base.parsing import MOST_SEED
from loadgen.base.printing import print_text
from loadgen.base.secrecy import hide_secrets
from loadgen.base.signals import SIGNALS, Interrupts
from loadgen.base.structs import replace
from loadgen.base.text import clean_text, format_count
from loadgen.base.urls import is_this_machine
from loadgen.figures import objectives
from loadgen.host.machine_state import MachineState, list_state_differences
from loadgen.host.sensor import Reading, Sensor, read_machine_state
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.report import run_directory
from loadgen.report.run_directory import Result
from loadgen.run.command import progress
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.run.session import Session
from loadgen.study import limit_record, load_table
from loadgen.study.limit_record import BUDGET_KEY, LimitRecord, LimitTable
from loadgen.study.series import point_runs
from loadgen.study.series.campaign.arms import (
    Planned,
    Start,
    describe_progress,
    estimate_left,
    list_cells,
)
from loadgen.study.series.campaign.campaign_file import CoolDown
from loadgen.study.series.campaign.steps import CampaignStep
from loadgen.study.series.ladder_command import LadderClimb
from loadgen.study.series.limit.limit_command import continue_search
from loadgen.study.series.limit.limit_search import LimitSearch
from loadgen.study.series.point_runs import MeasuredPoint, PointServers, Step, measure_point, run_series
from loadgen.study.series.series_store import SERVERS, SeriesStore, StoreError
from loadgen.study.series.time_estimate import Pace

_LONG_S = 30.0  # of a run that is announced


@dataclass
class Execution:
    """The part of a campaign, or of a sweep, that is left; `done` are the steps not measured again."""

    store: SeriesStore
    starts: tuple[Start, ...]
    seed: Seed
    done: set[str]
    pace: Pace
    say: Callable[[str], None] = print
    quiet: bool = False
    interrupts: Interrupts = SIGNALS
    watch: MachineWatch | None = None  # None: no cell waits
    limit: LimitTable | None = None  # each cell is a search
    steps: tuple[CampaignStep, ...] = ()  # next to the loads, on the same servers
    is_over: Callable[[], bool] = lambda: False  # asked before each start that has cells left
    keeps_servers: bool = False  # each arm's from its first start to the end, next to one another
    _used: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # names of starts, by arm
    _left: deque[Planned] = field(default_factory=deque)  # of the cells that share a server
    _start: Start = field(init=False)  # of that server
    _names: dict[str, str] = field(default_factory=dict)  # of each arm's start, or its latest one
    _servers: PointServers = field(init=False)
    _kept: dict[str, PointServers] = field(default_factory=dict)  # by arm, where they are kept
    _stack: ExitStack = field(default_factory=ExitStack)
    _gone: LoadgenError | None = None  # why nothing more can be measured

    def run(self) -> None:
        """Measure every cell or point that is not in `done`, server by server, and last what steps leave.

        Finished runs that cannot be read are measured again. It ends before a start at which `is_over`.
        Raises StoreError where nothing can be kept, KeyboardInterrupt on a signal, and why the only server
        cannot be reached, or is gone, where it was not started here.
        """
        self._drop_damaged()
        if left := len(self._ids - self.done):
            begun = format_count(len(self._ids), self.store.whole.removesuffix("s"))
            words = [begun if left == len(self._ids) else f"{left} of {begun} left"]
            if self.limit is None:
                words.append(estimate_left(self.pace, self.starts, self.done).words)
            self.say(f"{', '.join(filter(None, words))}, in {self.store.directory}")
        with self._stack:
            for start in self.starts:
                if any(planned.id not in self.done for planned in start.planned) and self.is_over():
                    break
                self._left.extend(planned for planned in start.planned if planned.id not in self.done)
                if 0 < len(self._left) < len(start.planned):
                    # Cells that were measured earlier ran on other starts: another start is another name.
                    runs = (run for planned in start.planned for run in self.store.read_facts(planned.id))
                    cells = [run.get("cell") or {} for run in runs]
                    self._used[start.arm.name] |= {cell["start"] for cell in cells if "start" in cell}
                if self._left:
                    self._run_on_servers(start)
                if self._gone is not None:
                    raise self._gone
            for step in self.steps:
                while (arm := step.choose_arm()) is not None:
                    self._run_on_servers(Start(arm, step.name, ()))

    def _drop_damaged(self) -> None:
        """Take finished runs that cannot be read from `done`, and move them to `interrupted`."""
        for planned in list_cells(self.starts) if self.limit is None else ():
            place = self.store.directory / self.store.whole / planned.id
            if planned.workload.ladder is None and place.is_dir():
                try:
                    run_directory.load(place)
                except UsageError as error:
                    self.say(f"{planned.label}: its run cannot be read, and is measured again: {error}")
                    with self.store.writing():
                        self.store.set_aside(self.store.whole, planned.id)
                    self.done.discard(planned.id)

    def _run_on_servers(self, start: Start) -> None:
        """Measure what is in `_left`, then the steps next to it, on a server; raises StoreError."""
        options = replace(start.arm.options, quiet=self.quiet)
        if self.limit is not None:
            options = replace(options, quiet=True, reset_cache=True)
        self._start = start
        servers = self._kept.get(start.arm.name)
        if servers is None:
            logs = self.store.directory / SERVERS
            servers = PointServers(options, start.arm.settings, logs, self.say, self.interrupts)
            if self.keeps_servers:
                self._kept[start.arm.name] = self._stack.enter_context(servers)
        self._servers = servers
        servers.begin = self._begin_start
        try:
            with nullcontext() if self.keeps_servers else servers:
                run_series(self, servers)
                for each in self.steps if self._gone is None else ():
                    each.measure_all(start.arm, servers)
        except StoreError:
            raise
        except OSError as error:  # a disk that takes nothing more ends the campaign, not the cell
            place = self.store.directory / self.store.whole
            raise StoreError(f"cannot write {place}: {error.strerror}") from None
        except LoadgenError as error:  # of its end
            progress.warn(clean_text(f"{start.arm.name}: {error}"))

    @property
    def _ids(self) -> set[str]:
        return {planned.id for planned in list_cells(self.starts)}

    @property
    def _name(self) -> str:
        """The name of the start of the current arm's server; "" before its first."""
        return self._names.get(self._start.arm.name, "")

    @property
    def _has_one_server(self) -> bool:
        """Whether all is measured on one server, which was not started here."""
        return not self._servers.restartable and len({start.arm.name for start in self.starts}) == 1

    def _begin_start(self) -> None:
        """Name a start of the server, wait until the machine is cool, and print that it starts.

        The name is one that no start of the arm has: r0, then r0.2; `attached` stays.
        """
        name, used = self._start.name, self._used[self._start.arm.name]
        names = (name if n == 1 else f"{name}.{n}" for n in range(1, len(used) + 2))
        free = name if self._start.arm.attached else next(each for each in names if each not in used)
        self._names[self._start.arm.name] = free
        used.add(free)
        if self._servers.cell is not None:
            self._servers.cell = self._servers.cell.model_copy(update={"start": free})
        if self._servers.restartable and self.watch is not None:
            self.watch.wait_for_start()
        if self._servers.options.launching.wanted:
            self.say(f"{free} {self._start.arm.name}: starting the server")

    def choose(self) -> Step[Planned] | None:
        """Remove and return the next step in `_left`, and set its cell as the servers'; None if empty."""
        if not self._left:
            return None
        planned = self._left.popleft()
        cell = planned.cell and planned.cell.model_copy(update={"start": self._name})
        self._servers.cell = cell
        return Step(planned, planned.workload)

    def measure(self, step: Step[Planned], session: Session) -> MeasuredPoint:
        """Measure a step once the machine is cool, and move the servers' start times to the pace.

        A ladder or a search is measured and stored whole: its point has no run. Nor has that of a cell that
        is refused since the machine is in another state.
        """
        self.pace.starts += [(self._start.arm.name, start_s) for start_s in self._servers.starts_s]
        self._servers.starts_s.clear()
        here = is_measured_here(self._start.arm.options)
        if why := "" if self.watch is None else self.watch.prepare_cell(here):
            return MeasuredPoint(reason=why, error=LoadgenError(why))
        planned = step.what
        if self.limit is not None:
            place = self.store.begin_search(planned.id)
            return self._store_whole(planned, session, place, partial(self._search, planned, self.limit))
        if planned.workload.ladder is not None:
            place = self.store.begin(planned.id) / "ladder"
            place.mkdir(mode=0o700)
            return self._store_whole(planned, session, place, partial(self._climb, planned, session))
        place, stands = self.store.begin(planned.id), f"{self._show_place(1)} "
        takes = self.pace.estimate_left([planned])
        if takes.unknown or takes.seconds >= _LONG_S:
            words = describe_amount(planned.workload)
            time = f", {takes.words}" if takes.words and planned.workload.duration is None else ""
            self.say(f"{stands}{planned.label}: measuring {words}{time}")
        session, seed = replace(session, heading=stands), self._choose_seed(session, planned)
        return measure_point(session, planned.workload, seed, place)

    def keep(self, step: Step[Planned], point: MeasuredPoint) -> None:
        """Store a step's run as finished, or as failed with the reason, and print its line.

        Where no server could be reached, all steps left on that server fail too; where it is the only one,
        and was not started here, they are left. Nothing is stored of a run that a signal ended, or of a
        ladder or a search, which `measure` has stored.
        """
        planned = step.what
        if point.error is not None and point.unserved:
            if self._has_one_server:
                self._give_up(point.error)
                return
            progress.warn(clean_text(str(point.error)))
            self._fail(planned, point.error)
            while (other := self.choose()) is not None:
                self._fail(other.what, point.error)
        if point.signal or planned.id in self.done:
            return
        if point.run is None or point.directory is None:
            self._fail(planned, point.error or LoadgenError(point.reason))
        elif point.reason:
            details = point.died.args[1:] if point.died else ()
            self._fail(planned, LoadgenError(point.reason, *details), point.directory)
        else:
            self._finish(planned, point.directory, point.duration_s, summarize_run(point.run))
            if point.died:
                progress.warn(clean_text(str(point.died)))
        if point.server_gone and self._has_one_server:
            self._give_up(MeasureError("the server answers no more: start it again"))

    def _give_up(self, error: LoadgenError) -> None:
        """Drop the steps in `_left`, and keep the error that `run` raises then."""
        self._gone = error
        self._left.clear()

    def _store_whole(
        self, planned: Planned, session: Session, place: Path, measure: Callable[[Path], str]
    ) -> MeasuredPoint:
        """Measure a cell of several runs at a place, and store all of it, as finished or as failed.

        `measure` returns the outcome in words, or raises why the cell failed; what was measured stays.
        """
        began_ns = clock.now_ns()
        try:
            outcome = measure(place)
        except Exception as error:  # as of a run
            self._fail(planned, session.hide_error(point_runs.explain_failure(error)), place)
            died = point_runs.find_death(session)
            return MeasuredPoint(server_gone=died is not None, died=died)
        self._finish(planned, place, (clock.now_ns() - began_ns) / 1e9, outcome)
        return MeasuredPoint()

    def _search(self, planned: Planned, request: LimitTable, place: Path) -> str:
        """Search for the limit of a cell, or continue its interrupted search; return the limit in words.

        The seed is the campaign's plus the repeat: each repeat has other prompts, each arm the same. Raises
        MeasureError if the server ended, and KeyboardInterrupt on a signal.
        """
        goals = objectives.parse_objectives(request.slo)
        axis = request.choose_axis(planned.workload)
        record = request.make_record(
            axis,
            list(map(str, goals)),
            name=self._start.arm.checkpoint,
            command=("loadgen", "campaign", "" if planned.cell is None else planned.cell.campaign),
            fixed=f"{request.slo} over {axis}",
            seed=(self.seed.value + planned.number) % (MOST_SEED + 1),
        )
        with suppress(UsageError):  # nothing was begun there, or not this search
            record = continue_search(LimitRecord.read(place), record)
        apart = self._start.arm.name if self._start.arm.attached else ""
        seed, kept = Seed(record.seed, self.seed.chosen, apart=apart), SeriesStore(place, "limit")
        search = LimitSearch(self._servers, planned.workload, goals, record, kept, seed, self.say, BUDGET_KEY)
        self.say(f"{planned.label}: searching")
        with kept.lock():
            found = limit_record.describe_limit(search.find())
        if search.signal:
            raise signals.Stopped(search.signal)
        if search.record.ended == "server-died":
            raise MeasureError(f"the server ended; {found}")
        return found

    def _climb(self, planned: Planned, session: Session, place: Path) -> str:
        """Climb a cell's ladder; return how many lengths were measured, or raise MeasureError if none was."""
        climb = LadderClimb(planned.workload, place, session.options, self.quiet)
        climb.climb_on(self._servers, self._choose_seed(session, planned))
        lengths = f"{climb.count_measured()} of {len(climb.rows)} lengths"
        if not climb.count_measured():
            reason = next((row.note for row in climb.rows if row.note), "nothing was measured")
            raise MeasureError(f"{lengths}: {hide_secrets(reason)}")
        return lengths

    def _choose_seed(self, session: Session, planned: Planned) -> Seed:
        """Return the seed of a step, and count the attempt: in one repeat every arm gets the same prompts.

        A server that ran before may have the prompts of an earlier attempt in its cache, so each attempt has
        other prompts. A server that was started here is empty, and gets those of the first attempt. Any other
        may serve several arms, so each is parted from the others.
        """
        attempt, seed = self.store.count_attempt(planned.id), replace(self.seed, repeat=planned.number)
        if session.options.base_url is None:
            return seed
        return replace(seed, attempt=attempt, apart=planned.cell.arm if planned.cell else "")

    def _finish(self, planned: Planned, directory: Path, took_s: float, outcome: str) -> None:
        """Store a step's run as finished, add its time to the pace, and print its line."""
        self.store.finish(planned.id, directory)
        self.pace.steps.append((planned, took_s))
        self._report(planned, outcome)

    def _fail(self, planned: Planned, error: LoadgenError, directory: Path | None = None) -> None:
        """Store a step as failed, with its run in `directory` if there is one, and print its line."""
        self.store.fail(planned.id, str(error), read_wall_clock(), directory, self._servers.cell)
        self._report(planned, f"FAILED: {error.summary}")

    def _report(self, planned: Planned, outcome: str) -> None:
        """Add a step to `done`, and print its outcome and the time left."""
        self.done.add(planned.id)
        left = estimate_left(self.pace, self.starts, self.done, self._start)
        self.say(f"{self._show_place()} {planned.label}: {outcome}{left.ending}")

    def _show_place(self, begun: int = 0) -> str:
        """Return how many steps are done or `begun`, of all: [3/12]."""
        return f"[{len(self.done & self._ids) + begun}/{len(self._ids)}]"


def finish_series(
    execution: Execution,
    resume: str,
    is_new: bool,
    out: TextIO | None = None,
    show: Callable[[], object] = lambda: None,
) -> int:
    """Measure all that is left; return 0, or the code of a signal.

    Where it is cut short, `show` is called, and printed how far it is, with `resume`, the command that goes
    on; StoreError and MeasureError are raised with that. Of a new series of which nothing was measured the
    directory is removed.
    """
    try:
        execution.run()
    except KeyboardInterrupt as stop:
        show()
        state = f"interrupted: {describe_progress(execution.store, execution.starts)}\nresume with: {resume}"
        print_text(clean_text(f"\n{state}"), out or sys.stdout)
        return decide_exit_code(signal=signals.read_number(stop))
    except StoreError as error:
        state = describe_progress(execution.store, execution.starts)
        raise StoreError(f"{error}; {state}; when it can be written: {resume}") from None
    except LoadgenError as error:
        if (is_new and execution.store.remove_empty()) or not isinstance(error, MeasureError):
            raise
        show()
        raise MeasureError(f"{error.summary}; resume with: {resume}") from None
    return 0


def describe_amount(workload: Profile) -> str:
    """Return how much a workload measures: its duration, else its sessions, else its requests."""
    if workload.duration:
        return f"{workload.duration:g} s"
    if workload.num_sessions is not None:
        return format_count(workload.num_sessions, "session")
    return "all requests" if workload.num_prompts is None else format_count(workload.num_prompts, "request")


def summarize_run(run: Result) -> str:
    """Return a run's speed, latency, objectives and verdict for a line."""
    metrics = run.metrics
    tokens = f"{metrics.output_throughput_per_s:.1f} tok/s, "
    # An answer that comes whole has no first token.
    name, latency = ("TTFT", metrics.ttft) if metrics.times_tokens else ("E2EL", metrics.e2el)
    early = ", ended early: saturated" if run.facts.saturated else ""
    standing = load_table.judge_standing(run)
    slo = f"objectives: {standing}, " if standing else ""
    return f"{tokens}mean {name} {latency.mean_ms:.1f} ms, {slo}{run.verdict.level.value}{early}"


_POLL_S = 1.0


_NO_SENSOR = "no temperature sensor can be read: there are no pauses to cool down"


def wait_until_cool(wanted: CoolDown, sensors: Sequence[Sensor], display: Display) -> str:
    """Wait until the hottest sensor is at most at `to_c`, at most `at_most_s`, reading it every second.

    Returns a line on how far the machine cooled, or that no sensor can be read; "" if it was cool.
    """
    hottest = began_c = _read_hottest_c(sensors)
    if began_c is None:
        return _NO_SENSOR
    shown_c, began_ns = began_c, clock.now_ns()
    end_ns = began_ns + int(wanted.at_most_s * 1e9)
    with display.waiting(
        "cooling down", wanted.at_most_s, lambda: f"{shown_c:.0f} °C, until {wanted.to_c:g}"
    ):
        while hottest is not None and hottest > wanted.to_c and clock.now_ns() < end_ns:
            time.sleep(_POLL_S)
            hottest = _read_hottest_c(sensors)
            shown_c = shown_c if hottest is None else hottest
    took_s = (clock.now_ns() - began_ns) / 1e9
    if hottest is not None and hottest > wanted.to_c:
        return f"still {hottest:.0f} °C after {took_s:.0f} s (at most {wanted.to_c:g} is wanted): continuing"
    cooled = f"cooled down from {began_c:.0f} to {hottest or 0:.0f} °C in {took_s:.0f} s"
    return cooled if began_c > wanted.to_c else ""


def _read_hottest_c(sensors: Sequence[Sensor]) -> float | None:
    reading = Reading.merge(sensor.read(()) for sensor in sensors)
    heat = [value for (quantity, _), value in reading.values.items() if quantity == "temperature_c"]
    return max(heat, default=None)


_WARMER_C = 5.0  # than before the first cell: half of what counts as another state
_MOST_S = 120.0  # to wait for that


def is_measured_here(options: Options) -> bool:
    """Whether a model serves on this machine, and its sensors are read: its state belongs to the run."""
    local = options.launching.wanted or all(is_this_machine(url) for url in options.urls)
    return options.observe and not options.embedded and local


@dataclass
class MachineWatch:
    """Waits before each cell until the machine is cool, and compares its state with that before the first.

    `cool_down` is the file's; without it a cell waits 120 s at most until the machine is no more than 5 °C
    warmer than before the first cell. `first` is the state then, if that cell was measured earlier. With
    `require` a cell in another state is refused, else there is a line.
    """

    cool_down: CoolDown | None
    sensors: Sequence[Sensor]
    say: Callable[[str], None]
    display: Display = field(default_factory=Display)
    first: MachineState | None = None
    require: bool = False
    said: set[str] = field(default_factory=set)

    def wait_for_start(self) -> None:
        """Wait until the machine is as cool as the file requests; without a sensor say so once."""
        if self.cool_down is not None:
            line = wait_until_cool(self.cool_down, self.sensors, self.display)
            if line and (line != _NO_SENSOR or line not in self.said):
                self.said.add(line)
                self.say(line)

    def prepare_cell(self, here: bool) -> str:
        """Wait until the machine is cool, and read its state; return why a cell is refused, "" if it is not.

        `here` is whether the server is on this machine: of another machine nothing is known. The state before
        the first cell is kept; by what a later one differs is printed once where it is not refused.
        """
        self.wait_for_start()
        if not here:
            return ""
        hottest = None if self.first is None or self.cool_down is not None else self.first.find_hottest_c()
        if hottest is not None:
            wanted = CoolDown(to_c=hottest + _WARMER_C, at_most_s=_MOST_S)
            if cooled := wait_until_cool(wanted, self.sensors, self.display):
                self.say(cooled)
        state = read_machine_state(self.sensors)
        self.first = self.first or state
        apart = list_state_differences(state, self.first)
        named = ", ".join(f"{what} {now} (then {first})" for what, now, first in apart)
        line = f"the machine is in another state than before the first cell: {named}" if named else ""
        if self.require:
            return line and f"{line}; bring it back, then --resume --retry-failed"
        if line and line not in self.said:
            self.said.add(line)
            self.say(line)
        return ""
