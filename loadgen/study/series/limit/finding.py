"""Finding: the runs of a search made one by one, the record written after each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.secrecy import hide_secrets
from loadgen.base.text import wrap_text
from loadgen.figures.objectives import Objective, ObjectiveEvidence, judged
from loadgen.plan.plan_inputs import Seed
from loadgen.plan.profile import Profile
from loadgen.report import limit_lines, run_directory
from loadgen.report.limit_record import LIMIT, LimitRecord, LimitRun, SearchEnd
from loadgen.report.sweep_record import LoadAxis
from loadgen.run import signals
from loadgen.study.series.kept_directory import KeptDirectory
from loadgen.study.series.limit import answer, bottleneck, run_entry, search
from loadgen.study.series.limit.search import NextRun
from loadgen.study.series.limit.trial import SearchSettings, Trial
from loadgen.study.series.points.measuring import MeasuredPoint, measured
from loadgen.study.series.points.point_servers import PointServers
from loadgen.study.series.time_estimate import duration

RUNS, PROBE = "runs", "probe"
_PROBED = 5  # requests, one at a time
_REACH = 64.0  # the lowest rate that is tried, as a divisor of the first, and the root of the highest one
_MOST_STREAMS = 65536.0
_LONG_S = 600.0
_CHEAP = 90.0  # a percentile that needs few samples
_LESS = 0.8  # of the time: what saves no more is not worth a word
_AROUND_S = 2.0  # that a run takes beyond its time: warm-up, the last answers, writing


@dataclass
class LimitSearch:
    """A search on servers that are kept, from what its record has: the runs so far, and what is asked."""

    servers: PointServers
    workload: Profile
    objectives: tuple[Objective, ...]
    record: LimitRecord
    kept: KeptDirectory
    seed: Seed
    say: Callable[[str], None]
    signal: int = 0  # that ended it

    def find(self) -> LimitRecord:
        """Run until the search ends, and give the record; raises LoadgenError where nothing can be measured.

        A signal ends it with what is known so far: see `signal`.
        """
        try:
            if self.record.alone_s is None:
                self._probe()
            while self.record.ended is None:
                step = search.next_run(self.settings, self.trials)
                if isinstance(step, str):
                    self._end(step)
                else:
                    self._run(step)
        except KeyboardInterrupt as stop:
            self.signal = signals.number_of(stop)
            self._end("interrupted")
        return self.record

    @property
    def trials(self) -> list[Trial]:
        """The runs so far, as the search takes them."""
        return [run_entry.trial(run, self.objectives) for run in self.record.runs]

    @property
    def settings(self) -> SearchSettings:
        """What is searched, once the server was probed."""
        record = self.record
        assert record.start is not None
        assert record.lowest is not None
        assert record.highest is not None
        return SearchSettings(
            axis=record.axis,
            objectives=self.objectives,
            start=record.start,
            lowest=record.lowest,
            highest=record.highest,
            within=record.within,
            budget_s=record.budget_s,
            most_runs=record.most_runs,
            least_run_s=record.least_run_s,
            alone_s=record.alone_s,
        )

    def _probe(self) -> None:
        """Learn from a few requests, one at a time, where to begin; raises UsageError of a small budget."""
        update = {"max_concurrency": 1, "request_rate": math.inf, "duration": None, "num_prompts": _PROBED}
        self.say("probe: a few requests, one at a time")
        point = self._measured(self.workload.model_copy(update=update), 0, PROBE)
        if point.signal:
            raise signals.Stopped(point.signal)
        if point.run is None or not point.run.records.ok.any():
            raise MeasureError(f"one request at a time was not served: {point.reason}")
        check_samples(judged(point.run.records, self.objectives, point.run.ask))
        alone_s, simulated = point.run.metrics.e2el.mean_ms / 1e3, bool(point.run.facts.server.simulated)
        self.record = self.record.model_copy(
            update=_bounds(self.record, alone_s) | {"simulated": simulated, "attempts": 0}
        )
        check_budget(self.settings)
        self._keep()
        self.say(f"  a request alone takes {1e3 * alone_s:.4g} ms")
        self.say("\n".join(wrap_text(f"time: {time_words(self.settings)}", "  ")))

    def _measured(self, workload: Profile, number: int, place: str) -> MeasuredPoint:
        """A run with prompts that were not sent before, even if it was begun before, and cut off."""
        session, attempt = self.servers.session(workload), self.record.attempts
        self._keep(attempts=attempt + 1)
        seed = replace(self.seed, repeat=number, attempt=attempt)
        return measured(session, workload, seed, self.kept.directory / place)

    def _run(self, step: NextRun) -> None:
        number = len(self.record.runs) + 1
        asked = f"{at(step.load, self.record.axis)} for {duration(step.duration_s)}"
        again = f" ({step.why})" if step.why else ""
        self.say(f"run {number}: {asked}{again}{self._left}")
        workload = at_load(self.workload, self.record.axis, step)
        judged = {"slo": ", ".join(map(str, self.objectives))}
        try:
            point = self._measured(workload.model_copy(update=judged), number, RUNS)
        except MeasureError as error:  # there is no server, and none can be started
            if not self.record.runs:
                raise
            self._keep(notes=(*self.record.notes, hide_secrets(error.summary)))
            self._end("server-died")
            return
        if point.run is None and not self.record.runs and not point.server_gone:
            raise MeasureError(f"nothing could be measured: {point.reason}")
        if not point.signal:  # one that was cut off shows too little
            self._add(number, step.load, point)
        if point.signal:
            raise signals.Stopped(point.signal)
        if point.server_gone:
            self._restart()

    @property
    def _left(self) -> str:
        """What is left of the budget, in words."""
        if self.record.budget_s is None:
            return ""
        took_s = math.fsum(run.took_s for run in self.record.runs)
        return f"; {duration(max(self.record.budget_s - took_s, 0.0))} of the budget left"

    def _add(self, number: int, load: float, point: MeasuredPoint) -> None:
        directory = "" if point.directory is None else f"{RUNS}/{point.directory.name}"
        run = run_entry.entry(number, load, point, self.objectives, directory)
        runs = (*self.record.runs, run)
        self.record = self.record.model_copy(update={"runs": runs})
        self._keep(attempts=0, **answer.answer(self.settings, runs, self.trials))
        self.say("\n".join(wrap_text(f"  {line(run)}", "    ")))

    def _restart(self) -> None:
        """Start the server again for the next run, where it is ours; else the search is over."""
        if not self.servers.restartable:
            self._end("server-died")
            return
        self.servers.close()

    def _end(self, end: SearchEnd) -> None:
        """Record why the search is over, and what the evidence of the lowest failing load points to."""
        needed_s = search.needed_s(self.settings, self.trials) if end == "budget" else None
        self._keep(
            ended=end, next_run_s=needed_s, **_cause(self.record, end, self.objectives, self.kept.directory)
        )

    def _keep(self, **update: object) -> None:
        self.record = self.record.model_copy(update=update)
        self.kept.replace(self.kept.directory / LIMIT, self.record.model_dump(mode="json"))


def _bounds(record: LimitRecord, alone_s: float) -> dict[str, float]:
    """Where a search begins and how far it goes, as far as that was not asked, by a request's time alone."""
    if record.axis == "concurrency":
        start, lowest, highest = 1.0, 1.0, _MOST_STREAMS
    else:
        start = record.start or 1 / alone_s
        lowest, highest = start / _REACH, start * _REACH**2
    lowest, highest = record.lowest or lowest, record.highest or highest
    start = min(max(record.start or start, lowest), highest)
    return {"alone_s": alone_s, "start": start, "lowest": lowest, "highest": highest}


