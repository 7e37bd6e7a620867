"""Limit search: the runs of a search made one by one, and the record of what they show, after each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from loadgen.base import signals
from loadgen.base.clock import MS_NS, SECOND_NS
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.rule import Origin, Severity
from loadgen.base.secrecy import hide_secrets
from loadgen.base.text import format_count, wrap_text
from loadgen.figures.figure_table import SELECTABLE
from loadgen.figures.objectives import (
    Objective,
    ObjectiveEvidence,
    Standing,
    join_standings,
    judge_objectives,
    parse_objectives,
)
from loadgen.figures.per_request import PerRequest
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import Seed
from loadgen.report import run_directory
from loadgen.report.run_directory import Result
from loadgen.run.session import Session
from loadgen.server.server_counters import ServerWindow
from loadgen.study import limit_record
from loadgen.study.limit_record import (
    Bottleneck,
    LimitEstimate,
    LimitRecord,
    LimitRun,
    ObjectiveFigures,
    SearchEnd,
    name_percentile,
)
from loadgen.study.load_table import find_knee
from loadgen.study.repeats import Mean
from loadgen.study.series.limit.search import STEP, NextRun, Search, Trial
from loadgen.study.series.point_runs import (
    MeasuredPoint,
    PointServers,
    Step,
    measure_point,
    read_point,
    run_series,
)
from loadgen.study.series.series_store import SeriesStore
from loadgen.study.series.time_estimate import format_duration
from loadgen.study.sweep_record import LoadAxis
from loadgen.verdict.verdict import Level

RUNS, PROBE = "runs", "probe"
_PROBED = 5  # requests, one at a time
_NO_DELAYS = "none"  # of --turn-delays
_REACH = 64.0  # the lowest rate that is tried, as a divisor of the first, and the root of the highest one
_MOST_STREAMS = 65536.0
_LONG_S = 600.0
_WHOLE = 0.8  # of a run's time: sending goes on for at least as long, unless nothing is left
_SLOWER = 1.1  # times that another probe's answers may take
_AROUND_S = 2.0  # that a run takes beyond its time: warm-up, the last answers, writing
_FULL = 0.95  # of the KV cache
_NO_QUEUE_TIME = "the server reports no queue time"
_NEAR = 1.25  # times the limit, or a part of it: power hardly changes between such loads
_KW = 1e3  # watts
_KEPT, _VALUES = ("samples", "over", "batches", "dispersion"), ("value", "bound", "fast_bound")  # of evidence
# Ends that answer what was asked, be it only that a bound of the search is the limit.
ANSWERS: tuple[SearchEnd, ...] = ("within", "everything-passes", "nothing-passes", "client-limited")


@dataclass
class LimitSearch:
    """A search on servers that are kept, from what its record has: the runs so far, and what is asked."""

    servers: PointServers
    workload: Profile
    objectives: tuple[Objective, ...]
    record: LimitRecord
    kept: SeriesStore
    seed: Seed
    say: Callable[[str], None]
    budget_name: str = "--budget"  # in messages
    signal: int = 0  # that ended it

    def find(self) -> LimitRecord:
        """Make runs until the search ends, and return the record; raises LoadgenError if it cannot.

        A signal sets `signal` and ends the search as interrupted.
        """
        try:
            run_series(self, self.servers)
        except KeyboardInterrupt as stop:
            self.signal = signals.read_number(stop)
            self._end("interrupted")
        return self.record

    def choose(self) -> Step[NextRun | None] | None:
        """Choose and print the next run, first a probe (`what` is None).

        When the search is over, the record's end is written and None returned.
        """
        if self.record.alone_s is None:
            self.say("probe: a few requests, one at a time")
            return Step(None, make_probe(self.workload))
        if self.record.ended is not None:
            return None
        step = self.search.choose_next_run()
        if isinstance(step, str):
            self._end(step)
            return None
        unit = limit_record.name_unit(self.record.axis, self.record.of_sessions)
        asked = f"{limit_record.format_load(step.load)} {unit} for {format_duration(step.duration_s)}"
        again, left = f" ({step.why})" if step.why else "", ""
        if self.record.budget_s is not None:
            left_s = max(self.record.budget_s - math.fsum(run.took_s for run in self.record.runs), 0.0)
            left = f"; {format_duration(left_s)} of the budget left"
        self.say(f"run {len(self.record.runs) + 1}: {asked}{again}{left}")
        workload = set_load(self.workload, self.record.axis, step)
        return Step(step, workload.model_copy(update={"slo": ", ".join(map(str, self.objectives))}))

    def measure(self, step: Step[NextRun | None], session: Session) -> MeasuredPoint:
        """Count the attempt in the record, measure a run with new prompts, and move it to its place.

        A run that is there already, since the search died before the record followed, is not made again.
        """
        number = 0 if step.what is None else len(self.record.runs) + 1
        name = f"{number:03}-{'alone' if step.what is None else f'{step.what.load:g}'}"
        store = SeriesStore(self.kept.directory, self.kept.kind, PROBE if step.what is None else RUNS)
        if (kept := read_point(store.directory / store.whole / name)) is not None:
            return kept
        attempt = self.record.attempts
        self._write_record(attempts=attempt + 1)
        seed = replace(self.seed, repeat=number, attempt=attempt)
        point = measure_point(session, step.workload, seed, store.begin(name))
        if point.directory is None or point.signal:
            return point
        return replace(point, directory=store.finish(name, point.directory))

    def keep(self, step: Step[NextRun | None], point: MeasuredPoint) -> None:
        """Write what the probe or a run showed to the record; one that a signal ended is not kept.

        Where the server is gone, and was not or cannot be started again, the search ends. Raises LoadgenError
        if nothing was measured at all.
        """
        if point.signal:  # a run that was cut off shows too little
            return
        if point.error is not None and point.unserved:  # and none can be started
            if not self.record.runs or not isinstance(point.error, MeasureError):
                raise point.error
            self._write_record(notes=(*self.record.notes, hide_secrets(point.error.summary)))
            self._end("server-died")
        elif step.what is None:
            self._record_probe(point)
        elif point.run is None and not self.record.runs and not point.server_gone:
            raise MeasureError(f"nothing could be measured: {point.reason}")
        else:
            self._record_run(len(self.record.runs) + 1, step.what.load, point)
            if point.server_gone and not self.servers.restartable:
                self._end("server-died")
            elif self.record.runs[-1].ran_out:
                self._end("ran-out")

    @property
    def search(self) -> Search:
        """The search by its record, to choose from; bounds and start are only set once it was probed."""
        return make_search(self.record, self.objectives)

    def _record_probe(self, point: MeasuredPoint) -> None:
        """Write the probe's latency, and missing first load and bounds, to the record; or raise why not."""
        if point.run is None or not point.run.records.ok.any():
            raise MeasureError(f"one request at a time was not served: {point.reason}")
        for each in judge_objectives(point.run.records, self.objectives, point.run.ask):
            if not each.samples:
                raise UsageError(
                    f"--slo {each.objective}: no response has this figure (one token has no TPOT or ITL): "
                    "choose another figure, or ask for longer outputs"
                )
        record, alone_s = self.record, point.run.metrics.e2el.mean_ms / 1e3
        start = 1.0 if record.axis == "concurrency" else record.start or 1 / alone_s
        ends = (1.0, _MOST_STREAMS) if record.axis == "concurrency" else (start / _REACH, start * _REACH**2)
        lowest, highest = record.lowest or ends[0], record.highest or ends[1]
        self.record = record.model_copy(
            update={
                "alone_s": alone_s,
                "start": min(max(record.start or start, lowest), highest),
                "lowest": lowest,
                "highest": highest,
                "simulated": bool(point.run.facts.server.simulated),
                "of_sessions": bool(point.run.facts.session_turns),
                "attempts": 0,
            }
        )
        check_budget(self.search, self.budget_name)
        self._write_record()
        self.say(f"  a request alone takes {1e3 * alone_s:.4g} ms")
        self.say("\n".join(wrap_text(f"time: {estimate_time(self.search)}", "  ")))

    def _record_run(self, number: int, load: float, point: MeasuredPoint) -> None:
        """Add a run's entry to the record, write it with what all runs now show, and print a line."""
        directory = "" if point.directory is None else f"{RUNS}/{point.directory.name}"
        run = make_entry(number, load, point, self.objectives, directory)
        runs = (*self.record.runs, run)
        self.record = self.record.model_copy(update={"runs": runs})
        self._write_record(attempts=0, **make_answer(self.search, runs))
        shown = [
            f"{name_percentile(each.objective)} {limit_record.format_value(each.value)} {each.unit}"
            for each in run.objectives
            if each.value is not None
        ]
        line = ", ".join([*shown, limit_record.describe_standing(run)])
        self.say("\n".join(wrap_text(f"  {line}", "    ")))

    def _end(self, end: SearchEnd) -> None:
        """Write to the record why the search is over, its bottleneck and headroom."""
        needed_s = self.search.estimate_needed_s() if end == "budget" else None
        self._write_record(
            ended=end,
            next_run_s=needed_s,
            **_find_cause(self.record, end, self.objectives, self.kept.directory),
        )

    def _write_record(self, **update: object) -> None:
        """Change these fields of the record, and write it."""
        self.record = self.record.model_copy(update=update)
        self.kept.write_record(self.record)


