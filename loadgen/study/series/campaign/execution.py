"""Execution: the cells of a campaign measured one by one, each kept or its failure recorded."""

from __future__ import annotations

import gc
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from loadgen.base import clock
from loadgen.base.bounds import MOST_SEED
from loadgen.base.errors import LoadgenError, MeasureError, UsageError
from loadgen.base.secrecy import hide_secrets
from loadgen.base.text import clean_text
from loadgen.figures import objectives
from loadgen.host.sensor import Reading, Sensor
from loadgen.plan.plan_inputs import Seed
from loadgen.plan.profile import Profile
from loadgen.report import limit_record, run_place
from loadgen.report.limit_record import LimitRecord
from loadgen.run import progress, signals
from loadgen.run.attach import attach
from loadgen.run.progress import Display
from loadgen.run.session import Session
from loadgen.study.series.campaign.arms import Planned, Start, list_cells
from loadgen.study.series.campaign.campaign_file import CoolDown, LimitTable
from loadgen.study.series.campaign.campaign_store import CELLS, SERVERS, CampaignStore, Pace
from loadgen.study.series.ladder_command import LadderClimb
from loadgen.study.series.limit.limit_command import choose_axis, continue_search, read_search
from loadgen.study.series.limit.limit_search import LimitSearch
from loadgen.study.series.point_runs import (
    PointServers,
    check_disk,
    convert_error,
    explain_unfinished,
    find_death,
)
from loadgen.study.series.series_store import KeptDirectory, StoreError
from loadgen.verdict.run_facts import Cell


