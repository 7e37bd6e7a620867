"""Answer marks: a row that may be fast because it is broken, by its KL divergence or its greedy answers."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from loadgen.facts.run_facts import Fingerprint
from loadgen.features.quality.greedy import answer_check
from loadgen.features.quality.quality_record import Quality
from loadgen.features.quality.quality_verdict import DIFFERENT, judge_quality
from loadgen.study.arm_qualities import format_spread
from loadgen.study.compare.model import ComparedLoad, Decision, Line

BROKEN = "fast because broken?"
FAR = 10.0  # margins of KL: a quantization that works is nearer


def mark_answers(row: Line, baseline: Line | None, compared: ComparedLoad) -> Line:
    """Return a row with its answers' faults first among its marks, and where they part from the baseline's.

    The marks ask "fast because broken?" if the row is faster by the headline: by its verdict, or without one
    by more than the margin. Where its KL divergence is known, that decides, and not the greedy answers.
    """
    own, like = _list_fingerprints(row), next(iter(_list_fingerprints(baseline)), None)
    if row.quality is not None and row.quality.kl is not None:
        problems = list(_question_divergence(row.quality, compared.kl_margin))
    else:
        found = (problem for answers in own for problem in answer_check.judge_answers(answers, like))
        problems = list(dict.fromkeys(found))
    parted = (
        answer_check.measure_divergence(own[0], like).format_line(baseline.name)
        if own and like and baseline
        else ""
    )
    begun = f"{BROKEN} " if _is_faster(row, compared) else ""
    marks = (*(f"{begun}{problem}" for problem in problems), *row.marks)
    return replace(row, marks=marks, answers=parted)


def _is_faster(row: Line, compared: ComparedLoad) -> bool:
    """Whether a row is faster by the headline: by its verdict, without one by more than the margin."""
    effect = row.effects.get(compared.headline)
    if effect is None or effect.call is not Decision.NONE:
        return effect is not None and effect.call is Decision.FASTER
    return (effect.ratio if effect.higher_is_faster else 1 / effect.ratio) > 1 + compared.margin


def _question_divergence(quality: Quality, margin: float) -> Iterator[str]:
    """Yield one sentence where KL is above ten margins, with the verdict of different."""
    verdict, kl = judge_quality(quality, margin), quality.kl
    if kl is not None and verdict is not None and verdict.verdict == DIFFERENT and kl.low > FAR * margin:
        yield f"KL {format_spread(kl)} nats a token from the reference, over {FAR:g} × {margin:g}"


def _list_fingerprints(line: Line | None) -> list[Fingerprint]:
    """List the answers to the greedy prompts that a row's runs have; [] without a row."""
    return [run.fingerprint for run in line.runs if run.fingerprint is not None] if line else []
