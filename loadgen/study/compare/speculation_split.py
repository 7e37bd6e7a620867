"""Speculation split: how much of a difference in speed is the time of steps, and how much accepted drafts.

TPOT is step time ÷ acceptance length (tokens a step, 1 without drafts). So a row's speed-up by TPOT is that
of its steps times that of its drafts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.features.roofline import bound
from loadgen.features.speculation.speculation_figures import measure_speculation, measure_split
from loadgen.study.compare import statistics
from loadgen.study.compare.model import MARGIN, ComparedFigure, Effect, Factor, Split
from loadgen.study.run_summary import OURS, Reported

ACCEPTANCE, STEP_MS, COMMITTED_MS = "acceptance_length", "step_ms", "committed_tpot_ms"
COLUMNS = (
    ComparedFigure(COMMITTED_MS, "TPOT at N", False),
    ComparedFigure(STEP_MS, "step ms", False),
    ComparedFigure(ACCEPTANCE, "tokens/step", None),
)
_TPOT_MS = "mean_tpot_ms"
_NO_DRAFTS = 1.0
_EXACTLY_ONE = math.nextafter(1.0, 2.0)  # whose digits do not read as a figure that was rounded to 0.01


class DecodeSteps(msgspec.Struct, frozen=True):
    """The decode steps of a run: their mean time, and the mean tokens of each."""

    step_ms: float
    acceptance: float  # tokens a step; 1 without drafts
    computed: bool = False  # the step time is TPOT × acceptance length: its client reports none

    @property
    def tpot_ms(self) -> float:
        """The mean TPOT over all tokens, in ms."""
        return self.step_ms / self.acceptance


def has_drafts(run: Reported) -> bool:
    """Whether a run's server decodes speculatively, by its settings and counters or an acceptance length."""
    known = run.facts is not None and run.facts.speculates
    return known or (_read_acceptance(run) or _NO_DRAFTS) > _NO_DRAFTS


def read_steps(run: Reported) -> DecodeSteps | str:
    """Return a run's steps, or why they are not known.

    A run without drafts makes one token a step, so the step time is its TPOT, over all tokens where its
    arrivals are there. Of another client's run with an acceptance length the step time is computed; of a run
    of ours with drafts it is measured, or not known.
    """
    tpot_ms, acceptance = run.figure(_TPOT_MS), _read_acceptance(run)
    if not tpot_ms:
        return f"{run.name} has no mean TPOT"
    if not has_drafts(run):
        if acceptance is None and run.told_by != OURS:
            return f"{run.name} reports no acceptance length ({run.told_by})"
        whole = None if run.run is None else run.run.derive(measure_split).tpot_ms
        return DecodeSteps(tpot_ms if whole is None else whole.mean, _NO_DRAFTS)
    if acceptance is None:
        return f"the acceptance length of {run.name} is not known"
    if step_ms := run.figure(STEP_MS):
        return DecodeSteps(step_ms, acceptance)
    if run.told_by != OURS:
        return DecodeSteps(tpot_ms * acceptance, acceptance, computed=True)
    measured = None if run.run is None else run.run.derive(measure_speculation)
    why = "" if measured is None else f": {measured.why.get(STEP_MS, '')}"
    return f"the steps of {run.name} are hidden, whose mean acceptance length is {acceptance:.3g}{why}"


def _read_acceptance(run: Reported) -> float | None:
    return next((length for key in bound.ACCEPTANCE if (length := run.figure(key))), None)


def add_step_figures(runs: Sequence[Reported], committed: float | None) -> list[Reported]:
    """Add step time and acceptance length to the figures of each run with known steps, if any run has drafts.

    With a committed acceptance length, in tokens a step, the TPOT that it gives is added too: the step time ÷
    it, of a run without drafts its own TPOT. Raises UsageError where it is below 1, or no run has steps.
    """
    if committed is not None and not committed >= _NO_DRAFTS:
        raise UsageError(f"--acceptance-length {committed:g}: give tokens a step, 1 or more, as 2.5")
    if not any(map(has_drafts, runs)):
        if committed is not None:
            raise UsageError("--acceptance-length: no run has drafts, so compare them without it")
        return list(runs)
    known = [read_steps(run) for run in runs]
    if committed is not None and not any(isinstance(steps, DecodeSteps) for steps in known):
        raise UsageError(f"--acceptance-length: no run's steps are known: {known[0]}")
    added = []
    for run, steps in zip(runs, known, strict=True):
        figures = dict(run.figures)
        if isinstance(steps, DecodeSteps):
            figures |= {STEP_MS: steps.step_ms, ACCEPTANCE: steps.acceptance}
            if committed is not None:
                each = committed if steps.acceptance > _NO_DRAFTS else _NO_DRAFTS
                figures[COMMITTED_MS] = steps.step_ms / each
        added.append(replace(run, figures=figures))
    return added


def list_remarks(runs: Sequence[Reported], committed: float | None) -> Iterator[str]:
    """Yield what the TPOT at a committed acceptance length is, if a run has it."""
    if committed is not None and any(run.figure(COMMITTED_MS) is not None for run in runs):
        yield f"TPOT at N: ms, computed: step time ÷ {committed:g} tokens a step; without drafts as measured"


def split_speed(row: Sequence[Reported], baseline: Sequence[Reported], alpha: float) -> Split | str | None:
    """Split a row's speed-up by TPOT into that of its steps and that of its drafts, each with its interval.

    Intervals are of runs (or starts) at 1 − alpha, as those of other figures; NaN where a side has one. It is
    a text, why, where a run's steps are not known, and None where no run has drafts or a side has no run.
    """
    runs = (*row, *baseline)
    if not (row and baseline and any(map(has_drafts, runs))):
        return None
    known = {id(run): read_steps(run) for run in runs}
    if why := next((steps for steps in known.values() if isinstance(steps, str)), ""):
        return why
    steps_of = {key: steps for key, steps in known.items() if isinstance(steps, DecodeSteps)}

    def judge(read: Callable[[DecodeSteps], float]) -> Effect:
        units = statistics.pair_units(row, baseline, lambda run: read(steps_of[id(run)]))
        return units.judge(None, MARGIN, alpha)

    speed, steps, drafts = (
        judge(read)
        for read in (lambda s: s.tpot_ms, lambda s: s.step_ms, lambda s: max(s.acceptance, _EXACTLY_ONE))
    )
    return Split(
        speed=_invert(speed),
        steps=_invert(steps),
        drafts=Factor(drafts.ratio, drafts.low, drafts.high),
        units=speed.units,
        paired=speed.paired,
        computed=any(each.computed for each in steps_of.values()),
    )


def _invert(effect: Effect) -> Factor:
    return Factor(1 / effect.ratio, 1 / effect.high, 1 / effect.low)