def make_search(record: LimitRecord, objectives: Sequence[Objective]) -> Search:
    """Make the search that a record is of."""
    kept = {name: getattr(record, name) for name in Search.__struct_fields__ if hasattr(record, name)}
    trials = tuple(make_trial(run, objectives) for run in record.runs)
    return Search(**{**kept, "objectives": tuple(objectives), "trials": trials})


def make_record_again(record: LimitRecord, directory: Path) -> LimitRecord:
    """Make a search's record again of its runs on disk: their entries, the answer, the bottleneck.

    What the search was asked, why it ended and what its runs took of the budget is as it was. Raises
    UsageError if a run cannot be read, ValueError if the record is not one that a search leaves.
    """
    objectives = parse_objectives(", ".join(record.objectives))
    entries, of_sessions = list[LimitRun](), record.of_sessions
    for stored in record.runs:
        if not stored.directory:
            entries.append(stored)
            continue
        run = run_directory.load(directory / stored.directory)
        profile, of_sessions = run.facts.profile, bool(run.facts.session_turns)
        load = profile.request_rate if record.axis == "rate" else float(profile.max_concurrency or 0)
        point = MeasuredPoint(run=run, reason=stored.reason if stored.cut else "", duration_s=stored.took_s)
        entries.append(make_entry(stored.number, load, point, objectives, stored.directory))
    made = record.model_copy(update={"runs": tuple(entries), "of_sessions": of_sessions})
    made = made.model_copy(update=make_answer(make_search(made, objectives), made.runs))
    if record.ended is None:
        return made
    return made.model_copy(update=_find_cause(made, record.ended, objectives, directory))


