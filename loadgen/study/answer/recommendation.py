"""Recommendation: the checkpoint to take in a contest, or why none can be named, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from loadgen.base.text import format_count, list_first
from loadgen.study.answer.answer_settings import AnswerRequest
from loadgen.study.answer.candidate import Candidate
from loadgen.study.answer.constraint import Judged, judge_constraints
from loadgen.study.answer.contest import Contest, SpeedUp
from loadgen.study.answer.sentence import write_lead, write_times
from loadgen.study.compare.model import Decision

_MOST_CHANGES = 3


class Advice(StrEnum):
    """What a recommendation comes to."""

    TAKE = "take"
    UNDECIDED = "undecided"
    NONE = "none"  # no candidate holds the constraints


class Recommendation(msgspec.Struct, frozen=True):
    """What to take in one contest; `names` are the one to take, or those that are not separated."""

    contest: str
    choice: Advice
    names: tuple[str, ...]
    words: str
    changes: tuple[str, ...] = ()  # what else would be taken, and with what
    judged: Mapping[str, tuple[Judged, ...]] = {}  # by candidate

    @property
    def lines(self) -> list[str]:
        """The recommendation and what would change it, a line each."""
        return [self.words, *self.changes]


def recommend(contest: Contest, candidates: Sequence[Candidate], asked: AnswerRequest) -> Recommendation:
    """Recommend the fastest candidate that holds every constraint, in one contest.

    Undecided where the fastest is not shown to hold them, or is not shown to be faster than the next; of
    equally fast ones it is the nearest to the reference.
    """
    ranked = _rank(contest, candidates)
    judged = {each.name: tuple(judge_constraints(each, contest, asked)) for each in ranked}
    open_ = [each.name for each in ranked if all(one.holds is not False for one in judged[each.name])]
    lacking = [f"{name} ({contest.explain_no_speed(name)})" for name in contest.names if name not in judged]
    if not ranked:
        words, names = f"undecided: {list_first(lacking, _MOST_CHANGES)}", tuple[str, ...]()
        return Recommendation(contest.title, Advice.UNDECIDED, names, words)
    if not open_:
        words, names = "take none: no checkpoint is within the constraints", tuple[str, ...]()
        choice = Advice.NONE
    else:
        choice, names, words = _choose(contest, [each for each in ranked if each.name in open_], judged)
    taken = names[0] if names else ""
    changes = list(_list_changes(contest, [each.name for each in ranked], judged, taken))
    if choice is Advice.TAKE and (behind := [name for name in open_ if name not in names]):
        times = write_times(contest.compare(behind[0], taken))
        changes.append(f"next: {behind[0]}, {write_lead(contest, times)}")
    if choice is Advice.TAKE and asked.max_kl is None:
        changes += _list_cautions(next(each for each in ranked if each.name == taken))
    if lacking and contest.objectives and choice is Advice.TAKE:
        choice, words = (
            Advice.UNDECIDED,
            f"undecided: {taken} has the highest limit found, but others have none",
        )
    if lacking:
        changes.append(f"not ranked: {list_first(lacking, _MOST_CHANGES)}")
    return Recommendation(contest.title, choice, names, words, tuple(changes), judged)


def _rank(contest: Contest, candidates: Sequence[Candidate]) -> list[Candidate]:
    """List the candidates with a speed in a contest, the fastest first."""
    speeds = contest.speeds
    known = [each for each in candidates if each.name in speeds]
    return sorted(known, key=lambda each: speeds[each.name].mean, reverse=contest.higher_is_faster)


def _choose(
    contest: Contest, open_: Sequence[Candidate], judged: Mapping[str, Sequence[Judged]]
) -> tuple[Advice, tuple[str, ...], str]:
    """Choose among candidates that are not excluded, the fastest first; return also names and words."""
    top, *rest = (each.name for each in open_)
    if unknown := [one for one in judged[top] if one.holds is None]:
        certain = [name for name in rest if all(one.holds for one in judged[name])]
        but = f"; {certain[0]} is within all" if certain else ""
        why = "; ".join(f"{one.evidence}, required: {one.wanted}" for one in unknown)
        return Advice.UNDECIDED, (top, *certain[:1]), f"undecided: {top} is the fastest, but {why}{but}"
    against = {name: contest.compare(top, name) for name in rest}
    rivals = [name for name, speed in against.items() if speed.call in (Decision.UNDECIDED, Decision.NONE)]
    if rivals:
        words = _explain_undecided(top, rivals[0], against[rivals[0]])
        return Advice.UNDECIDED, (top, *rivals), f"undecided: {words}"
    equal = [
        each
        for each in open_
        if each.name == top
        or (against[each.name].call is not Decision.FASTER and all(one.holds for one in judged[each.name]))
    ]
    if len(equal) > 1:
        return _choose_equal(equal)
    within = " within " + " and ".join(one.wanted for one in judged[top]) if judged[top] else ""
    if not rest:
        return Advice.TAKE, (top,), f"take {top}: the only one{within}"
    lead = write_lead(contest, write_times(against[rest[0]]), rest[0])
    words = f"take {top}: the fastest{within}, {lead}"
    return Advice.TAKE, (top,), words


def _choose_equal(equal: Sequence[Candidate]) -> tuple[Advice, tuple[str, ...], str]:
    """Choose of equally fast candidates the one shown to be nearest to the reference, else any of them."""
    names = [each.name for each in equal]
    for each in equal:
        others = [other.divergence for other in equal if other is not each]
        own = each.divergence
        if own is not None and all(other is not None and own.most < other.least for other in others):
            rest = [name for name in names if name != each.name]
            words = f"take {each.name}: as fast as {', '.join(rest)}, and nearer to {each.reference}"
            return Advice.TAKE, (each.name, *rest), words
    return Advice.TAKE, tuple(names), f"take {' or '.join(names)}: they are equally fast"


def _list_cautions(taken: Candidate) -> Iterator[str]:
    """Yield that quality was not measured, or how far what is taken is from the reference, if by any."""
    kl = taken.divergence
    if kl is None and taken.quality is not None:
        yield f"by speed alone: its KL is not known: {taken.quality.why.get('kl', 'no reason is known')}"
    elif kl is None:
        yield "by speed alone: its quality was not measured ([quality] in a campaign's file)"
    elif not taken.is_reference:
        yield f"its KL is {kl.mean:.3g} ({kl.low:.3g} to {kl.high:.3g}): no --max-kl was given"


def _explain_undecided(top: str, rival: str, speed: SpeedUp) -> str:
    """Write that one leads another without a verdict, by how much, and what would settle it."""
    ends = f" ({speed.low:.2f} to {speed.high:.2f})" if math.isfinite(speed.low) else ""
    begun = f"{top} leads {rival} by {write_times(speed)}{ends}, which is not significant"
    if speed.call is Decision.NONE:
        return f"{begun}: {speed.why}" if speed.why else begun
    more = speed.more_runs
    return (
        begun if more is None else f"{begun}; about {format_count(more, 'more run')} per side would decide it"
    )


def _list_changes(
    contest: Contest, ranked: Sequence[str], judged: Mapping[str, Sequence[Judged]], taken: str
) -> Iterator[str]:
    """Yield with what flags a faster candidate would be taken, then which others are excluded.

    Of those taken with flags every other constraint is known to hold. One that needs no less than a faster
    one is not named, and three at most are.
    """
    unmet = {name: [one for one in judged[name] if one.holds is False] for name in ranked}
    ahead = ranked[: ranked.index(taken)] if taken else ranked
    curable: list[str] = []
    for name in ahead:
        sure = all(one.holds is not None for one in judged[name])
        known = sure and bool(unmet[name]) and all(one.needed for one in unmet[name])
        if known and not any(_lets_in(unmet[name], unmet[other]) for other in curable):
            curable.append(name)
    for name in curable[:_MOST_CHANGES]:
        flags = " ".join(one.needed for one in unmet[name])
        lead = f", {write_lead(contest, write_times(contest.compare(name, taken)))}" if taken else ""
        why = ", ".join(one.evidence for one in unmet[name])
        yield f"with {flags}: {name}{lead} ({why})"
    shut = [f"{name} ({unmet[name][0].evidence})" for name in ranked if unmet[name] and name not in curable]
    if shut:
        yield f"excluded: {list_first(shut, _MOST_CHANGES)}"


def _lets_in(unmet: Sequence[Judged], other: Sequence[Judged]) -> bool:
    """Whether flags with which one candidate holds its unmet constraints let another in too."""
    return all(any(_covers(own, one) for own in unmet) for one in other)


def _covers(own: Judged, one: Judged) -> bool:
    """Whether with the flag that one constraint needs another, of the same wish, holds too."""
    if own.wanted != one.wanted:
        return False
    if own.amount is None or one.amount is None:
        return own.needed == one.needed
    return own.amount >= one.amount
