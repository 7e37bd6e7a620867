"""Execution: the cells of a campaign measured one by one, each kept or its failure recorded."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.base import clock, signals
from loadgen.base.clock import read_wall_clock
from loadgen.base.errors import LoadgenError, UsageError
from loadgen.base.parsing import MOST_SEED
from loadgen.base.secrecy import hide_secrets
from loadgen.base.structs import replace
from loadgen.base.text import clean_text
from loadgen.figures import objectives
from loadgen.plan.request_sources import Seed
from loadgen.run.command import progress
from loadgen.run.session import Session
from loadgen.study import limit_record
from loadgen.study.limit_record import LimitTable
from loadgen.study.series import point_runs
from loadgen.study.series.campaign.arms import Planned, Start, estimate_left, list_cells
from loadgen.study.series.campaign.campaign_store import CELLS, CampaignStore
from loadgen.study.series.campaign.machine_watch import MachineWatch, is_measured_here
from loadgen.study.series.campaign.quality_cells import QualityCells
from loadgen.study.series.climb import LadderClimb
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
        """Measure or search the cells in `_left` on the server of `start`, started again if it dies."""
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
        try:
            with nullcontext() if self.keeps_servers else self._servers:
                if self.limit is None:
                    self._servers.begin = self._begin_start
                    run_series(self, self._servers)
                else:
                    self._name_start()
                    while (step := self.choose()) is not None:
                        if why := self._explain_other_state():
                            self._fail(self._place_on_start(step.what), LoadgenError(why))
                        else:
                            self._search(self._place_on_start(step.what), self.limit)
                if self.quality is not None:
                    self.quality.measure_all(start.arm, self._servers)
        except StoreError:
            raise
        except OSError as error:  # a disk that takes nothing more ends the campaign, not the cell
            raise StoreError(f"cannot write {self.store.directory / CELLS}: {error.strerror}") from None
        except LoadgenError as error:  # of its end
            progress.warn(clean_text(f"{start.arm.name}: {error}"))

    def _name_start(self) -> None:
        """Set the arm's name in `_names` to one that no start of it has: r0, then r0.2; `attached` stays."""
        name, used = self._start.name, self._used[self._start.arm.name]
        names = (name if n == 1 else f"{name}.{n}" for n in range(1, len(used) + 2))
        free = name if self._start.arm.attached else next(each for each in names if each not in used)
        self._names[self._start.arm.name] = free
        used.add(free)

    @property
    def _name(self) -> str:
        """The name of the start of the current arm's server; "" before its first."""
        return self._names.get(self._start.arm.name, "")

    def _begin_start(self) -> None:
        """Set the name of a start of the server, wait until the machine is cool, and print that it starts."""
        self._name_start()
        if self._servers.cell is not None:
            self._servers.cell = self._servers.cell.model_copy(update={"start": self._name})
        if self._servers.restartable and self.watch is not None:
            self.watch.wait_for_start()
        if self._servers.options.launching.wanted:
            self.say(f"{self._name} {self._start.arm.name}: starting the server")

    def _explain_other_state(self) -> str:
        here = is_measured_here(self._start.arm.options)
        return "" if self.watch is None else self.watch.prepare_cell(here)

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

        A ladder is measured and stored whole: its point has no run. Nor has that of a cell that is refused
        since the machine is in another state.
        """
        self.pace.starts += [(self._start.arm.name, start_s) for start_s in self._servers.starts_s]
        self._servers.starts_s.clear()
        if why := self._explain_other_state():
            return MeasuredPoint(reason=why, error=LoadgenError(why))
        planned = self._place_on_start(step.what)
        if planned.workload.ladder is not None:
            return self._climb(session, planned)
        place = self.store.begin(planned.id)
        return measure_point(session, planned.workload, self._choose_seed(session, planned), place)

    def keep(self, step: Step[Planned], point: MeasuredPoint) -> None:
        """Store a cell's run as finished, or as failed with the reason, and print its line.

        Where no server could be reached, all cells left on that server fail too. Nothing is stored of a run
        that a signal ended, or of a ladder, which `measure` has stored.
        """
        planned, died = self._place_on_start(step.what), point.died
        if point.error is not None and point.unserved:
            progress.warn(clean_text(str(point.error)))
            self._fail(planned, point.error)
            while (other := self.choose()) is not None:
                self._fail(other.what, point.error)
        if point.signal or point.unserved or planned.workload.ladder is not None:
            return
        if point.run is None or point.directory is None:
            self._fail(planned, point.error or LoadgenError(point.reason))
        elif reason := point_runs.explain_unfinished(point.run):
            why = LoadgenError(f"{reason}: {died.summary}", *died.args[1:]) if died else LoadgenError(reason)
            self._fail(planned, why, point.directory)
        else:
            self.store.finish(planned.id, point.directory)
            self.pace.steps.append((planned.timed, point.duration_s))
            figures = point.run.metrics
            outcome = f"{figures.output_throughput_per_s:.1f} tok/s, {point.run.verdict.level.value}"
            self._report(planned, outcome)
            if died:
                progress.warn(clean_text(str(died)))

    def _search(self, planned: Planned, request: LimitTable) -> None:
        """Search for the limit of a cell, or continue its interrupted search, and store it or why it failed.

        The seed is the campaign's plus the repeat: each repeat has other prompts, each arm the same. Raises
        StoreError, and KeyboardInterrupt on a signal.
        """
        place, began_ns, cell = self.store.begin_search(planned), clock.now_ns(), planned.cell
        goals, axis = objectives.parse_objectives(request.slo), request.choose_axis(planned.workload)
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
        try:
            record = search.find()
        except Exception as error:  # as of a run
            why = hide_secrets(str(point_runs.explain_failure(error)))
            self._fail(planned, LoadgenError(why), place)
            return
        if search.signal:
            raise signals.Stopped(search.signal)
        if record.ended == "server-died":
            self._fail(
                planned, LoadgenError(f"the server ended; {limit_record.describe_limit(record)}"), place
            )
            return
        self.store.finish(planned.id, place)
        self.pace.steps.append((planned.timed, (clock.now_ns() - began_ns) / 1e9))
        self._report(planned, limit_record.describe_limit(record))

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

    def _climb(self, session: Session, planned: Planned) -> MeasuredPoint:
        """Measure a ladder, and store it as finished if any rung was measured, else as failed."""
        place, began_ns = self.store.begin(planned.id) / "ladder", clock.now_ns()
        place.mkdir(mode=0o700)
        climb = LadderClimb(planned.workload, place, session.options, self.quiet)
        try:
            climb.climb_on(self._servers, self._choose_seed(session, planned))
        except Exception as error:  # as of a run; the lengths that were measured stay
            self._fail(planned, session.hide_error(point_runs.explain_failure(error)), climb.directory)
            died = point_runs.find_death(session)
            return MeasuredPoint(server_gone=died is not None, died=died)
        self.pace.steps.append((planned.timed, (clock.now_ns() - began_ns) / 1e9))
        lengths = f"{climb.count_measured()} of {len(climb.rows)} lengths"
        if climb.count_measured():
            self.store.finish(planned.id, climb.directory)
            self._report(planned, lengths)
        else:
            reason = hide_secrets(next((row.note for row in climb.rows if row.note), "nothing was measured"))
            self._fail(planned, LoadgenError(f"{lengths}: {reason}"), climb.directory)
        return MeasuredPoint()

    def _fail(self, planned: Planned, error: LoadgenError, directory: Path | None = None) -> None:
        self.store.fail_cell(planned, str(error), read_wall_clock(), directory)
        self._report(planned, f"FAILED: {error.summary}")

    def _report(self, planned: Planned, outcome: str) -> None:
        """Add a cell to `done` and print its line: how many are done, its outcome, and the time left."""
        self.done.add(planned.id)
        every = [each.id for each in list_cells(self.starts)]
        over = len(self.done & set(every))
        left = estimate_left(self.pace, self.starts, self.done)
        later = f"; {left.words} left" if over < len(every) and not left.unknown else ""
        cell = planned.cell
        self.say(f"[{over}/{len(every)}] r{cell.repeat} {cell.arm}, {cell.profile}: {outcome}{later}")