def make_probe(workload: Profile) -> Profile:
    """Return the workload with a few requests, one at a time, and no delays between turns."""
    alone = set_load(workload, "concurrency", NextRun(1, 0))
    update: dict[str, object] = {"duration": None, "num_prompts": _PROBED}
    if workload.sends_sessions:
        update["turn_delays"] = _NO_DELAYS
    return alone.model_copy(update=update)


def set_load(workload: Profile, axis: LoadAxis, step: NextRun) -> Profile:
    """Return the workload with a step's load and duration; the other load, requests and description go."""
    # The description is that of the file's own load.
    update: dict[str, object] = {"duration": step.duration_s, "num_prompts": None, "description": ""}
    if axis == "rate":
        update |= {"request_rate": step.load, "max_concurrency": None}  # a cap would hold the rate back
    else:
        update |= {"max_concurrency": int(step.load), "request_rate": math.inf}
        if workload.users is not None:
            update["users"] = int(step.load)
    return workload.model_copy(update=update)


def check_budget(search: Search, name: str = "--budget") -> None:
    """Raise UsageError, with advice, where two of the shortest runs at the first load exceed the budget."""
    least_s, why = search.find_least_run(search.start)
    enough_s = 2 * (least_s + _AROUND_S)
    if search.budget_s is None or enough_s <= search.budget_s:
        return
    raise UsageError(
        f"{_write_time(name, search.budget_s)} is too small for two runs: at "
        f"{limit_record.format_load(search.start)} {limit_record.name_unit(search.axis)} one takes "
        f"{format_duration(least_s)} ({why}): give {_write_time(name, _SLOWER * enough_s)}"
    )


