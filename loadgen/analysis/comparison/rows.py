"""Lines: one checkpoint under one load: its figures, what they are beside the baseline's, and its marks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen.analysis.comparison import comparability, pairs, statistics
from loadgen.analysis.comparison.model import Call, Effect, Figure, Line, Summary
from loadgen.analysis.run_summary import Reported, simulation
from loadgen.endpoint import answer_check
from loadgen.endpoint.answer_check import Fingerprint
from loadgen.metrics.repeats import t_quantile
from loadgen.roofline import bound
from loadgen.validity.rule import Severity

FIGURES = (
    Figure("output_throughput", "tok/s", True),
    Figure("speed_tok_s", "speed tok/s", True),
    Figure("mean_ttft_ms", "TTFT ms", False),
    Figure("mean_tpot_ms", "TPOT ms", False),
    Figure("mean_e2el_ms", "E2EL ms", False),
    Figure("memory_bytes", "memory GiB", None),
    Figure("joules_per_token", "J/token", None, 3),
)
BROKEN = "fast because broken?"
UNLIKE_BASELINE = "unlike the baseline"
_INVALID, _SUSPECT = "INVALID", "SUSPECT"
_NAN = float("nan")


class Held(msgspec.Struct, frozen=True):
    """The baseline's runs that the others are held against, and the one that all must be like."""

    runs: tuple[Reported, ...]
    like: Reported | None
    asked_output: float | None  # tokens asked of an answer, where anybody tells
    allow_unlike: bool
    margin: float
    alpha: float
    missing: str = ""  # why there is nothing to be held against

    @classmethod
    def of(
        cls,
        runs: Sequence[Reported],
        asked_output: float | None,
        *,
        allow_unlike: bool,
        margin: float,
        alpha: float,
    ) -> Held:
        """Those of the baseline's runs that are not INVALID and are like the first of them."""
        valid = [run for run in runs if run.level != _INVALID]
        missing = (
            "" if valid else "the baseline's runs are INVALID" if runs else "the baseline has no run here"
        )
        held = cls((), valid[0] if valid else None, asked_output, allow_unlike, margin, alpha, missing)
        return replace(held, runs=tuple(run for run in valid if held.takes(run)))

    def takes(self, run: Reported) -> bool:
        """Whether a run is enough like the baseline to be compared with it."""
        return self.allow_unlike or self.like is None or not _said(run, self.like, Severity.REFUSED)


def told(run: Reported, key: str) -> float | None:
    """A figure of a run by its key; memory and energy are figures too."""
    if key == "memory_bytes":
        return None if run.memory_bytes is None else float(run.memory_bytes)
    return run.joules_per_token if key == "joules_per_token" else run.figure(key)


def figure(key: str) -> Figure:
    """The figure of a key; one that is no column of its own is read by its name."""
    known = next((one for one in FIGURES if one.key == key), None)
    if known is not None:
        return known
    higher = "throughput" in key or key in ("request_goodput", "max_output_tokens_per_s")
    lower = key == "duration" or (key.endswith("_ms") and not key.startswith("std_"))
    return Figure(key, key, True if higher else False if lower else None)


def line(
    name: str, runs: Sequence[Reported], held: Held, figures: Sequence[Figure], is_baseline: bool
) -> Line:
    """A row: figures over the runs that are used; where none can be, over all, without verdict."""
    valid = [run for run in runs if run.level != _INVALID]
    used = [run for run in valid if held.takes(run)]
    shown = used or valid or list(runs)
    why = _why_not(runs, valid, used, held)
    unlike = bool(valid and not used and not held.missing)
    effects = {}
    for one in () if is_baseline else figures:
        if any(told(run, one.key) is not None for run in shown):
            none = Effect(Call.NONE, _NAN, unlike=unlike, why=why)
            effects[one.key] = none if why else _effect(used, held, one)
    return Line(
        name,
        tuple(runs),
        {one.key: found for one in figures if (found := _summary(shown, one.key)) is not None},
        effects,
        _roofline(shown),
        tuple(_marks(runs, valid, used, held)),
    )


def answered(found: Line, baseline: Line | None, headline: str, margin: float) -> Line:
    """The row with what its answers tell, beside the baseline's: is it fast because it is broken?"""
    own, others = _fingerprints(found), _fingerprints(baseline) if baseline is not None else []
    like = others[0] if others else None
    troubles = dict.fromkeys(trouble for one in own for trouble in answer_check.judge(one, like))
    parted = answer_check.divergence(own[0], like).line(baseline.name) if own and like and baseline else ""
    begun = f"{BROKEN} " if _is_faster(found.effects.get(headline), headline, margin) else ""
    marks = (*(f"{begun}{trouble}" for trouble in troubles), *found.marks)
    return replace(found, marks=marks, answers=parted)


def _fingerprints(line: Line) -> list[Fingerprint]:
    return [run.fingerprint for run in line.runs if run.fingerprint is not None]


