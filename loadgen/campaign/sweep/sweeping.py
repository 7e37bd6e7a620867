"""Sweeping: the points of a sweep measured one by one, each kept or its failure recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from loadgen.campaign.points.measuring import MeasuredPoint, measured
from loadgen.campaign.points.point_servers import PointServers
from loadgen.campaign.sweep import vllm_layout
from loadgen.campaign.sweep.forecast import TimedPoint, forecast
from loadgen.campaign.sweep.grid import GridPoint
from loadgen.campaign.sweep.sweep_store import SweepStore, updated
from loadgen.endpoint.secrecy import hide
from loadgen.errors import LoadgenError, MeasureError
from loadgen.results.run_directory import Result
from loadgen.results.sweep_record import FINISHED, PointState, SweepPoint, SweepRecord
from loadgen.session import signals
from loadgen.session.session import Session
from loadgen.workload.plan_inputs import Seed


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
        for point in self.left:
            if (session := self._session(point)) is None:
                continue
            self._update(point, "under-way")
            heading = f"[{point.number + 1}/{len(self.points)}] "
            seed, place = replace(self.seed, repeat=point.number), self.store.begin(point)
            try:
                outcome = measured(replace(session, heading=heading), point.workload, seed, place)
            except KeyboardInterrupt:
                self._update(point, "planned")
                raise
            self._keep(point, outcome)
            if outcome.server_gone:
                self._restart()

    def _session(self, point: GridPoint) -> Session | None:
        """A session with the point's server; None where it does not start, which is then recorded."""
        flags = tuple(point.serve.items())
        if (reason := self._unstartable.get(flags)) is None:
            try:
                return self.servers.session(point.workload, point.serve)
            except LoadgenError as error:
                if not self.servers.restartable:
                    raise
                reason = hide(error.summary)
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
            raise MeasureError("the server answers no more: start it again, then resume the sweep")
        self.servers.close()

    def _update(self, point: GridPoint, state: PointState, **outcome: object) -> None:
        """Record a point's state; raises StoreError."""
        known = self.record.points[point.number]
        blank = {"directory": "", "reason": "", "verdict": "", "duration_s": 0.0}
        changed = known.model_copy(update={**blank, "state": state, **outcome})
        self.record = updated(self.record, SweepPoint.model_validate(changed.model_dump()))
        self.store.write(self.record)

    def _report(self, point: GridPoint, outcome: str) -> None:
        """A line for a point that is over, with the time left for all that are not, as far as it is known."""
        states = zip(self.record.points, self.points, strict=True)
        done = [TimedPoint(planned, known.duration_s) for known, planned in states if known.state in FINISHED]
        after = [planned for planned in self.left if planned.number > point.number]
        rest = forecast(after, done, self.servers.starts_s)
        later = f"; {rest.words} left" if rest.seconds else ""
        self.say(f"[{point.number + 1}/{len(self.points)}] {point.label}: {outcome}{later}")


def _figures(run: Result) -> str:
    """What matters of a run, in short."""
    metrics = run.metrics
    tokens = f"{metrics.output_throughput_per_s:.1f} tok/s, "
    early = ", ended early: saturated" * run.facts.saturated
    return f"{tokens}mean TTFT {metrics.ttft.mean_ms:.1f} ms, {run.verdict.level.value}{early}"