def at_load(workload: Profile, axis: LoadAxis, step: NextRun) -> Profile:
    """The workload at a load, for a time."""
    # The description is that of the file's own load.
    update: dict[str, object] = {"duration": step.duration_s, "num_prompts": None, "description": ""}
    if axis == "rate":
        update |= {"request_rate": step.load, "max_concurrency": None}  # a cap would hold the rate back
    else:
        update |= {"max_concurrency": int(step.load), "request_rate": math.inf}
    return workload.model_copy(update=update)


def check_samples(probed: Sequence[ObjectiveEvidence]) -> None:
    """Raises UsageError of an objective whose latency no answer of the probe has."""
    for each in probed:
        if not each.samples:
            raise UsageError(
                f"--slo {each.objective}: no answer has this latency (one token has no TPOT or ITL): choose "
                "another figure, or ask for longer answers"
            )


def check_budget(settings: SearchSettings) -> None:
    """Raises UsageError where two of the shortest runs at the first load cost more than the budget."""
    least_s, why = search.least_run(settings, (), settings.start)
    enough_s = 2 * (least_s + _AROUND_S)
    if settings.budget_s is None or enough_s <= settings.budget_s:
        return
    raise UsageError(
        f"--budget {duration(settings.budget_s)} is too small for two runs: at "
        f"{at(settings.start, settings.axis)} one takes {duration(least_s)} ({why}): give --budget "
        f"{_rounded_up(enough_s)}, a lower percentile, or --min-duration"
    )


