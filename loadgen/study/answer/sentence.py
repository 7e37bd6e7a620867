"""Sentence: what a checkpoint comes to against the baseline, in one line made only from what is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from loadgen.base.text import count_decimals
from loadgen.features.quality.quality_record import FORWARD
from loadgen.study.answer.answer_columns import list_differences
from loadgen.study.answer.candidate import Candidate, Value
from loadgen.study.answer.contest import Contest, SpeedUp
from loadgen.study.compare.model import Decision, Split

Clause = Callable[[Candidate, Candidate, Sequence[Contest]], Iterator[str]]


def write_sentence(candidate: Candidate, baseline: Candidate, contests: Sequence[Contest]) -> str:
    """Write a candidate's sentence, its clauses joined by semicolons; "" if nothing is known."""
    return "; ".join(part for clause in CLAUSES for part in clause(candidate, baseline, contests))


def write_times(speed: SpeedUp) -> str:
    """Write a speed-up as "1.9 ×", with one decimal if its interval is wide, else two; "" if unknown."""
    if not math.isfinite(speed.ratio):
        return ""
    half = (speed.high - speed.low) / 2
    decimals = 1 if speed.ratio >= 1.1 and half >= 0.05 else 2
    return f"{speed.ratio:.{decimals}f} ×"


def write_plus_minus(value: Value, scale: float = 1.0) -> str:
    """Write a mean ± half its interval with one digit of that, as "0.11 ± 0.01"; without one three digits."""
    mean, half = value.mean * scale, value.half * scale
    decimals = count_decimals(half, 1) if 0 < half < math.inf else count_decimals(mean, 3)
    return f"{mean:.{decimals}f}" + (f" ± {half:.{decimals}f}" if half > 0 else "")


def _write_speeds(candidate: Candidate, baseline: Candidate, contests: Sequence[Contest]) -> Iterator[str]:
    """Yield how fast the candidate is against the baseline in each contest, or that it is the baseline."""
    for contest in contests:
        where = f" under {contest.title}" if len(contests) > 1 and not contest.objectives else ""
        if candidate.name == contest.baseline:
            yield f"the baseline{where}"
        elif {candidate.name, contest.baseline} <= set(contest.speeds):
            speed = contest.compare(candidate.name, contest.baseline)
            if words := describe_speed(contest, speed, contest.baseline):
                split = _write_split(candidate) if contest is contests[0] else ""
                yield f"{words}{where}{split}"


def describe_speed(contest: Contest, speed: SpeedUp, other: str) -> str:
    """Write "1.9 × as fast as BF16", of a search "1.9 × the users of BF16 at …"; "" if it is unknown.

    What is equivalent, undecided or without a verdict is said to be.
    """
    if not (times := write_times(speed)):
        return ""
    ends = f"{speed.low:.2f} to {speed.high:.2f}" if math.isfinite(speed.low) else ""
    begun = write_lead(contest, times, other)
    if contest.objectives:
        begun += f" at {', '.join(contest.objectives)}"
    if speed.call is Decision.EQUIVALENT:
        return f"{begun}, which is equivalent"
    if speed.call is Decision.UNDECIDED:
        return f"{begun}, undecided ({ends})"
    return f"{begun}, without a verdict" if speed.call is Decision.NONE else begun


def write_lead(contest: Contest, times: str, other: str = "") -> str:
    """Write "1.9 × as fast as BF16", of a search "1.9 × the users of BF16", without a name up to it."""
    if contest.objectives:
        return f"{times} the {contest.label}" + (f" of {other}" if other else "")
    return f"{times} as fast" + (f" as {other}" if other else "")


def _write_split(candidate: Candidate) -> str:
    """Write how much of a speed-up is steps and how much is drafts, after a comma; "" if unknown."""
    if not isinstance(candidate.split, Split):
        return ""
    steps, drafts = (
        write_times(SpeedUp(Decision.NONE, factor.mean, factor.low, factor.high))
        for factor in (candidate.split.steps, candidate.split.drafts)
    )
    return f", {steps} by its steps and {drafts} by its drafts"


def _write_quality(candidate: Candidate, baseline: Candidate, contests: Sequence[Contest]) -> Iterator[str]:
    """Yield how far a candidate is from the reference, and how many first choices are the same, if known."""
    quality = candidate.quality
    if quality is None or candidate.is_reference:
        return
    reference, parts = candidate.reference or quality.reference, []
    if (kl := quality.kl) is not None:
        own = "" if kl.direction == FORWARD else " by its own answers"
        parts.append(f"KL {write_plus_minus(Value.of(kl))} from {reference}{own}")
    if (same := quality.agreement) is not None:
        share = write_plus_minus(Value.of(same), 100)
        of = "its" if parts else f"{reference}'s"
        parts.append(f"{share} % of {of} first choices the same")
    if parts:
        yield ", ".join(parts)


def _write_state(candidate: Candidate, baseline: Candidate, contests: Sequence[Contest]) -> Iterator[str]:
    """Yield whether both were measured in the same state of the machine, and how it differed, if known."""
    differences = None if candidate is baseline else list_differences(candidate, baseline)
    if differences == []:
        yield "both in the same state"
    elif differences:
        what, own, other = differences[0]
        more = f" and {len(differences) - 1} more" if len(differences) > 1 else ""
        yield f"not in the same state: {what} {own}, {baseline.name} {other}{more}"


CLAUSES: tuple[Clause, ...] = (_write_speeds, _write_quality, _write_state)
