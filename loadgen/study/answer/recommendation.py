"""Recommendation: the checkpoint to take under a load, or by searches, within constraints; or why none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property, partial
from typing import Any

import msgspec
import numpy as np

from loadgen.base.errors import UsageError
from loadgen.base.structs import replace
from loadgen.base.text import GIB, format_count, list_first
from loadgen.facts.run_facts import Facts
from loadgen.figures.distribution import CONFIDENCE, find_lower_place, find_upper_index
from loadgen.figures.figure_table import SELECTABLE, find_figure
from loadgen.figures.objectives import Objective, Standing, is_judgeable, judge_objectives
from loadgen.records.record import Records
from loadgen.study import limit_record
from loadgen.study.answer.answer_settings import AnswerRequest, describe_constraints, describe_flags
from loadgen.study.compare import limits, statistics
from loadgen.study.compare.comparability import list_one_servers
from loadgen.study.compare.comparison import INVALID, BaselineRuns, find_column
from loadgen.study.compare.comparison_report import compute_need, compute_speed_up, describe_load
from loadgen.study.compare.limits import ComparedLimits
from loadgen.study.compare.model import (
    ComparedLoad,
    ComparedRow,
    ComparisonOptions,
    Decision,
    Effect,
    Factor,
    Split,
)
from loadgen.study.quality.quality_record import MeanInterval, describe_usual_kl
from loadgen.study.repeats import Mean
from loadgen.study.run_summary import Reported

_UNITS = {"concurrency": "users", "rate": "req/s"}  # of a limit
_HOUR_S, _MILLION = 3600.0, 1e6


class Contest(msgspec.Struct, frozen=True, dict=True):
    """Checkpoints ranked by the headline figure of one load, or by the highest load within objectives."""

    title: str
    label: str  # the unit by which it ranks, as the heading of a column
    baseline: str  # the row that others are compared with; it may be of no row
    rows: Mapping[str, Candidate]  # those with a run that counts
    absent: Mapping[str, str]  # the others, and why
    speeds: Mapping[str, Mean]  # what it ranks by, of comparable rows that have it; latencies are speeds too
    effects: Mapping[str, Effect | None]  # of each row against the baseline, as the table has it
    judge: Callable[[str, str], Effect]  # one row of `speeds` against another, as if it were the only one
    ask: ComparisonOptions
    higher_is_faster: bool = True
    objectives: tuple[str, ...] = ()  # that each row meets at its own highest load; () under a fixed load
    ends: Mapping[str, str] = {}  # how the searches of each row ended
    broken: Mapping[str, str] = {}  # the mark that asks whether a row is fast because it is broken, or ""

    def explain_no_speed(self, name: str) -> str:
        """Write why a row has no speed."""
        if self.objectives:
            return self.ends.get(name, "")
        return f"it has no {self.label} that compares with {self.baseline}"

    def read_speed(self, row: Candidate) -> Value | str:
        """Return a row's speed, else why it has none."""
        speed = self.speeds.get(row.name)
        return self.explain_no_speed(row.name) if speed is None else Value.of(speed)

    def compare(self, name: str, other: str) -> Effect:
        """Compare two rows of `speeds`, in times as fast; with the baseline it is as the table has it.

        Else the effects of `name` on all others are judged together, as those of a table's rows are.
        """
        return self._families[name][other]

    @cached_property
    def _families(self) -> dict[str, dict[str, Effect]]:
        """The effect of each row of `speeds` on each other, in times as fast."""
        families: dict[str, dict[str, Effect]] = {}
        for name in self.speeds:
            others = [other for other in self.speeds if other != name]
            alone = [self.judge(name, other) for other in others]
            judged = statistics.judge_rows(alone, self.ask.equivalence, self.ask.alpha)
            families[name] = dict(zip(others, map(_express_speed, judged), strict=True))
            if name == self.baseline:
                families[name] = {other: _invert(_express_speed(self.effects[other])) for other in others}
            elif self.baseline in families[name]:
                families[name][self.baseline] = _express_speed(self.effects[name])
        return families


def _express_speed(effect: Effect | None) -> Effect:
    """Return an effect with its ratio as how many times as fast a row is; without one that is not known."""
    ratio, low, high = compute_speed_up(effect)
    return replace(effect or Effect(Decision.NONE, ratio), ratio=ratio, low=low, high=high)


def _invert(speed: Effect) -> Effect:
    call = {Decision.FASTER: Decision.SLOWER, Decision.SLOWER: Decision.FASTER}.get(speed.call, speed.call)
    ratio, low, high = (1 / end if end else math.inf for end in (speed.ratio, speed.high, speed.low))
    return replace(speed, call=call, ratio=ratio, low=low, high=high)