def _write_time(name: str, seconds: float) -> str:
    """Write a time as its key or its flag takes it, in whole seconds or minutes that are not less."""
    if name.endswith("="):
        return f"{name} {math.ceil(seconds)}"
    return f"{name} {math.ceil(seconds)}s" if seconds < _LONG_S else f"{name} {math.ceil(seconds / 60)}m"


def estimate_time(search: Search) -> str:
    """Return in words the least time of a search, two runs, and the budget as the most, if there is one."""
    first_s, why = search.estimate_first_run()
    next_s, _ = search.find_least_run(min(STEP * search.start, search.highest))
    least_s = first_s + min(first_s, next_s) + 2 * _AROUND_S
    words = (
        f"at least {format_duration(least_s)} in two runs, the first of {format_duration(first_s)} ({why})"
    )
    if search.budget_s is None:
        return words
    return f"{words}, at most {format_duration(search.budget_s)} (--budget)"


def _find_cause(
    record: LimitRecord, end: SearchEnd, objectives: Sequence[Objective], directory: Path
) -> dict[str, object]:
    """Return what single runs give of the record: the bottleneck, and the client's headroom."""
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
        cause, evidence = find_bottleneck(run_directory.load(directory / run.directory), bound)
        found |= {"bottleneck": cause, "evidence": evidence}
    for run in record.list_serving()[:1]:
        found |= measure_headroom(run_directory.load(directory / run.directory))
    return found


def make_entry(
    number: int, load: float, point: MeasuredPoint, objectives: Sequence[Objective], directory: str
) -> LimitRun:
    """Make the record's entry of a run, with its standing, figures and grave doubts.

    Without a run it fails if the server is gone, and else counts as disturbed. A saturated run never does.
    """
    run = point.run
    if run is None:
        return LimitRun(
            number=number,
            load=load,
            directory="",
            standing=Standing.FAILS if point.server_gone else Standing.NOT_SHOWN,
            reason=point.reason,
            disturbed=not point.server_gone,
            took_s=point.duration_s,
        )
    evidence = judge_objectives(run.records, objectives, run.ask)
    each = PerRequest.from_records(run.records, run.ask)
    e2el_ns = each.e2el_ns[each.ok]
    saturated = run.facts.saturated
    disturbing = [] if saturated else _list_disturbing(run, evidence)
    figures, sensed = run.metrics, run.facts.sensed
    spent = None if sensed is None else sensed.energy
    standing, reason = _judge_run(run, point, evidence, disturbing)
    if ran_out := standing is not Standing.FAILS and _has_run_out(run, evidence):
        standing, reason = Standing.NOT_SHOWN, "it had nothing left to send"
    stored = []  # infinity and NaN as None
    for shown in evidence:
        goal = shown.objective
        kept: dict[str, Any] = {name: getattr(shown, name) for name in _KEPT}
        kept |= {name: _drop_infinite(getattr(shown, name)) for name in _VALUES}
        kept |= {"limit": goal.limit, "unit": goal.unit, "standing": shown.standing}
        stored.append(ObjectiveFigures(objective=str(goal), **kept))
    return LimitRun(
        number=number,
        load=load,
        directory=directory,
        standing=standing,
        reason=reason,
        verdict=run.verdict.level.value,
        doubts=tuple(found.rule.code for found in run.verdict.grave),
        saturated=saturated,
        disturbed=bool(disturbing) and not ran_out,
        cut=bool(point.reason),
        ran_out=ran_out,
        objectives=tuple(stored),
        duration_s=figures.duration_s,
        took_s=point.duration_s,
        p99_e2el_ms=float(np.percentile(e2el_ns, 99)) / MS_NS if len(e2el_ns) else None,
        request_throughput_per_s=_drop_infinite(figures.request_throughput_per_s),
        output_throughput_per_s=_drop_infinite(figures.output_throughput_per_s),
        goodput_per_s=_drop_infinite(figures.goodput_per_s),
        power_w=None if spent is None else spent.mean_w,
    )


