"""Candidate: a checkpoint that may be taken, and everything that was measured of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.facts.run_facts import Facts
from loadgen.features.quality.quality_record import MeanInterval, Quality
from loadgen.study.answer.contest import Contest
from loadgen.study.compare import statistics
from loadgen.study.compare.model import CampaignSettings, Factor, Split
from loadgen.study.repeats import Mean
from loadgen.study.run_summary import Reported


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
    """Make the candidate of a row from its runs in a contest."""
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