def make_load_contest(table: ComparedLoad, ask: ComparisonOptions) -> Contest:
    """Make the contest of checkpoints under one load."""
    key, limit = table.headline, table.load.max_concurrency
    column, rows, absent, speeds = find_column(key), {}, {}, {}
    for line in table.lines:
        runs = tuple(run for run in line.runs if run.level != INVALID)
        if not runs:
            absent[line.name] = "its runs are INVALID" if line.runs else "its runs failed"
            continue
        concurrency = _average_concurrency(runs) if limit is None else float(limit)
        rows[line.name] = Candidate(line.name, runs, concurrency, split=line.split)
        if key in line.summaries and not (key in line.effects and line.effects[key].unlike):
            speeds[line.name] = line.summaries[key]

    def judge(name: str, other: str) -> Effect:
        reference = BaselineRuns.select(rows[other].runs, None, ask)
        used = [run for run in rows[name].runs if reference.is_comparable(run)]
        if not used:
            return Effect(Decision.NONE, math.nan, unlike=True, why=f"unlike {other}")
        return reference.judge_units(used, column)

    return Contest(
        title=table.load.name or describe_load(table.load),
        label=column.label,
        baseline=table.baseline,
        rows=rows,
        absent=absent,
        speeds=speeds,
        effects={line.name: line.effects.get(key) for line in table.lines},
        judge=judge,
        ask=ask,
        higher_is_faster=column.higher_is_faster is not False,
        broken={line.name: line.broken for line in table.lines},
    )


def make_limit_contest(table: ComparedLimits, ask: ComparisonOptions) -> Contest:
    """Make the contest of checkpoints by the highest load that each bears within the same objectives."""
    searches = {row.name: row.searches for row in table.rows}
    speeds, rows = {}, {}
    for row in table.rows:
        if row.limit is not None and row.limit.value is not None:
            ends = [end for end in (row.limit.low, row.limit.high) if end is not None]
            half = (ends[1] - ends[0]) / 2 if len(ends) == 2 else math.nan
            speeds[row.name] = Mean(row.limit.value, half, row.found)
        if row.runs:
            passing = []  # the run of each search at the highest load that passes, or up to the limit
            for search in row.searches:
                serving = search.record.list_serving()
                if serving and search.directory is not None:
                    place = str(search.directory / serving[-1].directory)
                    passing += [run for run in search.runs if run.source == place]
            runs = tuple(passing) or row.runs
            limit = speeds[row.name].mean if row.name in speeds else None
            concurrency = limit if table.axis == "concurrency" else _average_concurrency(runs)
            no_load = "" if passing else "no load was shown to meet the objectives"
            rows[row.name] = Candidate(
                row.name, runs, concurrency, searched=bool(table.objectives), no_load=no_load
            )
    return Contest(
        title=", ".join(filter(None, (*table.objectives, table.about))),
        label=_UNITS[table.axis],
        baseline=table.baseline,
        rows=rows,
        absent={name: "its search has no run" for name in searches if name not in rows},
        speeds=speeds,
        effects={row.name: row.effect for row in table.rows},
        judge=lambda name, other: limits.judge_limits(searches[name], searches[other], ask),
        ask=ask,
        objectives=table.objectives,
        ends={
            name: "; ".join(dict.fromkeys(limit_record.describe_limit(each.record) for each in own))
            for name, own in searches.items()
        },
    )


def _average_concurrency(runs: Sequence[Reported]) -> float | None:
    known = [value for run in runs if (value := run.figure("concurrency")) is not None]
    return Mean.average(known).mean if known else None


class Value(msgspec.Struct, frozen=True):
    """What is known of a checkpoint in one column: a mean with its 95 % interval, or words."""

    mean: float = math.nan
    low: float = math.nan  # NaN: the interval is not known
    high: float = math.nan
    words: str = ""  # in place of a number
    nominal: bool = False  # it is so by definition: of the baseline, or of the reference

    @classmethod
    def of(cls, known: Mean | MeanInterval | Factor) -> Value:
        """Make the value of a mean with its interval."""
        return cls(known.mean, known.low, known.high)

    @property
    def half(self) -> float:
        """Half of the interval; NaN if it is not known."""
        return (self.high - self.low) / 2

    @property
    def least(self) -> float:
        """The lower end of the interval, else the mean."""
        return self.low if self.low == self.low else self.mean

    @property
    def most(self) -> float:
        """The upper end of the interval, else the mean."""
        return self.high if self.high == self.high else self.mean