def make_trial(run: LimitRun, objectives: Sequence[Objective]) -> Trial:
    """Convert a search's stored run to a Trial; a cut or INVALID one that is not disturbed is invalid."""
    evidence = []
    for objective, figures in zip(objectives, run.objectives, strict=bool(run.objectives)):
        kept = {name: getattr(figures, name) for name in (*_KEPT, *_VALUES)}
        if figures.value is None:
            kept["value"] = math.nan
        evidence.append(ObjectiveEvidence(objective, **kept))
    return Trial(
        load=run.load,
        duration_s=run.duration_s,
        took_s=run.took_s,
        objectives=tuple(evidence),
        # The record lacks how many independent requests the samples are worth, by which it was judged.
        shown=tuple(figures.standing for figures in run.objectives),
        invalid=not run.disturbed and (run.cut or run.verdict == Level.INVALID),
        saturated=run.saturated,
        disturbed=run.disturbed or run.ran_out,
        p99_e2el_s=None if run.p99_e2el_ms is None else run.p99_e2el_ms / 1e3,
        requests_per_s=run.request_throughput_per_s,
    )


def _has_run_out(run: Result, evidence: Sequence[ObjectiveEvidence]) -> bool:
    """Whether all was sent long before a run's time was over, too little for samples or for its load."""
    sent, seconds = run.records.select(run.records.sent), run.facts.profile.duration
    if seconds is None or not len(sent) or run.verdict.level is Level.INVALID:
        return False
    lasted_s = (int(sent.end_ns.max()) - int(sent.sent_ns.min())) / SECOND_NS
    held, had = run.facts.held_concurrency or 0, run.facts.own_sessions or len(sent)
    few = had < held or any(each.bound is None for each in evidence)
    return few and lasted_s < _WHOLE * seconds


def _list_disturbing(run: Result, evidence: Sequence[ObjectiveEvidence]) -> list[str]:
    """List the codes of grave doubts by which a run shows nothing of the server, so that it is repeated.

    These are doubts that the client or its machine causes, and INVALID ones, unless an INVALID one has the
    load as its cause: such a run shows that the server did not bear it. Those that can only make times longer
    are none where every objective is met.
    """
    found = [each.rule for each in run.verdict.grave]
    invalid = [rule for rule in found if rule.severity is Severity.INVALID]
    stood = not any(rule.origin is Origin.LOAD for rule in invalid)
    longer: set[Origin] = set()
    if not invalid and join_standings(each.standing for each in evidence) is Standing.MEETS:
        longer.add(Origin.MACHINE)
        if all(SELECTABLE[each.objective.metric].phase != "token" for each in evidence):
            longer.add(Origin.READING)
    ours = {Origin.CLIENT, Origin.MACHINE, Origin.READING} - longer
    return [rule.code for rule in found if rule.origin in ours or (stood and rule in invalid)]


def _judge_run(
    run: Result, point: MeasuredPoint, evidence: Sequence[ObjectiveEvidence], disturbing: Sequence[str]
) -> tuple[Standing, str]:
    """Judge whether a run meets all objectives; return the standing, and why it is not shown to, else ""."""
    if disturbing:
        return Standing.NOT_SHOWN, f"disturbed ({', '.join(disturbing)})"
    if run.facts.saturated:
        return Standing.FAILS, "saturated: the server fell further and further behind"
    if point.reason:
        return Standing.FAILS, point.reason
    if run.verdict.level is Level.INVALID:
        return Standing.FAILS, f"the run is INVALID: {run.verdict.findings[0].rule.code}"
    return join_standings(each.standing for each in evidence), ", ".join(_list_missed(evidence))