def _is_faster(effect: Effect | None, headline: str, margin: float) -> bool:
    """Called faster, or with no verdict by more than the margin."""
    if effect is None or effect.call is not Call.NONE:
        return effect is not None and effect.call is Call.FASTER
    gain = effect.ratio if figure(headline).higher_is_faster else 1 / effect.ratio
    return gain > 1 + margin


def _said(run: Reported, like: Reported, severity: Severity) -> list[str]:
    found = comparability.differences(run, like)
    return [finding.evidence for finding in found if finding.rule.severity is severity]


def _why_not(
    runs: Sequence[Reported], valid: Sequence[Reported], used: Sequence[Reported], held: Held
) -> str:
    """Why there is nothing to compare; "" where there is."""
    if held.missing:
        return held.missing
    if not valid:
        return "its runs are INVALID" if runs else "it has no run here"
    return "" if used else UNLIKE_BASELINE


def _effect(used: Sequence[Reported], held: Held, one: Figure) -> Effect:
    units = pairs.units(used, held.runs, lambda run: told(run, one.key))
    return statistics.effect(
        units.row,
        units.baseline,
        paired=units.paired,
        higher_is_faster=one.higher_is_faster,
        margin=held.margin,
        alpha=held.alpha,
    )


def _summary(runs: Sequence[Reported], key: str) -> Summary | None:
    """Mean over units with its 95 % interval by Student's t; None where no run tells the figure."""
    values = pairs.alone(runs, lambda run: told(run, key))
    if not values:
        return None
    n, mean = len(values), math.fsum(values) / len(values)
    if n == 1:
        return Summary(mean, n)
    half = t_quantile(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Summary(mean, n, mean - half, mean + half)


def _roofline(runs: Sequence[Reported]) -> float | None:
    """The share of its ceiling that decoding reached, mean over the runs that know it."""
    steps = [bound.decode(run.ceiling, run.figures, run.load) for run in runs if run.ceiling is not None]
    shares = [step.share for step in steps if step is not None]
    return math.fsum(shares) / len(shares) if shares else None


def _marks(
    runs: Sequence[Reported], valid: Sequence[Reported], used: Sequence[Reported], held: Held
) -> Iterator[str]:
    """What a reader of the row must know, the gravest first."""
    bad = [run for run in runs if run.level == _INVALID]
    if bad:
        yield f"{_share(len(bad), len(runs))}{_INVALID}, left out: {_names(bad)}"
    if held.like is not None:
        like = held.like
        refused = UNLIKE_BASELINE if held.allow_unlike else "not compared"
        yield from _counted(
            (f"{refused}: {said}" for run in valid for said in _said(run, like, Severity.REFUSED)), len(valid)
        )
        yield from _counted((said for run in valid for said in _said(run, like, Severity.MARKED)), len(valid))
    yield from _counted(
        (said for run in valid if (said := comparability.shorter(run, held.asked_output))), len(valid)
    )
    yield from _against_the_machine(valid)
    suspect = [run for run in valid if run.level == _SUSPECT]
    if suspect:
        yield f"{_share(len(suspect), len(runs))}{_SUSPECT}: {_names(suspect)}"
    yield from _counted((said for run in valid if (said := _failed(run))), len(valid))
    whole = {simulation(run.simulated) for run in valid}  # is said of the whole table
    remarks = (remark for run in valid for remark in run.remarks if remark not in whole)
    yield from _counted(remarks, len(valid))
    left = pairs.units(used, held.runs, lambda run: 1.0).left if used and held.runs else 0
    if left:
        yield f"{left} run{'s' * (left > 1)} without a partner, in no pair"


def _counted(said: Iterable[str], of: int) -> Iterator[str]:
    """Each different sentence once, with how many of the runs it is true of where it is not all."""
    times: dict[str, int] = {}
    for sentence in said:
        times[sentence] = times.get(sentence, 0) + 1
    for sentence, count in times.items():
        yield f"{_share(count, of)}{sentence}"


def _share(count: int, of: int) -> str:
    return "" if count >= of else f"{count} of {of} runs: "


def _names(runs: Sequence[Reported]) -> str:
    return ", ".join(dict.fromkeys(doubt for run in runs for doubt in run.doubts)) or "no doubt is named"


def _against_the_machine(runs: Sequence[Reported]) -> Iterator[str]:
    """What their ceilings say of runs: faster than can be, or so slow that it is likely another kernel."""
    for kind, judge in (("impossible", bound.impossible), ("a fallback kernel is likely", bound.fallback)):
        said = [judge(run.ceiling, run.figures, run.load) for run in runs if run.ceiling is not None]
        found = [one for one in said if one]
        if found:
            yield f"{_share(len(found), len(runs))}{kind}{', for one' * (len(found) > 1)}: {found[0]}"


def _failed(run: Reported) -> str:
    failed, completed = run.figure("failed"), run.figure("completed")
    if run.doubts or not failed or completed is None:
        return ""
    return f"{failed:.0f} of {failed + completed:.0f} requests failed"
