"""Execution: the cells of a campaign measured one by one, each kept or its failure recorded."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from loadgen.base import clock, signals
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import LoadgenError, MeasureError, UsageError
from loadgen.base.parsing import MOST_SEED
from loadgen.base.secrecy import hide_secrets
from loadgen.base.structs import replace
from loadgen.base.text import clean_text
from loadgen.base.urls import is_this_machine
from loadgen.figures import objectives
from loadgen.host.machine_state import MachineState, list_state_differences
from loadgen.host.sensor import Reading, Sensor, read_machine_state
from loadgen.plan.request_sources import Seed
from loadgen.run.command import progress
from loadgen.run.command.options import Options
from loadgen.run.command.progress import Display
from loadgen.run.session import Session
from loadgen.study import limit_record
from loadgen.study.limit_record import LimitTable
from loadgen.study.series import point_runs
from loadgen.study.series.campaign.arms import Planned, Start, estimate_left, list_cells
from loadgen.study.series.campaign.campaign_file import CoolDown
from loadgen.study.series.campaign.campaign_store import CELLS, CampaignStore
from loadgen.study.series.campaign.quality_cells import QualityCells
from loadgen.study.series.ladder_command import LadderClimb
from loadgen.study.series.limit.limit_command import continue_search, read_search
from loadgen.study.series.limit.limit_search import LimitSearch
from loadgen.study.series.point_runs import MeasuredPoint, PointServers, Step, measure_point, run_series
from loadgen.study.series.series_store import SERVERS, SeriesStore, StoreError
from loadgen.study.series.time_estimate import Pace

_EXTRA = "quality"  # a start of a server for its quality alone


@dataclass
class Execution:
    """The part of a campaign that is left; `done` are the cells that are not measured again."""

    store: CampaignStore
    starts: tuple[Start, ...]
    seed: Seed
    done: set[str]
    pace: Pace
    say: Callable[[str], None] = print
    quiet: bool = False
    watch: MachineWatch | None = None  # None: no cell waits
    limit: LimitTable | None = None  # each cell is a search
    quality: QualityCells | None = None  # measured on the same servers
    is_over: Callable[[], bool] = lambda: False  # asked before each start that has cells left
    keeps_servers: bool = False  # each arm's from its first start to the end, next to one another
    _used: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # names of starts, by arm
    _left: deque[Planned] = field(default_factory=deque)  # of the cells that share a server
    _start: Start = field(init=False)  # of that server
    _names: dict[str, str] = field(default_factory=dict)  # of each arm's start, or its latest one
    _servers: PointServers = field(init=False)
    _kept: dict[str, PointServers] = field(default_factory=dict)  # by arm, where they are kept
    _stack: ExitStack = field(default_factory=ExitStack)

    def run(self) -> None:
        """Measure every cell that is not in `done`, server by server, and last what is left of the quality.

        It ends before a start at which `is_over`. Raises StoreError where nothing can be kept, and
        KeyboardInterrupt on a signal.
        """
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
            while self.quality is not None and (extra := self.quality.state.choose_arm()) is not None:
                self._run_on_servers(Start(self.quality.arms[extra], _EXTRA, ()))

    def _run_on_servers(self, start: Start) -> None:
        """Measure the cells in `_left` on the server of `start`, started again if it dies."""
        options = replace(start.arm.options, quiet=self.quiet, probe_memory=True)
        if self.limit is not None:
            options = replace(options, quiet=True, reset_cache=True)
        self._start = start
        servers = self._kept.get(start.arm.name)
        if servers is None:
            logs = self.store.directory / SERVERS
            servers = PointServers(options, start.arm.settings, logs, self.say)
            if self.keeps_servers:
                self._kept[start.arm.name] = self._stack.enter_context(servers)
        self._servers = servers
        servers.begin = self._begin_start
        try:
            with nullcontext() if self.keeps_servers else servers:
                run_series(self, servers)
                if self.quality is not None:
                    self.quality.measure_all(start.arm, servers)
        except StoreError:
            raise
        except OSError as error:  # a disk that takes nothing more ends the campaign, not the cell
            raise StoreError(f"cannot write {self.store.directory / CELLS}: {error.strerror}") from None
        except LoadgenError as error:  # of its end
            progress.warn(clean_text(f"{start.arm.name}: {error}"))

    @property
    def _name(self) -> str:
        """The name of the start of the current arm's server; "" before its first."""
        return self._names.get(self._start.arm.name, "")

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

    def _place_on_start(self, planned: Planned) -> Planned:
        return replace(planned, cell=planned.cell.model_copy(update={"start": self._name}))

    def choose(self) -> Step[Planned] | None:
        """Remove and return the next cell in `_left`, and set it as the servers' cell; None if empty."""
        if not self._left:
            return None
        planned = self._place_on_start(self._left.popleft())
        self._servers.cell = planned.cell
        return Step(planned, planned.workload)

    def measure(self, step: Step[Planned], session: Session) -> MeasuredPoint:
        """Measure a cell once the machine is cool, and move the servers' start times to the pace.

        A ladder or a search is measured and stored whole: its point has no run. Nor has that of a cell that
        is refused since the machine is in another state.
        """
        self.pace.starts += [(self._start.arm.name, start_s) for start_s in self._servers.starts_s]
        self._servers.starts_s.clear()
        here = is_measured_here(self._start.arm.options)
        if why := "" if self.watch is None else self.watch.prepare_cell(here):
            return MeasuredPoint(reason=why, error=LoadgenError(why))
        planned = self._place_on_start(step.what)
        if self.limit is not None:
            place = self.store.begin_search(planned)
            return self._store_whole(planned, session, place, partial(self._search, planned, self.limit))
        if planned.workload.ladder is not None:
            place = self.store.begin(planned.id) / "ladder"
            place.mkdir(mode=0o700)
            return self._store_whole(planned, session, place, partial(self._climb, planned, session))
        place = self.store.begin(planned.id)
        return measure_point(session, planned.workload, self._choose_seed(session, planned), place)

    def keep(self, step: Step[Planned], point: MeasuredPoint) -> None:
        """Store a cell's run as finished, or as failed with the reason, and print its line.

        Where no server could be reached, all cells left on that server fail too. Nothing is stored of a run
        that a signal ended, or of a ladder or a search, which `measure` has stored.
        """
        planned, died = self._place_on_start(step.what), point.died
        if point.error is not None and point.unserved:
            progress.warn(clean_text(str(point.error)))
            self._fail(planned, point.error)
            while (other := self.choose()) is not None:
                self._fail(other.what, point.error)
        if point.signal or planned.id in self.done:
            return
        if point.run is None or point.directory is None:
            self._fail(planned, point.error or LoadgenError(point.reason))
        elif reason := point_runs.explain_unfinished(point.run):
            why = LoadgenError(f"{reason}: {died.summary}", *died.args[1:]) if died else LoadgenError(reason)
            self._fail(planned, why, point.directory)
        else:
            figures = point.run.metrics
            outcome = f"{figures.output_throughput_per_s:.1f} tok/s, {point.run.verdict.level.value}"
            self._finish(planned, point.directory, point.duration_s, outcome)
            if died:
                progress.warn(clean_text(str(died)))

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
        cell, goals = planned.cell, objectives.parse_objectives(request.slo)
        axis = request.choose_axis(planned.workload)
        record = request.make_record(
            axis,
            list(map(str, goals)),
            name=cell.checkpoint,
            command=("loadgen", "campaign", cell.campaign),
            fixed=f"{request.slo} over {axis}",
            seed=(self.seed.value + cell.repeat) % (MOST_SEED + 1),
        )
        with suppress(UsageError):  # nothing was begun there, or not this search
            record = continue_search(read_search(place), record)
        apart = "" if self._start.arm.options.base_url is None else cell.arm
        seed, kept = Seed(record.seed, self.seed.chosen, apart=apart), SeriesStore(place, "limit")
        search = LimitSearch(self._servers, planned.workload, goals, record, kept, seed, self.say)
        self.say(f"r{cell.repeat} {cell.arm}, {cell.profile}: searching")
        found = limit_record.describe_limit(search.find())
        if search.signal:
            raise signals.Stopped(search.signal)
        if search.record.ended == "server-died":
            raise MeasureError(f"the server ended; {found}")
        return found

    def _climb(self, planned: Planned, session: Session, place: Path) -> str:
        """Measure a ladder, and return how many lengths were; raises MeasureError where none was."""
        climb = LadderClimb(planned.workload, place, session.options, self.quiet)
        climb.climb_on(self._servers, self._choose_seed(session, planned))
        lengths = f"{climb.count_measured()} of {len(climb.rows)} lengths"
        if not climb.count_measured():
            reason = next((row.note for row in climb.rows if row.note), "nothing was measured")
            raise MeasureError(f"{lengths}: {hide_secrets(reason)}")
        return lengths

    def _choose_seed(self, session: Session, planned: Planned) -> Seed:
        """Return the seed of a cell, and count the attempt: in one repeat every arm gets the same prompts.

        A server that ran before may have the prompts of an earlier attempt in its cache, so each attempt has
        other prompts. A server that was started here is empty, and gets those of the first attempt. Any other
        may serve several arms, so each is parted from the others.
        """
        attempt = self.store.count_attempt(planned)
        if session.options.base_url is None:
            return replace(self.seed, repeat=planned.cell.repeat)
        return replace(self.seed, repeat=planned.cell.repeat, attempt=attempt, apart=planned.cell.arm)

    def _finish(self, planned: Planned, directory: Path, took_s: float, outcome: str) -> None:
        self.store.finish(planned.id, directory)
        self.pace.steps.append((planned.timed, took_s))
        self._report(planned, outcome)

    def _fail(self, planned: Planned, error: LoadgenError, directory: Path | None = None) -> None:
        self.store.fail_cell(planned, str(error), read_wall_clock(), directory)
        self._report(planned, f"FAILED: {error.summary}")

    def _report(self, planned: Planned, outcome: str) -> None:
        """Add a cell to `done` and print its line: how many are done, its outcome, and the time left."""
        self.done.add(planned.id)
        every = [each.id for each in list_cells(self.starts)]
        over = len(self.done & set(every))
        left = estimate_left(self.pace, self.starts, self.done)
        cell = planned.cell
        self.say(f"[{over}/{len(every)}] r{cell.repeat} {cell.arm}, {cell.profile}: {outcome}{left.ending}")


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
        state = read_machine_state(self.sensors, tuple)
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
