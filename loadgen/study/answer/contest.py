"""Contest: a load, or a kind of search, under which checkpoints are ranked, and what was measured of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.facts.run_facts import Facts
from loadgen.features.quality.quality_record import MeanInterval, Quality
from loadgen.study import limit_record
from loadgen.study.compare import limits, statistics
from loadgen.study.compare.comparison import INVALID, BaselineRuns, find_column
from loadgen.study.compare.comparison_report import compute_speed_up, describe_load
from loadgen.study.compare.limits import ComparedLimits
from loadgen.study.compare.model import (
    CampaignSettings,
    ComparedLoad,
    ComparisonOptions,
    Decision,
    Effect,
    Factor,
    Split,
)
from loadgen.study.importers.clients.loadgen_runs import StoredLimit
from loadgen.study.repeats import Mean
from loadgen.study.run_summary import Reported

_UNITS = {"concurrency": "users", "rate": "req/s"}  # of a limit


class SpeedUp(msgspec.Struct, frozen=True):
    """How many times as fast one checkpoint is as another, with its interval and the verdict."""

    call: Decision
    ratio: float  # NaN: unknown
    low: float
    high: float
    why: str = ""  # of no verdict
    more_runs: int | None = None  # about how many more a side would decide it

    @classmethod
    def of(cls, effect: Effect | None) -> SpeedUp:
        """Make the speed-up of an effect; without one it is unknown."""
        ratio, low, high = compute_speed_up(effect)
        if effect is None:
            return cls(Decision.NONE, ratio, low, high)
        return cls(effect.call, ratio, low, high, effect.why, effect.more_runs)

    def invert(self) -> SpeedUp:
        """Make the speed-up of the other one against this one."""
        call = {Decision.FASTER: Decision.SLOWER, Decision.SLOWER: Decision.FASTER}.get(self.call, self.call)
        ratio, low, high = (1 / end if end else math.inf for end in (self.ratio, self.high, self.low))
        return replace(self, call=call, ratio=ratio, low=low, high=high)


Against = dict[str, SpeedUp]  # of one row against each other one


class LoadContest(msgspec.Struct, frozen=True, dict=True):
    """Checkpoints under one load, ranked by its headline figure."""

    table: ComparedLoad
    ask: ComparisonOptions

    @property
    def title(self) -> str:
        return self.table.load.name or describe_load(self.table.load)

    @property
    def label(self) -> str:
        """The unit by which it ranks, as the heading of a column."""
        return find_column(self.table.headline).label

    @property
    def baseline(self) -> str:
        """The name of the row that others are compared with; it may be of no row."""
        return self.table.baseline

    @property
    def higher_is_faster(self) -> bool:
        """Whether more of it is better; less is, of a latency."""
        return find_column(self.table.headline).higher_is_faster is not False

    @property
    def objectives(self) -> tuple[str, ...]:
        """The objectives that each row meets at its own highest load; () under a fixed load."""
        return ()

    @property
    def names(self) -> list[str]:
        """The rows that have a run which is not INVALID, of a search any run."""
        return [line.name for line in self.table.lines if self.list_runs(line.name)]

    @property
    def absent(self) -> dict[str, str]:
        """The rows that are not in `names`, and why."""
        known = self.names
        return {
            line.name: "its runs are INVALID" if line.runs else "its runs failed"
            for line in self.table.lines
            if line.name not in known
        }

    def explain_no_speed(self, name: str) -> str:
        """Write why a row of `names` has no speed."""
        return f"it has no {self.label} that compares with {self.table.baseline}"

    @property
    def speeds(self) -> dict[str, Mean]:
        """What it ranks by, of each row that has it and is comparable; latencies are speeds too."""
        key = self.table.headline
        return {
            line.name: line.summaries[key]
            for line in self.table.lines
            if key in line.summaries
            and any(run.level != INVALID for run in line.runs)
            and not (key in line.effects and line.effects[key].unlike)
        }

    @property
    def broken(self) -> dict[str, str]:
        return {line.name: line.broken for line in self.table.lines}

    def list_runs(self, name: str) -> tuple[Reported, ...]:
        """List a row's runs: of searches those at their highest loads that meet the objectives, else all."""
        runs = next((line.runs for line in self.table.lines if line.name == name), ())
        return tuple(run for run in runs if run.level != INVALID)

    def explain_no_load(self, name: str) -> str:
        """Write why a row's runs are at no load that meets the objectives; "" if they are, or without any."""
        return ""

    def find_concurrency(self, name: str) -> float | None:
        """Find how many requests were in flight in a row's runs; None if unknown."""
        limit = self.table.load.max_concurrency
        return float(limit) if limit is not None else _average_concurrency(self.list_runs(name))

    def find_split(self, name: str) -> Split | str | None:
        return next((line.split for line in self.table.lines if line.name == name), None)

    def compare(self, name: str, other: str) -> SpeedUp:
        """Compare two rows of `speeds`; where one is the baseline it is as the table has it.

        Else the effects of `name` on all others are judged together, as those of a table's rows are.
        """
        return self._families[name][other]

    @cached_property
    def _families(self) -> dict[str, Against]:
        key = self.table.headline
        effects = {line.name: line.effects.get(key) for line in self.table.lines}
        return _judge_families(list(self.speeds), effects, self.baseline, self._judge, self.ask)

    def _judge(self, name: str, other: str) -> Effect:
        reference = BaselineRuns.select(self.list_runs(other), None, self.ask)
        used = [run for run in self.list_runs(name) if reference.is_comparable(run)]
        if not used:
            return Effect(Decision.NONE, math.nan, unlike=True, why=f"unlike {other}")
        return reference.judge_units(used, find_column(self.table.headline))


