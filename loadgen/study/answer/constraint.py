"""Constraint: what a checkpoint must hold to be taken, whether it does, and with what value it would."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from loadgen.base.text import GIB
from loadgen.figures.figure_table import SELECTABLE
from loadgen.figures.objectives import Objective, Standing, is_judgeable, judge_objectives
from loadgen.records.record import Records
from loadgen.study.answer.answer_settings import AnswerRequest
from loadgen.study.answer.candidate import Candidate
from loadgen.study.answer.contest import Contest
from loadgen.study.compare.answer_marks import BROKEN
from loadgen.study.compare.tables.rankings import compute_need


class Judged(msgspec.Struct, frozen=True):
    """Whether a candidate holds one constraint: True, False, or None if that is not known."""

    holds: bool | None
    evidence: str  # that it rests on, or why it is not known
    needed: str = ""  # the flag with which it would hold; "": none would
    wanted: str = ""  # what is asked, in words
    amount: float | None = None  # of `needed`, where a larger one lets more in; None: it has none


Judge = Callable[[Candidate, Contest, AnswerRequest], Judged | None]


def judge_constraints(candidate: Candidate, contest: Contest, asked: AnswerRequest) -> list[Judged]:
    """Judge a candidate by each constraint that is asked for, and by its answers if they look broken."""
    every = (judge(candidate, contest, asked) for judge in CONSTRAINTS)
    return [judged for judged in every if judged is not None]


def _judge_fits(candidate: Candidate, contest: Contest, asked: AnswerRequest) -> Judged | None:
    """Judge the memory that a checkpoint needs: as measured, else by its files or its shape."""
    if asked.fits_bytes is None:
        return None
    wanted = f"{asked.fits_bytes / GIB:.4g} GiB"
    need = compute_need(candidate.checkpoint, candidate.runs)
    if not math.isfinite(need.gib):
        return Judged(None, f"the memory it needs is not known ({need.how})", wanted=wanted)
    evidence = f"it needs {need.gib:.1f} GiB ({need.how})"
    needed = f"--fits {math.ceil(need.gib)}GiB"
    return Judged(need.gib * GIB <= asked.fits_bytes, evidence, needed, wanted, need.gib)


def _judge_objectives(candidate: Candidate, contest: Contest, asked: AnswerRequest) -> Judged | None:
    """Judge the objectives by each run; at a load that was searched for those of the search hold."""
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
    needed = f"--slo '{', '.join(changed)}'" if all(each[2] for each in failed) else ""
    return Judged(holds, ", ".join(each[1] for each in failed), needed, wanted)


def _judge_objective(objective: Objective, candidate: Candidate) -> tuple[Standing, str, str]:
    """Return a candidate's standing over the requests of its runs, the evidence, and what it would meet.

    By the bounds of its requests, else, where only figures are known, by the slowest figure of a run.
    """
    name = f"{objective.metric} p{objective.percentile:g}"
    key = SELECTABLE[objective.metric].statistic(f"p{objective.percentile:g}")
    results = [run.run for run in candidate.runs if run.run is not None]
    if results and len(results) == len(candidate.runs):
        pooled = Records.join_in_turn(result.counted for result in results)
        times_tokens = all(result.metrics.times_tokens for result in results)
        if not is_judgeable(objective, times_tokens):
            return Standing.NOT_SHOWN, f"its {name} is not known", ""
        (evidence,) = judge_objectives(pooled, (objective,), results[0].ask)
        standing, slowest, bound = evidence.standing, evidence.value, evidence.bound
    else:
        known = [value for run in candidate.runs if (value := run.figure(key)) is not None]
        if len(known) < len(candidate.runs) or not known:
            return Standing.NOT_SHOWN, f"its {name} is not known", ""
        slowest = bound = max(known, key=objective.measure_excess)
        standing = Standing.MEETS if objective.holds(slowest) else Standing.FAILS
    words = f"{name} is {slowest:.3g} {objective.unit}"
    if bound is None or not math.isfinite(bound) or bound <= 0:
        few = ", of too few requests" if bound is None and standing is Standing.NOT_SHOWN else ""
        return standing, f"{words}{few}", ""
    if objective.is_floor:
        side, needed, clause = "least", _round_down(bound), f"{name} > {_round_down(bound):g}"
    else:
        side, needed, clause = "most", _round_up(bound), f"{name} < {_round_up(bound):g}ms"
    limit = f", at {side} {needed:g} {objective.unit}" if standing is Standing.NOT_SHOWN else ""
    return standing, f"{words}{limit}", clause


def _judge_kl(candidate: Candidate, contest: Contest, asked: AnswerRequest) -> Judged | None:
    """Judge how far a candidate is from the reference by both ends of the interval of its KL divergence."""
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
    needed = f"--max-kl {_round_up(kl.high):g}" if kl.high > 0 else ""
    return Judged(holds, evidence, needed, wanted, kl.high)


def _judge_answers(candidate: Candidate, contest: Contest, asked: AnswerRequest) -> Judged | None:
    """Judge that a candidate's greedy answers are not those of a broken model, if they look so."""
    marks = contest.faults.get(candidate.name, ())
    broken = next((mark for mark in marks if mark.startswith(BROKEN)), "")
    return Judged(None, broken, wanted="answers like the baseline's") if broken else None


def _round_up(value: float) -> float:
    """Round a positive number up to two digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.6g}")


def _round_down(value: float) -> float:
    """Round a positive number down to two digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.floor(value / step + 1e-9) * step:.6g}")


CONSTRAINTS: tuple[Judge, ...] = (_judge_fits, _judge_objectives, _judge_kl, _judge_answers)