class Candidate(ComparedRow, frozen=True):
    """A row of a contest, and of its first contest a row of the answer."""

    # Its runs are not INVALID; of searches they are those at the highest load that passes, else all.
    concurrency: float | None = None  # requests in flight in them; None: unknown
    scores: Mapping[str, Value] = {}  # of lm-evaluation-harness, by task
    # Splits its speed against the baseline's, or says why not; a search has none: batches and steps differ.
    split: Split | str | None = None
    reference: str = ""  # the arm or checkpoint that qualities are measured against; "": none
    is_reference: bool = False
    searched: bool = False  # its load was searched for
    no_load: str = ""  # why its runs are at no load that meets the objectives of the search

    @property
    def checkpoint(self) -> str:
        """The checkpoint's name, without the server that it ran on."""
        cell = self.runs[0].cell if self.runs else None
        return self.name if cell is None else cell.checkpoint

    @property
    def arm(self) -> str:
        """The checkpoint on its server in a campaign; the row's name outside of one."""
        cell = self.runs[0].cell if self.runs else None
        return self.name if cell is None else cell.arm

    @property
    def facts(self) -> Iterator[Facts]:
        """The facts of each of its runs that is one of ours."""
        return (run.facts for run in self.runs if run.facts is not None)

    @property
    def divergence(self) -> Value | None:
        """Its KL divergence from the reference, 0 of the reference itself; None if unknown."""
        kl = None if self.quality is None else self.quality.kl
        if self.is_reference:
            return Value(0.0, 0.0, 0.0)
        return None if kl is None else Value.of(kl)

    def average(self, read: Callable[[Reported], float | None]) -> Value | None:
        """Average a figure over starts of the server, else over runs; None if no run has it."""
        units = statistics.list_units(self.runs, read)
        return Value.of(Mean.average(units)) if units else None


def compute_price(candidate: Candidate, rate: str, price_per_hour: float | None) -> Value | str:
    """Compute the price of a million tokens at a rate's key: price ÷ tokens an hour · 10⁶; else why not."""
    if price_per_hour is None:
        return "no price of the machine was given"
    known = candidate.average(lambda run: run.figure(rate))
    if known is None or not known.mean:
        return "no run has the throughput"
    cost, half = price_per_hour / _HOUR_S / known.mean * _MILLION, known.half / known.mean
    return Value(cost, cost * (1 - half), cost * (1 + half))


def list_candidates(
    contests: Sequence[Contest], reference: str, scores: Mapping[str, Mapping[str, Value]]
) -> list[Candidate]:
    """List the rows of all contests, the baseline of the first one first; `scores` are by checkpoint or row.

    `reference` is the arm or checkpoint that qualities are measured against, "" where no campaign names it.
    Raises UsageError where scores are of no row.
    """
    rows: dict[str, Candidate] = {}
    for contest in contests:
        for name in sorted(contest.rows, key=lambda name: name != contest.baseline):
            rows.setdefault(name, contest.rows[name])
    known = {name for each in rows.values() for name in (each.name, each.checkpoint)}
    for name in scores:
        if name not in known:
            raise UsageError(f"--lm-eval {name}: no such checkpoint; there are {', '.join(sorted(known))}")
    served = {each.quality.reference for each in rows.values() if each.quality is not None}
    made = []
    for each in rows.values():
        if reference:
            measured = each.quality is not None and each.quality.kl is not None
            is_reference = reference in (each.arm, each.checkpoint) and not measured
        else:
            is_reference = each.quality is None and any(facts.server.model in served for facts in each.facts)
        own = scores.get(each.name, scores.get(each.checkpoint, {}))
        made.append(replace(each, scores=own, reference=reference, is_reference=is_reference))
    return made


_LEAST_RUNS, _LEAST_OVER = 2, 1.9  # runs, and requests beyond the percentile in each, to bound it by runs


class Judged(msgspec.Struct, frozen=True):
    """Whether a candidate holds one constraint: True, False, or None if that is not known."""

    holds: bool | None
    evidence: str  # that it rests on, or why it is not known
    needed: Mapping[str, Any] = {}  # the setting of an answer with which it would hold; {}: none would
    wanted: str = ""  # what is asked, in words


def judge_constraints(candidate: Candidate, contest: Contest, asked: AnswerRequest) -> list[Judged]:
    """Judge a candidate by each constraint that is asked for, and by its answers if they look broken."""
    broken = contest.broken.get(candidate.name, "")
    every = (
        _judge_fits(candidate, asked),
        _judge_objectives(candidate, contest, asked),
        _judge_kl(candidate, asked),
        Judged(None, broken, wanted="outputs like the baseline's") if broken else None,
    )
    return [judged for judged in every if judged is not None]