def _list_missed(evidence: Sequence[ObjectiveEvidence]) -> Iterator[str]:
    """Yield, for each objective that is not shown to be met, its value, or that samples are too few."""
    for each in evidence:
        if each.passes:
            continue
        what, unit = f"{each.objective.metric} p{each.objective.percentile:g}", each.objective.unit
        if each.bound is None and each.standing is not Standing.FAILS:
            yield f"{what}: {format_count(each.samples, 'sample')}, too few"
        elif each.standing is Standing.FAILS:
            yield f"{what} is {each.value:.4g} {unit}"
        elif each.objective.holds(each.value):
            yield f"{what} is {each.value:.4g} {unit}, its bound {each.bound:.4g} {unit}"
        else:
            yield f"{what} is {each.value:.4g} {unit}, and may be within"


def _drop_infinite(value: float | None) -> float | None:
    """Return a finite number as it is; None of anything else."""
    return value if value is not None and math.isfinite(value) else None


def make_answer(search: Search, runs: Sequence[LimitRun]) -> dict[str, Any]:
    """Return the fields of a search's record that follow from its runs.

    These are limit, highest passing and lowest failing load, the objective that binds (""), the goodput of
    the last run at the highest passing load, the knee of P99 E2EL over load, power near the limit and the
    limit per kW; None for what is not known.
    """
    limit, passing, at = search.limit, search.highest_passing, search.find_binding()
    # P99 E2EL over load bends here to a steeper line.
    timed = [(run.load, run.p99_e2el_ms) for run in runs if run.p99_e2el_ms and not run.disturbed]
    bend = find_knee([load for load, _ in timed], [latency_ms for _, latency_ms in timed], rises=True)
    there = [run for run in runs if run.passed and run.load == passing and run.goodput_per_s is not None]
    power_w = None if limit is None else estimate_power(runs, limit)
    return {
        "limit": limit,
        "highest_passing": passing,
        "lowest_failing": search.lowest_failing,
        "bound_by": "" if at is None else str(search.objectives[at]),
        "goodput_per_s": there[-1].goodput_per_s if there else None,
        "knee": None if bend is None else LimitEstimate(value=bend.load, low=bend.low, high=bend.high),
        "power_w": power_w,
        "per_kw": None if limit is None or power_w is None else divide_by_power(limit, power_w),
    }


def find_bottleneck(run: Result, objective: Objective) -> tuple[Bottleneck, str]:
    """Return the cause of a run's limit and its figures in words, "unknown" if its counters show none.

    It is the first of: a KV cache that was 95 % full or more, or preemptions; decoding, if the objective is
    of tokens' times; the longest phase of the mean latency, if the time in the queue is known; requests that
    waited. Counters with an error, or that were reset in between, show nothing.
    """
    known = run.facts.window
    window = known if known is not None and known.is_known else None
    if window is not None:
        usage, preempted = window.peak("kv_cache_usage"), window.preemptions or 0
        if preempted or (usage is not None and usage >= _FULL):
            full = "" if usage is None else f"KV cache {100 * usage:.0f} % full at most, "
            return "kv-cache", f"{full}{preempted} preemptions"
    tpot_ms = run.metrics.tpot.mean_ms
    if SELECTABLE[objective.metric].phase == "token" and not math.isnan(tpot_ms):
        busy = run.metrics.mean_concurrency
        return "decode", f"mean TPOT {tpot_ms:.4g} ms with {busy:.3g} requests in flight"
    if window is not None and (longest := _find_longest_phase(run, objective, window)) is not None:
        return longest
    waiting = None if window is None else window.peak("waiting")
    return ("queue", f"{waiting:.0f} requests waiting at most") if waiting else ("unknown", _NO_QUEUE_TIME)