class LimitContest(msgspec.Struct, frozen=True, dict=True):
    """Checkpoints by the highest load that each bears within the same objectives."""

    table: ComparedLimits
    ask: ComparisonOptions

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (*self.table.objectives, self.table.about)))

    @property
    def label(self) -> str:
        return _UNITS[self.table.axis]

    @property
    def baseline(self) -> str:
        return self.table.baseline

    @property
    def higher_is_faster(self) -> bool:
        return True

    @property
    def objectives(self) -> tuple[str, ...]:
        return self.table.objectives

    @property
    def names(self) -> list[str]:
        return [row.name for row in self.table.rows if any(search.runs for search in row.searches)]

    @property
    def absent(self) -> dict[str, str]:
        known = self.names
        return {row.name: "its search has no run" for row in self.table.rows if row.name not in known}

    def explain_no_speed(self, name: str) -> str:
        found = (limit_record.describe_limit(each.record) for each in self._list_searches(name))
        return "; ".join(dict.fromkeys(found))

    @property
    def speeds(self) -> dict[str, Mean]:
        found = {}
        for row in self.table.rows:
            if row.limit is not None and row.limit.value is not None:
                ends = [end for end in (row.limit.low, row.limit.high) if end is not None]
                half = (ends[1] - ends[0]) / 2 if len(ends) == 2 else math.nan
                found[row.name] = Mean(row.limit.value, half, row.found)
        return found

    @property
    def broken(self) -> dict[str, str]:
        return {}

    def _list_searches(self, name: str) -> tuple[StoredLimit, ...]:
        return next((row.searches for row in self.table.rows if row.name == name), ())

    def _list_passing(self, name: str) -> tuple[Reported, ...]:
        """List the run of each search of a row at the highest load that passes, or up to the limit."""
        runs: list[Reported] = []
        for search in self._list_searches(name):
            serving = search.record.list_serving()
            if serving and search.directory is not None:
                place = str(search.directory / serving[-1].directory)
                runs += [run for run in search.runs if run.source == place]
        return tuple(runs)

    def list_runs(self, name: str) -> tuple[Reported, ...]:
        every = (run for search in self._list_searches(name) for run in search.runs)
        return self._list_passing(name) or tuple(every)

    def explain_no_load(self, name: str) -> str:
        return "" if self._list_passing(name) else "no load was shown to meet the objectives"

    def find_concurrency(self, name: str) -> float | None:
        limit = self.speeds.get(name)
        if self.table.axis == "concurrency":
            return None if limit is None else limit.mean
        return _average_concurrency(self.list_runs(name))

    def find_split(self, name: str) -> Split | str | None:
        return None  # at two highest loads the batches differ, and so do the steps

    def compare(self, name: str, other: str) -> SpeedUp:
        return self._families[name][other]

    @cached_property
    def _families(self) -> dict[str, Against]:
        effects = {row.name: row.effect for row in self.table.rows}
        return _judge_families(list(self.speeds), effects, self.baseline, self._judge, self.ask)

    def _judge(self, name: str, other: str) -> Effect:
        return limits.judge_limits(self._list_searches(name), self._list_searches(other), self.ask)