def time_words(settings: SearchSettings) -> str:
    """What a search takes at least and at most, and how much less its percentiles would take as P90."""
    first_s, why = search.first_run(settings)
    least_s = _two_runs_s(settings)
    words = f"at least {duration(least_s)} in two runs, the first of {duration(first_s)} ({why})"
    if settings.budget_s is not None:
        words += f", at most {duration(settings.budget_s)} (--budget)"
    cheaper = [replace(each, percentile=min(each.percentile, _CHEAP)) for each in settings.objectives]
    high = sorted({each.percentile for each in settings.objectives if each.percentile > _CHEAP})
    cheap_s = _two_runs_s(replace(settings, objectives=tuple(cheaper)))
    if high and cheap_s < _LESS * least_s:
        names = " and ".join(f"P{percentile:g}" for percentile in high)
        words += f"; with P{_CHEAP:g} in place of {names} at least {duration(cheap_s)}"
    return words


def _two_runs_s(settings: SearchSettings) -> float:
    """The seconds of the first run and the fewest of one that follows it, at a load that may be higher."""
    first_s, _ = search.first_run(settings)
    next_s, _ = search.least_run(settings, (), min(search.STEP * settings.start, settings.highest))
    return first_s + min(first_s, next_s) + 2 * _AROUND_S


def _rounded_up(seconds: float) -> str:
    """A time as the flag takes it, in whole seconds or minutes that are not less."""
    return f"{math.ceil(seconds)}s" if seconds < _LONG_S else f"{math.ceil(seconds / 60)}m"


def at(load: float, axis: LoadAxis) -> str:
    """A load with its unit."""
    return f"{limit_lines.load(load)} {limit_lines.UNITS[axis]}"


def line(run: LimitRun) -> str:
    """What came of a run, in a line."""
    shown = [
        f"{limit_lines.figure(each.objective)} {limit_lines.latency(each.value_ms)} ms"
        for each in run.objectives
        if each.value_ms is not None
    ]
    return ", ".join([*shown, limit_lines.outcome(run)])


def _cause(
    record: LimitRecord, end: SearchEnd, objectives: Sequence[Objective], directory: Path
) -> dict[str, object]:
    """The bottleneck of the lowest failing run, and the client's headroom at the highest passing one."""
    found: dict[str, object] = {
        "bottleneck": None, "evidence": "", "headroom": None, "headroom_at_least": False
    }  # fmt: skip
    limited = [run for run in record.runs if run.disturbed]
    client = record.lowest_failing is None or end == "client-limited"
    failing = [run for run in record.runs if run.load == record.lowest_failing and run.directory]
    if client and limited:
        found |= {"bottleneck": "client", "evidence": limited[-1].reason}
    for run in () if client else failing[:1]:
        bound = next((each for each in objectives if str(each) == record.bound_by), objectives[0])
        cause, evidence = bottleneck.pointed_to(run_directory.load(directory / run.directory), bound)
        found |= {"bottleneck": cause, "evidence": evidence}
    passing = [run for run in record.runs if run.load == record.highest_passing and run.passed]
    for run in passing[:1]:
        found |= bottleneck.headroom(run_directory.load(directory / run.directory))
    return found