@dataclass
class Execution:
    """What is left of a campaign; `done` are the cells that are not measured again."""

    store: CampaignStore
    starts: tuple[Start, ...]
    seed: Seed
    done: set[str]
    pace: Pace
    say: Callable[[str], None] = print
    quiet: bool = False
    cooling: Cooling | None = None
    limit: LimitTable | None = None  # each cell is a search
    _used: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # names of starts, by arm
    _climbs: dict[str, LadderClimb] = field(default_factory=dict)  # ladders whose server died of a rung

    def run(self) -> None:
        """Measure every cell that is left; raises StoreError where nothing can be kept, KeyboardInterrupt."""
        for start in self.starts:
            left = deque(planned for planned in start.planned if planned.id not in self.done)
            if left and len(left) < len(start.planned):
                self._remember(start)
            while left:
                if self.limit is None:
                    self._on_a_server(start, left)
                else:
                    self._searches(start, left, self.limit)

    def _remember(self, start: Start) -> None:
        """The names of starts that cells measured earlier ran on: another start is another name."""
        for planned in start.planned:
            cells = [run.get("cell") or {} for run in self.store.facts(planned.id)]
            self._used[start.arm.name] |= {cell["start"] for cell in cells if "start" in cell}

    def _name(self, start: Start) -> str:
        used = self._used[start.arm.name]
        if start.arm.attached:
            return start.name
        names = (start.name if n == 1 else f"{start.name}.{n}" for n in range(1, len(used) + 2))
        name = next(name for name in names if name not in used)
        used.add(name)
        return name

    def _on_a_server(self, start: Start, left: deque[Planned]) -> None:
        """Measure on one start of the server until nothing is left, or it has died."""
        arm, name = start.arm, self._name(start)
        if self.cooling is not None and not arm.attached:
            self.cooling.wait()
        options = replace(arm.options, quiet=self.quiet, run_dir=str(self.store.directory / SERVERS))
        with ExitStack() as stack:
            try:
                began_ns = clock.now_ns()
                if arm.options.launching.wanted:
                    self.say(f"{name} {arm.name}: starting the server")
                session = attach(options, arm.settings, left[0].workload, stack)
                self.pace.start(arm.name, (clock.now_ns() - began_ns) / 1e9)
            except Exception as error:
                self._all_fail(left, name, convert_error(error))
                return
            try:
                while left and self._measured(session, left, name):
                    pass
                stack.close()
            except StoreError:
                raise
            except LoadgenError as error:  # of its end
                progress.warn(clean_text(f"{arm.name}: {error}"))

    def _all_fail(self, left: deque[Planned], name: str, error: LoadgenError) -> None:
        progress.warn(clean_text(str(error)))
        while left:
            planned = left.popleft()
            climb = self._climbs.pop(planned.id, None)
            if climb is not None and climb.measured:
                climb.give_up("the server did not start again")
                self._climbed(_place_on_start(planned, name), climb)
            else:
                self._failed(_place_on_start(planned, name), error)

    def _searches(self, start: Start, left: deque[Planned], table: LimitTable) -> None:
        """Run the searches of one server; a search starts it again where a load killed it."""
        arm, name = start.arm, self._name(start)
        options = replace(arm.options, quiet=True, reset_cache=True)
        try:
            servers = CellServers(options, arm.settings, self.store.directory / SERVERS, self.say)
            with servers:
                while left:
                    if self.cooling is not None:
                        self.cooling.wait()
                    self._search(servers, _place_on_start(left.popleft(), name), table)
        except StoreError:
            raise
        except LoadgenError as error:  # the server did not end
            progress.warn(clean_text(f"{arm.name}: {error}"))

    def _search(self, servers: CellServers, planned: Planned, table: LimitTable) -> None:
        """Search for the limit of a cell and keep it; raises StoreError, KeyboardInterrupt of a signal."""
        place, began_ns = self.store.begin_search(planned), clock.now_ns()
        search = prepare_search(servers, planned, table, place, self.seed, self.say)
        cell = planned.cell
        self.say(f"r{cell.repeat} {cell.arm}, {cell.profile}: searching")
        try:
            record = search.find()
        except StoreError:
            raise
        except Exception as error:  # as of a run
            check_disk(error)
            self._failed(planned, LoadgenError(hide_secrets(str(convert_error(error)))), place)
            return
        if search.signal:
            raise signals.Stopped(search.signal)
        if record.ended == "server-died":
            self._failed(
                planned, LoadgenError(f"the server ended; {limit_record.describe_limit(record)}"), place
            )
            return
        self.store.finish(planned, place)
        self.pace.cell(planned.cell, (clock.now_ns() - began_ns) / 1e9)
        self._report(planned, limit_record.describe_limit(record))

    def _measured(self, session: Session, left: deque[Planned], name: str) -> bool:
        """Measure the next cell and keep it; whether the server lives."""
        planned = _place_on_start(left.popleft(), name)
        if self.cooling is not None:
            self.cooling.wait()
        gc.collect()  # it is off while anything is measured: see cli.run
        try:
            if planned.workload.ladder is None:
                return self._run(session, planned)
            return self._climb(session, planned, left)
        except OSError as error:  # a disk that takes nothing more ends the campaign, not the cell
            raise StoreError(f"cannot write {self.store.directory / CELLS}: {error.strerror}") from None

    def _run(self, session: Session, planned: Planned) -> bool:
        inside = _set_run_place(session, planned, self.store.begin(planned))
        began_ns = clock.now_ns()
        try:
            run, directory = inside.run(planned.workload, self._seed(session, planned))
        except Exception as error:  # one cell's fault must not cost the night: the others are measured
            return self._not_measured(session, planned, error)
        kept = inside.keep(run, directory)
        if number := run.facts.signal or kept.signal:
            raise signals.Stopped(number)
        if kept.errors:
            raise StoreError(kept.errors[0])
        died = find_death(session, failed=bool(run.records.failed))
        if reason := explain_unfinished(run):
            why = LoadgenError(f"{reason}: {died.summary}", *died.args[1:]) if died else LoadgenError(reason)
            self._failed(planned, session.hidden(why), directory)
            return not died
        self.store.finish(planned, directory)
        self.pace.cell(planned.cell, (clock.now_ns() - began_ns) / 1e9)
        self._report(planned, f"{run.metrics.output_throughput_per_s:.1f} tok/s, {run.verdict.level.value}")
        if died:
            progress.warn(clean_text(str(died)))
        return not died

    def _seed(self, session: Session, planned: Planned) -> Seed:
        """The seed of a cell: of one repeat the same prompts for every arm.

        A server that was there before may have those of an earlier attempt in its cache, so that another
        attempt has others: the same again for every arm that needs as many. One that was started here is
        empty, and gets the prompts that the other arms got.
        """
        attempt = self.store.attempted(planned)
        attached = session.options.base_url is not None
        return replace(self.seed, repeat=planned.cell.repeat, attempt=attempt if attached else 0)

    def _climb(self, session: Session, planned: Planned, left: deque[Planned]) -> bool:
        """Measure a ladder; where the server dies of a rung the next ones wait for another start."""
        climb, began_ns = self._climbs.pop(planned.id, None), clock.now_ns()
        if climb is None:
            place = self.store.begin(planned) / "ladder"
            place.mkdir(mode=0o700)
            climb = LadderClimb(planned.workload, place, quiet=self.quiet)
        try:
            inside = _set_run_place(session, planned, climb.directory)
            climb.on(inside, self._seed(session, planned))
        except MeasureError as error:
            progress.warn(clean_text(str(session.hidden(error))))
            if climb.left:
                self._climbs[planned.id] = climb
                left.appendleft(planned)
            else:
                self._climbed(planned, climb)
            return False
        except Exception as error:  # as of a run; the lengths that were measured stay
            return self._not_measured(session, planned, error, climb.directory)
        self.pace.cell(planned.cell, (clock.now_ns() - began_ns) / 1e9)
        self._climbed(planned, climb)
        return True

    def _climbed(self, planned: Planned, climb: LadderClimb) -> None:
        lengths = f"{sum(row.speed_tok_s is not None for row in climb.rows)} of {len(climb.rows)} lengths"
        if climb.measured:
            self.store.finish(planned, climb.directory)
            self._report(planned, lengths)
        else:
            reason = hide_secrets(next((row.note for row in climb.rows if row.note), "nothing was measured"))
            self._failed(planned, LoadgenError(f"{lengths}: {reason}"), climb.directory)

    def _not_measured(
        self, session: Session, planned: Planned, error: Exception, directory: Path | None = None
    ) -> bool:
        """Keep why measuring a cell failed; whether the server lives. Raises StoreError on a full disk."""
        check_disk(error)
        self._failed(planned, session.hidden(convert_error(error)), directory)
        return not find_death(session, failed=False)

    def _failed(self, planned: Planned, error: LoadgenError, directory: Path | None = None) -> None:
        self.store.fail(planned, str(error), run_place.now(), directory)
        self._report(planned, f"FAILED: {error.summary}")

    def _report(self, planned: Planned, outcome: str) -> None:
        """A line for a cell that is over, with the time left for all that are not."""
        self.done.add(planned.id)
        every = [each.id for each in list_cells(self.starts)]
        over = len(self.done & set(every))
        left = self.pace.left(self.starts, self.done)
        later = f"; {left.words} left" if over < len(every) and left.seconds is not None else ""
        cell = planned.cell
        self.say(f"[{over}/{len(every)}] r{cell.repeat} {cell.arm}, {cell.profile}: {outcome}{later}")


