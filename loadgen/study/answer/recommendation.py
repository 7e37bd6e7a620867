"""Recommendation: the checkpoint to take in a contest, or why none can be named, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from loadgen.base.text import format_count, list_first
from loadgen.study.answer.answer_settings import AnswerRequest, describe_constraints
from loadgen.study.answer.candidate import Candidate
from loadgen.study.answer.constraint import Judged, judge_constraints
from loadgen.study.answer.contest import Contest, SpeedUp
from loadgen.study.answer.sentence import write_lead, write_times
from loadgen.study.compare.comparability import list_one_servers
from loadgen.study.compare.model import Decision

_MOST_CHANGES = 3


class Advice(StrEnum):
    """What a recommendation comes to."""

    TAKE = "take"
    UNDECIDED = "undecided"
    NONE = "none"  # no candidate holds the constraints


class ChoiceNote(msgspec.Struct, frozen=True):
    """A line below a recommendation, as a terminal shows it and in words for a page, which has no flags."""

    text: str
    plain: str = ""  # "": as the text


class Recommendation(msgspec.Struct, frozen=True):
    """What to take in one contest; `names` are those to take, any of them, or that are not separated."""

    contest: str
    choice: Advice
    names: tuple[str, ...]
    words: str
    remarks: tuple[ChoiceNote, ...] = ()  # what else would be taken, and with what; what to know of it
    judged: Mapping[str, tuple[Judged, ...]] = {}  # by candidate

    @property
    def lines(self) -> list[str]:
        """The recommendation and its remarks, a line each, with the flags that change it."""
        return [self.words, *(each.text for each in self.remarks)]

    @property
    def plain_lines(self) -> list[str]:
        """The lines for a reader who has no terminal."""
        return [self.words, *(each.plain or each.text for each in self.remarks)]


class _Choice(msgspec.Struct, frozen=True):
    """What is chosen of ranked candidates under one set of constraints."""

    advice: Advice
    names: tuple[str, ...]
    words: str
    judged: Mapping[str, tuple[Judged, ...]]

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
    lacking = {name: contest.explain_no_speed(name) for name in contest.names if name not in contest.speeds}
    lacking |= contest.absent
    missing = [f"{name} ({why})" for name, why in lacking.items()]
    if not ranked:
        words, none = f"undecided: {list_first(missing, _MOST_CHANGES)}", tuple[str, ...]()
        return Recommendation(contest.title, Advice.UNDECIDED, none, words)
    chosen = _choose(contest, ranked, asked, alone=not lacking or bool(contest.objectives))
    advice, words = chosen.advice, chosen.words
    taken = chosen.names[0] if chosen.names else ""
    remarks = [*_list_changes(contest, ranked, asked, chosen)]
    behind = [name for name in chosen.open if name not in chosen.names]
    if advice is Advice.TAKE and behind:
        speed = contest.compare(behind[0], taken)
        lead = write_lead(contest, write_times(speed)) if write_times(speed) else f"not compared: {speed.why}"
        remarks.append(ChoiceNote(f"next: {behind[0]}, {lead}"))
    named = [each for each in ranked if each.name in chosen.names]
    if advice is Advice.TAKE:
        if asked.max_kl is None:
            remarks += _list_cautions(next(each for each in ranked if each.name == taken))
        remarks += _list_means(contest, taken, chosen.open)
    remarks += _list_failures(named)
    same = list_one_servers([(each.name, each.runs) for each in ranked])
    remarks += map(ChoiceNote, same)
    if lacking and contest.objectives and advice is Advice.TAKE:
        advice = Advice.UNDECIDED
        words = f"undecided: {taken} has the highest limit found, but others have none"
    if missing:
        remarks.append(ChoiceNote(f"not ranked: {list_first(missing, _MOST_CHANGES)}"))
    return Recommendation(contest.title, advice, chosen.names, words, tuple(remarks), chosen.judged)


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
) -> _Choice:
    """Choose among ranked candidates under constraints; `alone`: no other checkpoint was measured."""
    judged = {each.name: tuple(judge_constraints(each, contest, asked)) for each in ranked}
    open_ = [each for each in ranked if all(one.holds is not False for one in judged[each.name])]
    if not open_:
        return _Choice(Advice.NONE, (), "take none: no checkpoint is within the constraints", judged)
    top, *rest = (each.name for each in open_)
    if unknown := [one for one in judged[top] if one.holds is None]:
        certain = [name for name in rest if all(one.holds for one in judged[name])]
        but = f"; {certain[0]} is within all" if certain else ""
        why = "; ".join(f"{one.evidence}, required: {one.wanted}" for one in unknown)
        words = f"undecided: {top} is the fastest, but {why}{but}"
        return _Choice(Advice.UNDECIDED, (top, *certain[:1]), words, judged)
    against = {name: contest.compare(top, name) for name in rest}
    shown = (Decision.FASTER, Decision.EQUIVALENT)
    if rivals := [name for name, speed in against.items() if speed.call not in shown]:
        words = f"undecided: {_explain_undecided(top, rivals[0], against[rivals[0]])}"
        return _Choice(Advice.UNDECIDED, (top, *rivals), words, judged)
    equal = [
        each
        for each in open_
        if each.name == top
        or (against[each.name].call is Decision.EQUIVALENT and all(one.holds for one in judged[each.name]))
    ]
    if len(equal) > 1:
        names, words = _choose_equal(equal)
        return _Choice(Advice.TAKE, names, words, judged)
    within = " within " + " and ".join(one.wanted for one in judged[top]) if judged[top] else ""
    if not rest and not alone:
        return _Choice(Advice.UNDECIDED, (top,), f"undecided: {top} is the only one compared{within}", judged)
    if not rest:
        return _Choice(Advice.TAKE, (top,), f"take {top}: the only one{within}", judged)
    of = "" if alone else " of those compared"
    lead = write_lead(contest, write_times(against[rest[0]]), rest[0])
    return _Choice(Advice.TAKE, (top,), f"take {top}: the fastest{of}{within}, {lead}", judged)


def _choose_equal(equal: Sequence[Candidate]) -> tuple[tuple[str, ...], str]:
    """Choose of equally fast candidates the one shown to be nearest to the reference, else any of them."""
    names = [each.name for each in equal]
    for each in equal:
        others = [other.divergence for other in equal if other is not each]
        own = each.divergence
        if own is not None and all(other is not None and own.most < other.least for other in others):
            rest = ", ".join(name for name in names if name != each.name)
            near = "it is the reference" if each.is_reference else f"nearer to {each.reference}"
            return (each.name,), f"take {each.name}: as fast as {rest}, and {near}"
    return tuple(names), f"take {' or '.join(names)}: they are equally fast"


def _explain_undecided(top: str, rival: str, speed: SpeedUp) -> str:
    """Write that one leads another without a verdict, by how much, and what would settle it."""
    if not (times := write_times(speed)):
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
    contest: Contest, ranked: Sequence[Candidate], asked: AnswerRequest, chosen: _Choice
) -> Iterator[ChoiceNote]:
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
        if again.advice is not Advice.TAKE or again.names[0] != name or taken in again.names:
            continue
        named.append(name)
        why = ", ".join(one.evidence for one in unmet)
        lead = f", {write_lead(contest, write_times(contest.compare(name, taken)))}" if taken else ""
        ways = (describe_constraints(needed, flags) for flags in (True, False))
        yield ChoiceNote(*(f"with {way}: {' or '.join(again.names)}{lead} ({why})" for way in ways))
    unmet_first = {name: next((one for one in judged[name] if one.holds is False), None) for name in names}
    shut = [f"{name} ({one.evidence})" for name, one in unmet_first.items() if one and name not in named]
    if shut:
        yield ChoiceNote(f"excluded: {list_first(shut, _MOST_CHANGES)}")


def _list_cautions(taken: Candidate) -> Iterator[ChoiceNote]:
    """Yield that quality was not measured, or how far what is taken is from the reference, if by any."""
    kl = taken.divergence
    if kl is None and taken.quality is not None:
        why = taken.quality.why.get("kl", "no reason is known")
        yield ChoiceNote(f"by speed alone: its KL is not known: {why}")
    elif kl is None:
        words = "by speed alone: its quality was not measured"
        yield ChoiceNote(f"{words} ([quality] in a campaign's file)", words)
    elif not taken.is_reference:
        words = f"its KL is {kl.mean:.3g} ({kl.low:.3g} to {kl.high:.3g})"
        yield ChoiceNote(f"{words}: no --max-kl was given", f"{words}: no limit was asked for")


def _list_means(contest: Contest, taken: str, names: Sequence[str]) -> Iterator[ChoiceNote]:
    """Yield that another one leads by the mean of all runs, as the table shows it, though not in pairs."""
    sign, speeds = 1 if contest.higher_is_faster else -1, contest.speeds
    leader = max(names, key=lambda name: (sign * speeds[name].mean, name == taken))
    if leader != taken and contest.compare(taken, leader).call is Decision.FASTER:
        yield ChoiceNote(
            f"{leader} leads by the mean of all runs, some without a partner; in pairs {taken} is faster"
        )


def _list_failures(named: Sequence[Candidate]) -> Iterator[ChoiceNote]:
    """Yield how many requests of those that are named failed, of those of which some did."""
    for each in named:
        failed, sent = (math.fsum(run.failures[part] for run in each.runs) for part in (0, 1))
        if failed:
            words = f"{failed:.0f} of {sent:.0f} requests failed, which are not in its figures"
            yield ChoiceNote(f"{each.name}: {words}")