def _judge_fits(candidate: Candidate, asked: AnswerRequest) -> Judged | None:
    """Judge the memory that a checkpoint needs: as measured, else by its files or its shape.

    One that took more, of an engine that takes what there is, is not known to fit.
    """
    if asked.fits_bytes is None:
        return None
    wanted = f"{asked.fits_bytes / GIB:.4g} GiB"
    gib, how = compute_need(candidate.checkpoint, candidate.runs)
    if not math.isfinite(gib):
        return Judged(None, f"the memory it needs is not known ({how})", wanted=wanted)
    evidence = f"it needs {gib:.1f} GiB ({how})"
    taken = max((run.memory_bytes or 0 for run in candidate.runs), default=0) / GIB
    holds: bool | None = gib * GIB <= asked.fits_bytes
    if holds and taken * GIB > asked.fits_bytes:
        holds, evidence = None, f"{evidence}, but took {taken:.2f} GiB as it was run"
    return Judged(holds, evidence, {"fits": f"{math.ceil(max(gib, taken))}GiB"}, wanted)


def _judge_objectives(candidate: Candidate, contest: Contest, asked: AnswerRequest) -> Judged | None:
    """Judge the objectives asked for, None if none is; those of a search hold at the load that it found."""
    searched = set(contest.objectives)
    left = [objective for objective in asked.slo if str(objective) not in searched]
    if not left:
        return Judged(True, "by the search", wanted=", ".join(map(str, asked.slo))) if asked.slo else None
    wanted = ", ".join(map(str, asked.slo))
    found = [_judge_objective(objective, candidate) for objective in left]
    failed = [each for each in found if each[0] is not Standing.MEETS]
    if not failed:
        return Judged(True, ", ".join(each[1] for each in found), wanted=wanted)
    holds = False if any(each[0] is Standing.FAILS for each in failed) else None
    changed = [each[2] or str(objective) for objective, each in zip(left, found, strict=True)]
    needed = {"slo": ", ".join(changed)} if all(each[2] for each in failed) else {}
    return Judged(holds, ", ".join(each[1] for each in failed), needed, wanted)


def _judge_objective(objective: Objective, candidate: Candidate) -> tuple[Standing, str, str]:
    """Return a candidate's standing over the requests of its runs, the evidence, and what limit it meets.

    By the bounds of its requests, else, where only figures are known, of its runs; "" for an unknown limit.
    """
    name = f"{objective.metric} p{objective.percentile:g}"
    results = [run.run for run in candidate.runs if run.run is not None]
    slowest: float | None
    if results and len(results) == len(candidate.runs):
        pooled = Records.join_in_turn(result.counted for result in results)
        times_tokens = all(result.metrics.times_tokens for result in results)
        if not is_judgeable(objective, times_tokens):
            return Standing.NOT_SHOWN, f"its {name} is not known", ""
        (evidence,) = judge_objectives(pooled, (objective,), results[0].ask)
        standing, slowest, bound, least = evidence.standing, evidence.value, evidence.bound, ""
    else:
        standing, slowest, bound, least = judge_reported(objective, candidate.runs)
        if slowest is None or (least and standing is Standing.NOT_SHOWN):
            return Standing.NOT_SHOWN, f"its {name} is not known", ""
    words = f"{name} is {least}{_format(slowest)} {objective.unit}"
    if bound is None or not math.isfinite(bound) or bound <= 0:
        few = ", of too few requests or runs" if bound is None and standing is Standing.NOT_SHOWN else ""
        return standing, f"{words}{few}", ""
    needed = _round(bound, up=not objective.is_floor)
    if objective.is_floor:
        side, clause = "least", f"{name} > {needed:g}"
    else:
        side, clause = "most", f"{name} < {needed:g}ms"
    limit = f", at {side} {_format(needed)} {objective.unit}" if standing is Standing.NOT_SHOWN else ""
    return standing, f"{words}{limit}", clause