def _find_longest_phase(
    run: Result, objective: Objective, window: ServerWindow
) -> tuple[Bottleneck, str] | None:
    """Find the longest part of the mean latency: queue, prefill (TTFT without the queue), or decode.

    Decode counts only if the objective is not of TTFT. None if a part is not known, as the queue's: it is 0
    if no request waited.
    """
    ttft_ms = run.metrics.ttft.mean_ms
    if window.queue is not None and window.queue.count:
        queue_ms = window.queue.mean_ms
    elif window.peak("waiting") == 0:
        queue_ms = 0.0
    else:
        return None
    phases_ms: dict[Bottleneck, float] = {"queue": queue_ms, "prefill": max(ttft_ms - queue_ms, 0.0)}
    name, whole_ms = "TTFT", ttft_ms
    if SELECTABLE[objective.metric].phase != "first":
        name, whole_ms = "E2EL", run.metrics.e2el.mean_ms
        phases_ms["decode"] = whole_ms - ttft_ms
    if not all(map(math.isfinite, phases_ms.values())):
        return None
    parts = ", ".join(f"{part_ms:.4g} {phase}" for phase, part_ms in phases_ms.items())
    return max(phases_ms, key=lambda phase: phases_ms[phase]), f"mean {name} {whole_ms:.4g} ms: {parts}"


def measure_headroom(run: Result) -> dict[str, object]:
    """Measure how many times a run's load the client could have measured: by its self-test, else its CPU.

    Returns fields of the record: `headroom`, None if not known, and `headroom_at_least`, where the self-test
    did not find the capacity.
    """
    client, calibration = run.facts.client, run.facts.calibration
    if calibration is not None and run.metrics.messages_per_s > 0:
        times: float | None = calibration.headroom(run.metrics.messages_per_s, client.workers)
        return {"headroom": times, "headroom_at_least": not calibration.capacity_bounded}
    times = client.wall_s / client.busiest_s if client.busy_cores > 0 else None
    return {"headroom": times, "headroom_at_least": False}


def estimate_power(runs: Sequence[LimitRun], limit: LimitEstimate) -> LimitEstimate | None:
    """Estimate the mean watts at a limit by the runs within 25 % of it, with Student's 95 % interval.

    The mean is geometric. Left out are runs that were disturbed or ended before their time; one run has no
    interval. None if none has power.
    """
    if limit.value is None:
        return None
    near = math.log(_NEAR)
    whole = (run for run in runs if not (run.disturbed or run.saturated or run.cut))
    watts = [
        run.power_w for run in whole if run.power_w and abs(math.log(run.load / limit.value)) <= near + 1e-9
    ]
    if not watts:
        return None
    log_w = Mean.average(list(map(math.log, watts)))
    if math.isnan(log_w.half):
        return LimitEstimate(value=watts[0], low=None, high=None)
    return LimitEstimate(value=math.exp(log_w.mean), low=math.exp(log_w.low), high=math.exp(log_w.high))


def divide_by_power(limit: LimitEstimate, power_w: LimitEstimate) -> LimitEstimate | None:
    """Divide a limit by kilowatts; distances to the ends are added as squares, on a logarithmic scale.

    The two errors are independent. An end that either does not know is None; None without a limit.
    """
    if limit.value is None or power_w.value is None:
        return None
    value = _KW * limit.value / power_w.value
    low = _measure_distance(limit.value, limit.low), _measure_distance(power_w.value, power_w.high)
    high = _measure_distance(limit.value, limit.high), _measure_distance(power_w.value, power_w.low)
    down, up = math.hypot(*low), math.hypot(*high)
    return LimitEstimate(
        value=value,
        low=None if math.isnan(down) else value * math.exp(-down),
        high=None if math.isnan(up) else value * math.exp(up),
    )


def _measure_distance(value: float, end: float | None) -> float:
    """Return |log(end ÷ value)|; NaN without an end."""
    return math.nan if not end else abs(math.log(end / value))