def _place_on_start(planned: Planned, start: str) -> Planned:
    return replace(planned, cell=planned.cell.model_copy(update={"start": start}))


def _set_run_place(session: Session, planned: Planned, place: Path) -> Session:
    return replace(session, options=replace(session.options, run_dir=str(place)), cell=planned.cell)


_POLL_S = 1.0


class Cooling:
    """Waits for the hottest sensor; without one it reports that once and never waits."""

    def __init__(
        self,
        wanted: CoolDown,
        sensors: Sequence[Sensor],
        say: Callable[[str], None],
        display: Display | None = None,
    ) -> None:
        self.wanted, self.sensors, self.say = wanted, sensors, say
        self.display = display or Display()
        self.hottest_c = 0.0  # as last read
        self.reported_missing = False

    def wait(self, poll_s: float = _POLL_S) -> None:
        """Wait until it is cool, or the time is over."""
        hottest = began_c = self._hottest_c()
        if began_c is None:
            if not self.reported_missing:
                self.say("no temperature sensor can be read: there are no pauses to cool down")
            self.reported_missing = True
            return
        began_ns = clock.now_ns()
        end_ns = began_ns + int(self.wanted.at_most_s * 1e9)
        with self.display.waiting("cooling down", self.wanted.at_most_s, self._words):
            while hottest is not None and hottest > self.wanted.to_c and clock.now_ns() < end_ns:
                time.sleep(poll_s)
                hottest = self._hottest_c()
        took_s = (clock.now_ns() - began_ns) / 1e9
        if hottest is not None and hottest > self.wanted.to_c:
            self.say(
                f"still {hottest:.0f} °C after {took_s:.0f} s (cool_down asks for {self.wanted.to_c:g}): "
                "continuing"
            )
        elif began_c > self.wanted.to_c:
            self.say(f"cooled down from {began_c:.0f} to {hottest or 0:.0f} °C in {took_s:.0f} s")

    def _hottest_c(self) -> float | None:
        reading = Reading.merge(sensor.read(()) for sensor in self.sensors)
        heat = [value for (quantity, _), value in reading.values.items() if quantity == "temperature_c"]
        self.hottest_c = max(heat, default=self.hottest_c)
        return max(heat, default=None)

    def _words(self) -> str:
        return f"{self.hottest_c:.0f} °C, until {self.wanted.to_c:g}"


@dataclass
class CellServers(PointServers):
    """The server of one arm; every run on it is one of the cell that is searched now."""

    cell: Cell | None = None

    def session(self, workload: Profile, serve: Mapping[str, str] | None = None) -> Session:
        """As `PointServers.session`, for the cell."""
        return replace(super().session(workload, serve), cell=self.cell)


def prepare_search(
    servers: CellServers, planned: Planned, table: LimitTable, place: Path, seed: Seed,
    say: Callable[[str], None],
) -> LimitSearch:  # fmt: skip
    """The search of a cell, in a directory of its own, where an interrupted one goes on.

    Each repeat has other prompts, each arm the same.
    """
    servers.cell = planned.cell
    goals, axis = objectives.parse(table.slo), choose_axis(planned.workload, table.over)
    record = LimitRecord(
        name=planned.cell.checkpoint,
        command=("loadgen", "campaign", planned.cell.campaign),
        axis=axis,
        objectives=tuple(map(str, goals)),
        within=table.within,
        budget_s=table.budget_s,
        most_runs=table.max_runs,
        least_run_s=table.min_duration_s,
        fixed=f"{table.slo} over {axis}",
        seed=(seed.value + planned.cell.repeat) % (MOST_SEED + 1),
        start=table.start,
        lowest=table.lowest,
        highest=table.highest,
    )
    with suppress(UsageError):  # nothing was begun there, or not this search
        record = continue_search(read_search(place), record)
    kept = KeptDirectory(place, "limit")
    return LimitSearch(
        servers, planned.workload, goals, record, kept, Seed(record.seed, chosen=seed.chosen), say
    )