def judge_reported(
    objective: Objective, runs: Sequence[Reported]
) -> tuple[Standing, float | None, float | None, str]:
    """Judge an objective by the percentiles that results report, failed requests beyond any limit.

    Return its standing at 99 %, the slowest value of a run, infinite where more failed than the percentile
    leaves out (0 of a speed), and its bound on the slow side over the runs; None where they are not known.
    Last comes "at least " (of a speed "at most ") where the value is of a faster percentile, for want of it.
    """
    named = [_list_percentiles(objective, run) for run in runs]
    sent = [run.failures[1] or run.sent or 0.0 for run in runs]
    if not all(named) or not all(sent):
        return Standing.NOT_SHOWN, None, None, ""
    tail, infinite = objective.tail / 100, 0.0 if objective.is_floor else math.inf
    failed = [run.failures[0] for run in runs]
    # Rank among the requests that succeeded; 1 and more is one that failed.
    ranks = [tail * n / max(n - f, 1e-9) for n, f in zip(sent, failed, strict=True)]
    above = [_find_percentile(own, rank) for own, rank in zip(named, ranks, strict=True)]
    below = [_find_percentile(own, rank, below=True) for own, rank in zip(named, ranks, strict=True)]
    nearest = [slow if slow is not None else fast for slow, fast in zip(above, below, strict=True)]
    known = [infinite if rank > 1 else value for rank, value in zip(ranks, nearest, strict=True)]
    slowest = max((value for value in known if value is not None), key=objective.measure_excess)
    bounds = _bound_percentile(objective, above, below, sent)
    shown = _judge_counts(objective, named, sent, failed)
    if shown is Standing.NOT_SHOWN and bounds is not None and max(ranks) <= 1:
        slow, fast = bounds
        meets = slow is not None and objective.holds(slow)
        fails = fast is not None and not objective.holds(fast)
        shown = Standing.MEETS if meets else Standing.FAILS if fails else shown
    least = ("at least ", "at most ")[objective.is_floor] if None in above and max(ranks) <= 1 else ""
    return shown, slowest, None if bounds is None else bounds[0], least


def _list_percentiles(objective: Objective, run: Reported) -> dict[float, float]:
    """List a figure's values in a result by how many of the successes, 0 to 1, are no slower, ascending."""
    found = {}
    for key, figure in ((key, find_figure(key)) for key in run.figures):
        word = key.partition("_")[0]
        rank = {"median": 0.5, "max": 1.0}.get(word)
        if word[:1] == "p" and word[1:2].isdigit():
            rank = float(word[1:]) / 100
        value = run.figure(key)
        if figure is SELECTABLE[objective.metric] and rank is not None and value is not None:
            found[1 - rank if objective.is_floor else rank] = value
    return dict(sorted(found.items()))


def _find_percentile(named: Mapping[float, float], rank: float, below: bool = False) -> float | None:
    """Find the value of the nearest percentile that is no faster (`below`: no slower) than a rank."""
    if below:
        return next((named[own] for own in reversed(named) if own <= rank + 1e-9), None)
    return next((named[own] for own in named if own >= rank - 1e-9), None)


def _bound_percentile(
    objective: Objective, above: Sequence[float | None], below: Sequence[float | None], sent: Sequence[float]
) -> tuple[float | None, float | None] | None:
    """Bound a percentile on its slow and fast side at 99 %, by Student's t of the runs' logarithms.

    Runs and not requests are the units, so that waiting requests need no model. A percentile of n requests
    lies low by (q − its expected rank) ÷ its deviation, which is added. None of too few runs or requests.
    """
    q, n, sign = objective.tail / 100, min(sent), -1.0 if objective.is_floor else 1.0
    few = len(sent) < _LEAST_RUNS or n * (1 - q) < _LEAST_OVER
    if few or find_upper_index(int(sum(sent)), objective.tail) is None:
        return None
    low_by = (q - (q * (n - 1) + 1) / (n + 1)) * math.sqrt(n / (q * (1 - q)))
    try:
        reach = float(-statistics.invert_student(1 - CONFIDENCE, len(sent) - 1)) / math.sqrt(len(sent))
    except ImportError:
        return None
    ends: list[float | None] = []
    for values, times in ((above, reach + low_by), (below, -reach)):
        if not all(values):
            ends.append(None)
            continue
        logs = sign * np.log([value for value in values if value is not None])
        end = sign * (float(logs.mean()) + times * float(logs.std(ddof=1)))
        ends.append(math.exp(end))
    return ends[0], ends[1]


def _judge_counts(
    objective: Objective,
    named: Sequence[Mapping[float, float]],
    sent: Sequence[float],
    failed: Sequence[float],
) -> Standing:
    """Judge an objective by how many requests are surely within and beyond the limit, of all that were sent.

    Of m values a percentile is the one at rank · (m − 1), or between its neighbours.
    """
    within = beyond = 0.0
    for own, n, f in zip(named, sent, failed, strict=True):
        good = [rank for rank, value in own.items() if objective.holds(value)]
        bad = [rank for rank, value in own.items() if not objective.holds(value)]
        within += math.floor(good[-1] * (n - f - 1) + 1e-9) + 1 if good else 0
        beyond += f + (n - f - math.ceil(bad[0] * (n - f - 1) - 1e-9) if bad else 0)
    total = int(sum(sent))
    upper, lower = find_upper_index(total, objective.tail), find_lower_place(total, total, objective.tail)
    if upper is not None and within > upper:
        return Standing.MEETS
    return Standing.FAILS if lower is not None and total - beyond <= lower else Standing.NOT_SHOWN