Contest = LoadContest | LimitContest  # what ranks checkpoints


def _judge_families(
    rows: Sequence[str],
    effects: Mapping[str, Effect | None],
    baseline: str,
    judge: Callable[[str, str], Effect],
    ask: ComparisonOptions,
) -> dict[str, Against]:
    """Return the speed-up of each row against each other; against the baseline it is the table's own.

    `effects` are the table's; `judge` returns the effect of one row on another as if it were the only one.
    """
    families: dict[str, Against] = {}
    for name in rows:
        others = [other for other in rows if other != name]
        alone = [judge(name, other) for other in others]
        judged = statistics.judge_rows(alone, ask.equivalence, ask.alpha)
        restored = map(limits.restore_cause, judged, alone)
        families[name] = dict(zip(others, map(SpeedUp.of, restored), strict=True))
        if name == baseline:
            families[name] = {other: SpeedUp.of(effects[other]).invert() for other in others}
        elif baseline in families[name]:
            families[name][baseline] = SpeedUp.of(effects[name])
    return families


def _average_concurrency(runs: Sequence[Reported]) -> float | None:
    known = [value for run in runs if (value := run.figure("concurrency")) is not None]
    return Mean.average(known).mean if known else None


def list_contests(
    tables: Sequence[ComparedLoad], searches: Sequence[ComparedLimits], ask: ComparisonOptions
) -> list[Contest]:
    """List the contests of two rows or more: searches, then loads, in their order."""
    every: list[Contest] = [
        *(LimitContest(table, ask) for table in searches),
        *(LoadContest(table, ask) for table in tables),
    ]
    return [contest for contest in every if len(contest.names) > 1]


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


class Candidate(msgspec.Struct, frozen=True):
    """A row of the answer; `runs` are those of its first contest, of a search those at its highest load.

    `scores` are those of lm-evaluation-harness, by task.
    """

    name: str
    runs: tuple[Reported, ...]
    concurrency: float | None = None  # requests in flight in those runs
    price_per_hour: float | None = None
    scores: Mapping[str, Value] = {}
    split: Split | str | None = None  # of its speed against the baseline's, or why there is none
    quality: Quality | None = None
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


def list_candidates(
    contests: Sequence[Contest],
    campaign: CampaignSettings,
    price_per_hour: float | None,
    scores: Mapping[str, Mapping[str, Value]],
) -> list[Candidate]:
    """List the rows of all contests, the baseline of the first one first; `scores` are by checkpoint or row.

    Raises UsageError where scores are of no row.
    """
    places: dict[str, Contest] = {}
    for contest in contests:
        for name in sorted(contest.names, key=lambda name: name != contest.baseline):
            places.setdefault(name, contest)
    made = [
        replace(_make_candidate(name, contest), price_per_hour=price_per_hour, reference=campaign.reference)
        for name, contest in places.items()
    ]
    known = {each.name for each in made} | {each.checkpoint for each in made}
    for name in scores:
        if name not in known:
            raise UsageError(f"--lm-eval {name}: no such checkpoint; there are {', '.join(sorted(known))}")
    served = {each.quality.reference for each in made if each.quality is not None}
    return [
        replace(
            each,
            scores=scores.get(each.name, scores.get(each.checkpoint, {})),
            is_reference=_is_reference(each, served),
        )
        for each in made
    ]


def _make_candidate(name: str, contest: Contest) -> Candidate:
    runs = contest.list_runs(name)
    return Candidate(
        name,
        runs,
        contest.find_concurrency(name),
        split=contest.find_split(name),
        quality=next((run.quality for run in runs if run.quality is not None), None),
        searched=bool(contest.objectives),
        no_load=contest.explain_no_load(name),
    )


def _is_reference(candidate: Candidate, served: Collection[str]) -> bool:
    """Whether qualities are measured against a candidate, by the campaign, else by the models in `served`."""
    if candidate.reference:
        measured = candidate.quality is not None and candidate.quality.kl is not None
        return candidate.reference in (candidate.arm, candidate.checkpoint) and not measured
    return candidate.quality is None and any(facts.server.model in served for facts in candidate.facts)
