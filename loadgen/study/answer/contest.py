"""Contest: a load, or a kind of search, under which checkpoints are ranked, and what was measured of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.facts.run_facts import Facts
from loadgen.study import limit_record
from loadgen.study.compare import limits, statistics
from loadgen.study.compare.comparison import INVALID, BaselineRuns, find_column
from loadgen.study.compare.comparison_report import compute_speed_up, describe_load
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
from loadgen.study.quality.quality_record import MeanInterval
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
        if any(search.runs for search in row.searches):
            passing = []  # the run of each search at the highest load that passes, or up to the limit
            for search in row.searches:
                serving = search.record.list_serving()
                if serving and search.directory is not None:
                    place = str(search.directory / serving[-1].directory)
                    passing += [run for run in search.runs if run.source == place]
            runs = tuple(passing or (run for search in row.searches for run in search.runs))
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
    # Of its speed against the baseline's, or why there is none; of a search none: batches and steps differ.
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