def _judge_kl(candidate: Candidate, asked: AnswerRequest) -> Judged | None:
    """Judge a candidate's KL by its interval, of the reference as held; None if no limit is asked."""
    if asked.max_kl is None:
        return None
    wanted = f"a KL of {asked.max_kl:g}"
    if candidate.is_reference:
        return Judged(True, "it is the reference", wanted=wanted)
    quality = candidate.quality
    if quality is None or quality.kl is None:
        why = "quality was not measured" if quality is None else quality.why.get("kl", "no reason is known")
        return Judged(None, f"its KL is not known: {why}", wanted=wanted)
    kl = quality.kl
    holds = True if kl.high <= asked.max_kl else False if kl.low > asked.max_kl else None
    evidence = f"its KL is {kl.mean:.3g} ({kl.low:.3g} to {kl.high:.3g})"
    needed = {"max_kl": _round(kl.high, up=True)} if kl.high > 0 else {}
    return Judged(holds, evidence, needed, wanted)


def _format(value: float) -> str:
    return f"{value:.3g}" if not 1e3 <= value < 1e9 else f"{value:.0f}"


def _round(value: float, up: bool) -> float:
    """Round a value above 0 to two digits, up or else down."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    steps = math.ceil(value / step - 1e-9) if up else math.floor(value / step + 1e-9)
    return float(f"{steps * step:.6g}")


_MOST_CHANGES = 3


class Advice(StrEnum):
    """What a recommendation comes to."""

    TAKE = "take"
    UNDECIDED = "undecided"
    NONE = "none"  # no candidate holds the constraints


class Recommendation(msgspec.Struct, frozen=True):
    """What to take in one contest; `names` are those to take, any of them, or that are not separated."""

    contest: str
    choice: Advice
    names: tuple[str, ...]
    words: str
    remarks: tuple[str, ...] = ()  # what else would be taken, and with what; what to know of it
    judged: Mapping[str, tuple[Judged, ...]] = {}  # by candidate

    @property
    def open(self) -> list[str]:
        """The names of the candidates that no constraint excludes."""
        return [name for name, own in self.judged.items() if all(one.holds is not False for one in own)]


def recommend(contest: Contest, candidates: Sequence[Candidate], asked: AnswerRequest) -> Recommendation:
    """Recommend the fastest candidate that holds every constraint, in one contest.

    Undecided where the fastest is not shown to hold them, or is not shown to be faster than the next; of
    equally fast ones it is the nearest to the reference.
    """
    ranked = _rank(contest, candidates)
    lacking = {name: contest.explain_no_speed(name) for name in contest.rows if name not in contest.speeds}
    lacking |= contest.absent
    missing = [f"{name} ({why})" for name, why in lacking.items()]
    if not ranked:
        words = f"undecided: {list_first(missing, _MOST_CHANGES)}"
        return Recommendation(contest.title, Advice.UNDECIDED, (), words)
    chosen = _choose(contest, ranked, asked, alone=not lacking or bool(contest.objectives))
    advice, words = chosen.choice, chosen.words
    taken = chosen.names[0] if chosen.names else ""
    if advice is Advice.TAKE:
        names = " or ".join(f"{name}{_name_settings(contest, name)}" for name in chosen.names)
        words = f"take {names}: {words}{_write_price(contest, taken, asked)}"
    remarks = [*_list_changes(contest, ranked, asked, chosen)]
    behind = [name for name in chosen.open if name not in chosen.names]
    if advice is Advice.TAKE and behind:
        speed = contest.compare(behind[0], taken)
        lead = (
            _write_lead(contest, _write_times(speed)) if _write_times(speed) else f"not compared: {speed.why}"
        )
        remarks.append(f"next: {behind[0]}, {lead}{_write_price(contest, behind[0], asked)}")
    if advice is Advice.TAKE:
        if asked.max_kl is None:
            remarks += _list_cautions(next(each for each in ranked if each.name == taken))
        sign = 1 if contest.higher_is_faster else -1
        leader = max(chosen.open, key=lambda name: (sign * contest.speeds[name].mean, name == taken))
        if leader != taken and contest.compare(taken, leader).call is Decision.FASTER:
            means = "by the mean of all runs, some without a partner"
            remarks.append(f"{leader} leads {means}; in pairs {taken} is faster")
    for each in (each for each in ranked if each.name in chosen.names):
        failed, sent = (math.fsum(run.failures[part] for run in each.runs) for part in (0, 1))
        if failed:
            lost = f"{failed:.0f} of {sent:.0f} requests failed"
            remarks.append(f"{each.name}: {lost}, which are not in its figures")
    remarks += list_one_servers(ranked)
    if lacking and contest.objectives and advice is Advice.TAKE:
        advice = Advice.UNDECIDED
        words = f"undecided: {taken} has the highest limit found, but others have none"
    if missing:
        remarks.append(f"not ranked: {list_first(missing, _MOST_CHANGES)}")
    return replace(chosen, choice=advice, words=words, remarks=tuple(remarks))


def _rank(contest: Contest, candidates: Sequence[Candidate]) -> list[Candidate]:
    """List the candidates with a speed in a contest, first those that are ahead of most others in pairs.

    A mean over all runs of a row is another thing: a run without a partner is in it, and what drifted
    meanwhile. It only orders those that are ahead of as many.
    """
    speeds = contest.speeds
    known = [each for each in candidates if each.name in speeds]

    def rate(each: Candidate) -> tuple[int, float]:
        others = (other.name for other in known if other is not each)
        ahead = sum(contest.compare(each.name, name).ratio > 1 for name in others)
        return ahead, speeds[each.name].mean * (1 if contest.higher_is_faster else -1)

    return sorted(known, key=rate, reverse=True)


def _choose(
    contest: Contest, ranked: Sequence[Candidate], asked: AnswerRequest, alone: bool = True
) -> Recommendation:
    """Choose among ranked candidates under constraints; `alone`: no other checkpoint was measured."""
    judged = {each.name: tuple(judge_constraints(each, contest, asked)) for each in ranked}
    chosen = partial(Recommendation, contest.title, judged=judged)
    open_ = [each for each in ranked if all(one.holds is not False for one in judged[each.name])]
    if not open_:
        return chosen(Advice.NONE, (), "take none: no checkpoint is within the constraints")
    top, *rest = (each.name for each in open_)
    if unknown := [one for one in judged[top] if one.holds is None]:
        certain = [name for name in rest if all(one.holds for one in judged[name])]
        but = f"; {certain[0]} is within all" if certain else ""
        why = "; ".join(f"{one.evidence}, required: {one.wanted}" for one in unknown)
        words = f"undecided: {top} is the fastest, but {why}{but}"
        return chosen(Advice.UNDECIDED, (top, *certain[:1]), words)
    against = {name: contest.compare(top, name) for name in rest}
    shown = (Decision.FASTER, Decision.EQUIVALENT)
    if rivals := [name for name, speed in against.items() if speed.call not in shown]:
        words = f"undecided: {_explain_undecided(top, rivals[0], against[rivals[0]])}"
        return chosen(Advice.UNDECIDED, (top, *rivals), words)
    equal = [
        each
        for each in open_
        if each.name == top
        or (against[each.name].call is Decision.EQUIVALENT and all(one.holds for one in judged[each.name]))
    ]
    if len(equal) > 1:
        names, words = _choose_equal(equal)
        return chosen(Advice.TAKE, names, words)
    within = " within " + " and ".join(one.wanted for one in judged[top]) if judged[top] else ""
    if not rest and not alone:
        return chosen(Advice.UNDECIDED, (top,), f"undecided: {top} is the only one compared{within}")
    if not rest:
        return chosen(Advice.TAKE, (top,), f"the only one{within}")
    of = "" if alone else " of those compared"
    lead = _write_lead(contest, _write_times(against[rest[0]]), rest[0])
    return chosen(Advice.TAKE, (top,), f"the fastest{of}{within}, {lead}")


def _name_settings(contest: Contest, name: str) -> str:
    """Write in brackets the flags by which a row differs from others of its checkpoint; "" if by none."""
    arms, row = contest.ask.campaign.arms, contest.rows[name]
    others = [arms.get(each.arm, {}) for each in contest.rows.values() if each.checkpoint == row.checkpoint]
    own, every = arms.get(row.arm, {}), {key: None for other in others for key in other}
    flags = {key: value for key, value in own.items() if any(other.get(key) != value for other in others)}
    words = [describe_flags(flags), *(f"no {describe_flags({key: True})}" for key in every if key not in own)]
    return f" ({', '.join(filter(None, words))})" if any(words) else ""


def _write_price(contest: Contest, name: str, asked: AnswerRequest) -> str:
    """Write what a million output tokens cost and at which load, as the end of a sentence; "" if unknown."""
    row = contest.rows[name]
    price = compute_price(row, "output_throughput", asked.price_per_hour)
    if isinstance(price, str) or row.no_load:
        return ""
    limit = f"its limit, {contest.speeds[name].mean:.4g} {contest.label}"
    load = limit if row.searched else f"the load {contest.title}"
    return f"; a million output tokens cost {price.mean:.3g} at {load}"


def _choose_equal(equal: Sequence[Candidate]) -> tuple[tuple[str, ...], str]:
    """Choose of equally fast candidates the one shown to be nearest to the reference, else any; and why."""
    names = [each.name for each in equal]
    for each in equal:
        others = [other.divergence for other in equal if other is not each]
        own = each.divergence
        if own is not None and all(other is not None and own.most < other.least for other in others):
            rest = ", ".join(name for name in names if name != each.name)
            near = "it is the reference" if each.is_reference else f"nearer to {each.reference}"
            return (each.name,), f"as fast as {rest}, and {near}"
    return tuple(names), "they are equally fast"


def _explain_undecided(top: str, rival: str, speed: Effect) -> str:
    if not (times := _write_times(speed)):
        return f"{top} and {rival} have no verdict" + (f": {speed.why}" if speed.why else "")
    ends = f" ({speed.low:.2f} to {speed.high:.2f})" if math.isfinite(speed.low) else ""
    if speed.call is Decision.SLOWER:  # of three, each faster than the next
        return f"{top} is ahead of most others, but {times}{ends} as fast as {rival}"
    begun = f"{top} leads {rival} by {times}{ends}, which is not significant"
    if speed.call is Decision.NONE:
        return f"{begun}: {speed.why}" if speed.why else begun
    more = speed.more_runs
    return (
        begun if more is None else f"{begun}; about {format_count(more, 'more run')} per side would decide it"
    )


def _list_changes(
    contest: Contest, ranked: Sequence[Candidate], asked: AnswerRequest, chosen: Recommendation
) -> Iterator[str]:
    """Yield under which other constraints a faster candidate is taken, then which others are excluded.

    Each is chosen again under those constraints, and is named only if that takes it. Three at most are.
    """
    taken, judged = chosen.names[0] if chosen.names else "", chosen.judged
    names = [each.name for each in ranked]
    named: list[str] = []
    for name in names[: names.index(taken)] if taken else names:
        unmet = [one for one in judged[name] if one.holds is False]
        if len(named) == _MOST_CHANGES or not unmet or not all(one.needed for one in unmet):
            continue
        needed = {key: value for one in unmet for key, value in one.needed.items()}
        again = _choose(contest, ranked, asked.change(needed))
        if again.choice is not Advice.TAKE or again.names[0] != name or taken in again.names:
            continue
        named.append(name)
        why = ", ".join(one.evidence for one in unmet)
        lead = f", {_write_lead(contest, _write_times(contest.compare(name, taken)))}" if taken else ""
        yield f"with {describe_constraints(needed)}: {' or '.join(again.names)}{lead} ({why})"
    unmet_first = {name: next((one for one in judged[name] if one.holds is False), None) for name in names}
    shut = [f"{name} ({one.evidence})" for name, one in unmet_first.items() if one and name not in named]
    if shut:
        yield f"excluded: {list_first(shut, _MOST_CHANGES)}"


def _list_cautions(taken: Candidate) -> Iterator[str]:
    """Yield what to know of a taken candidate's KL, where no limit was asked; nothing of the reference."""
    kl = taken.divergence
    if kl is None and taken.quality is not None:
        why = taken.quality.why.get("kl", "no reason is known")
        yield f"by speed alone: its KL is not known: {why}"
    elif kl is None:
        yield "by speed alone: its quality was not measured ([quality] in a campaign's file)"
    elif not taken.is_reference:
        usual = describe_usual_kl(kl.mean)
        yield f"its KL is {kl.mean:.3g} ({kl.low:.3g} to {kl.high:.3g}), {usual}: no --max-kl was given"


def _write_times(speed: Effect) -> str:
    """Write a speed-up as "1.9 ×", with one decimal if its interval is wide, else two; "" if unknown."""
    if not math.isfinite(speed.ratio):
        return ""
    half = (speed.high - speed.low) / 2
    decimals = 1 if speed.ratio >= 1.1 and half >= 0.05 else 2
    return f"{speed.ratio:.{decimals}f} ×"


def _write_lead(contest: Contest, times: str, other: str = "") -> str:
    """Write "1.9 × as fast as BF16", of a search "1.9 × the users of BF16"; no name without `other`."""
    if contest.objectives:
        return f"{times} the {contest.label}" + (f" of {other}" if other else "")
    return f"{times} as fast" + (f" as {other}" if other else "")
