"""Sweeping: the points of a sweep measured one by one, each kept or its failure recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from loadgen.base.errors import LoadgenError, MeasureError
from loadgen.base.secrecy import hide_secrets
from loadgen.base.text import format_count
from loadgen.plan.plan_inputs import Seed
from loadgen.plan.profile import Profile
from loadgen.report import load_table
from loadgen.report.run_directory import Result
from loadgen.report.sweep_record import FINISHED, PointState, SweepPoint, SweepRecord, blank
from loadgen.run import signals
from loadgen.run.session import Session
from loadgen.study.series.points.measuring import MeasuredPoint, measured
from loadgen.study.series.points.point_servers import PointServers
from loadgen.study.series.sweep import vllm_layout
from loadgen.study.series.sweep.forecast import Forecast, TimedPoint, forecast
from loadgen.study.series.sweep.grid import GridPoint
from loadgen.study.series.sweep.sweep_store import SweepStore, updated

_STARTS = 2  # of a server with the same flags, before they are given up: a port may be taken in between
_LONG_S = 30.0  # of a point that is announced


@dataclass
class Sweeping:
    """What is left of a sweep; `record` is what came of its points so far."""

    store: SweepStore
    record: SweepRecord
    points: Sequence[GridPoint]
    servers: PointServers
    seed: Seed
    say: Callable[[str], None]  # a line for each point
    _unstartable: dict[tuple[tuple[str, str], ...], str] = field(default_factory=dict)  # why, by server flags

    @property
    def left(self) -> list[GridPoint]:
        """The points that are still to be measured; those that failed before too."""
        over = zip(self.record.points, self.points, strict=True)
        return [planned for point, planned in over if point.state not in FINISHED]

    def run(self) -> None:
        """Measure every point that is left; a point that fails is recorded with its reason.

        Raises StoreError where nothing can be kept, KeyboardInterrupt, and MeasureError where a server that
        was not started here is gone: what is left can be resumed.
        """
        left = self.left
        if left and not self.servers.restartable:
            self._session(left[0])  # where it is not ready, there is no sweep to announce
        if left:
            self.say(f"{self._amount}, in {self.store.directory}")
        for point in left:
            if (session := self._session(point)) is None:
                continue
            before = self.record.points[point.number].attempts
            self._update(point, "under-way", attempts=before + 1)
            self._begin(point, before)
            seed = replace(self.seed, repeat=point.number, attempt=before)
            place = self.store.begin(point)
            try:
                outcome = measured(replace(session, heading=self._place(point)), point.workload, seed, place)
            except KeyboardInterrupt:
                self._update(point, "planned")
                raise
            self._keep(point, outcome)
            if outcome.server_gone:
                self._restart()

    @property
    def _amount(self) -> str:
        """How many points there are, and how long they take as far as it is known."""
        left, all_of_them = self.left, format_count(len(self.points), "point")
        begun = all_of_them if len(left) == len(self.points) else f"{len(left)} of {all_of_them} left"
        return ", ".join(filter(None, (begun, self._time(left).words)))

    def _place(self, point: GridPoint) -> str:
        """Where a point stands, as a line about it begins."""
        return f"[{point.number + 1}/{len(self.points)}] "

    def _time(self, left: Sequence[GridPoint]) -> Forecast:
        """What these points take, by those that are done."""
        states = zip(self.record.points, self.points, strict=True)
        done = [TimedPoint(planned, known.duration_s) for known, planned in states if known.state in FINISHED]
        return forecast(left, done, self.servers.starts_s, self.servers.options)

    def _begin(self, point: GridPoint, attempts: int) -> None:
        """Announce a point that is measured again, takes long, or no one knows how long."""
        if attempts:
            self.say(f"{self._place(point)}{point.label}: attempt {attempts + 1}, with new prompts")
        takes = self._time([point])
        if takes.unknown or takes.seconds >= _LONG_S:
            time = f", {takes.words}" if takes.words and point.workload.duration is None else ""
            self.say(f"{self._place(point)}{point.label}: measuring {amount(point.workload)}{time}")

    def _session(self, point: GridPoint) -> Session | None:
        """A session with the point's server; None where it does not start, which is then recorded."""
        flags = tuple(point.serve.items())
        if (reason := self._unstartable.get(flags, "")) == "":
            for _ in range(_STARTS):
                try:
                    return self.servers.session(point.workload, point.serve)
                except LoadgenError as error:
                    if not self.servers.restartable:
                        raise
                    # The end of its log follows on other lines.
                    reason = "".join(hide_secrets(str(error)).splitlines()[:1])
            self._unstartable[flags] = reason
        self._update(point, "failed", reason=reason)
        self._report(point, f"FAILED: {reason}")
        return None

    def _keep(self, point: GridPoint, outcome: MeasuredPoint) -> None:
        """Keep what came of a point, and report it; raises Stopped where a signal ended it."""
        if outcome.signal:
            self._update(point, "planned")
            raise signals.Stopped(outcome.signal)
        state: PointState = "failed" if outcome.reason else "done"
        directory, verdict, reason = "", "", outcome.reason
        if outcome.run is not None and outcome.directory is not None:
            if state == "done" and outcome.run.facts.saturated:
                state, reason = "saturated", outcome.run.facts.partial
            directory = self.store.keep(point, outcome.directory, failed=state == "failed")
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
            vllm_layout.write(self.store, self.record, self.points, point)
            self._report(point, _figures(outcome.run))

    def _restart(self) -> None:
        """Prepare for another start of a server that is gone; raises MeasureError of one that is not ours."""
        if not self.servers.restartable:
            raise MeasureError("the server answers no more: start it again")
        self.servers.close()

    def _update(self, point: GridPoint, state: PointState, **outcome: object) -> None:
        """Record a point's state; raises StoreError."""
        known = self.record.points[point.number]
        changed = blank(known).model_copy(update={"state": state, **outcome})
        self.record = updated(self.record, SweepPoint.model_validate(changed.model_dump()))
        self.store.write(self.record)

    def _report(self, point: GridPoint, outcome: str) -> None:
        """A line for a point that is over, with the time left for all that are not, as far as it is known."""
        rest = self._time([planned for planned in self.left if planned.number > point.number])
        later = f"; {rest.words} left" if round(rest.seconds) else ""
        self.say(f"{self._place(point)}{point.label}: {outcome}{later}")


def amount(workload: Profile) -> str:
    """How much is asked of a point: 50 requests, 20 sessions, or 30 s."""
    if workload.duration:
        return f"{workload.duration:g} s"
    if workload.num_sessions is not None:
        return format_count(workload.num_sessions, "session")
    return "all requests" if workload.num_prompts is None else format_count(workload.num_prompts, "request")


def _figures(run: Result) -> str:
    """What matters of a run, in short."""
    metrics = run.metrics
    tokens = f"{metrics.output_throughput_per_s:.1f} tok/s, "
    # An answer that comes whole has no first token.
    name, latency = ("TTFT", metrics.ttft) if metrics.times_tokens else ("E2EL", metrics.e2el)
    early = ", ended early: saturated" * run.facts.saturated
    standing = load_table.standing(run)
    slo = f"objectives: {standing}, " if standing else ""
    return f"{tokens}mean {name} {latency.mean_ms:.1f} ms, {slo}{run.verdict.level.value}{early}"
