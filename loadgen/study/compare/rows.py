"""Rows: one checkpoint under one load: its figures, their ratios to the baseline's, and its marks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from loadgen.base.rule import Severity
from loadgen.base.text import format_count, list_first
from loadgen.figures.figure_table import LATENCIES, SELECTABLE, find_figure
from loadgen.report.load_table import Mean
from loadgen.roofline import bound
from loadgen.server import answer_check
from loadgen.server.answer_check import Fingerprint
from loadgen.study.compare import comparability, statistics
from loadgen.study.compare.model import ComparedFigure, ComparisonOptions, Decision, Effect, Line, Summary
from loadgen.study.run_summary import OURS, SESSION_MS, Reported, describe_simulation


def _list_mean_figures(needs_tokens: bool) -> list[ComparedFigure]:
    """List the mean of each figure that has a column of its own."""
    return [
        ComparedFigure(figure.statistic("mean"), f"{figure.label} {figure.unit}", figure.higher_is_better)
        for figure in LATENCIES
        if figure.compared == figure.key and figure.needs_tokens == needs_tokens
    ]


FIGURES = (
    ComparedFigure("output_throughput", "tok/s", True),
    ComparedFigure("speed_tok_s", "speed tok/s", True),
    ComparedFigure(bound.PREFILL, "prefill tok/s", True),
    ComparedFigure(bound.DECODING, "decode tok/s", True),
    *_list_mean_figures(needs_tokens=True),
    ComparedFigure(SESSION_MS, "session ms", False, 0),
    *_list_mean_figures(needs_tokens=False),
    ComparedFigure("memory_bytes", "memory GiB", None),
    ComparedFigure("joules_per_token", "J/token", None, 3),
)
# Figures that are shown where no run has the mean, with the key of that mean.
IN_PLACE = {
    ComparedFigure(
        figure.statistic(word), f"{prefix}{figure.label} {figure.unit}", figure.higher_is_better
    ): SELECTABLE[figure.compared].statistic("mean")
    for figure in LATENCIES
    if figure.compared
    for word, prefix in (("mean", ""), ("median", "P50 "))
    if word == "median" or figure.compared != figure.key
}
BROKEN = "fast because broken?"
FAR_APART = 2.0  # of runs that are taken for repeats: their mean says little of any of them
UNLIKE_BASELINE = "unlike the baseline"
INVALID, _SUSPECT = "INVALID", "SUSPECT"
_MOST_NAMED = 3  # figures in a mark


class BaselineRuns(msgspec.Struct, frozen=True):
    """The baseline's runs that the others are held against, and the one that all must be like."""

    runs: tuple[Reported, ...]
    like: Reported | None
    asked_output: float | None  # requested tokens of an answer, if reported
    ask: ComparisonOptions
    missing: str = ""  # why there is nothing to be held against

    @classmethod
    def select(
        cls, runs: Sequence[Reported], asked_output: float | None, ask: ComparisonOptions
    ) -> BaselineRuns:
        """Select the baseline's runs that are not INVALID and are like the first of them."""
        valid = [run for run in runs if run.level != INVALID]
        none = "the baseline's runs are INVALID" if runs else "the baseline has no run here"
        like, missing = (valid[0], "") if valid else (None, none)
        baseline = cls((), like, asked_output, ask, missing)
        return replace(baseline, runs=tuple(run for run in valid if baseline.takes(run)))

    def takes(self, run: Reported) -> bool:
        """Whether a run is enough like the baseline to be compared with it."""
        return self.ask.allow_unlike or self.like is None or not _find_marks(run, self.like, Severity.REFUSED)

    def judge_units(self, used: Sequence[Reported], column: ComparedFigure) -> Effect:
        """Judge runs against these in one figure."""
        units = statistics.pair_units(used, self.runs, lambda run: read_figure(run, column.key))
        return statistics.judge_effect(
            units.row,
            units.baseline,
            paired=units.paired,
            higher_is_faster=column.higher_is_faster,
            margin=self.ask.equivalence,
            alpha=self.ask.alpha,
        )


def read_figure(run: Reported, key: str) -> float | None:
    """Read a figure of a run by its key; memory and energy are figures too."""
    if key == "memory_bytes":
        return None if run.memory_bytes is None else float(run.memory_bytes)
    return run.joules_per_token if key == "joules_per_token" else run.figure(key)


def find_column(key: str) -> ComparedFigure:
    """Return the figure of a key; one that is not a column of its own is read by its name."""
    known = find_figure(key)
    higher = known.higher_is_better if known else True if "throughput" in key else None
    if known is None and key.endswith("_ms"):
        higher = False
    other = ComparedFigure(key, key, None if key.startswith("std_") else higher)
    return next((column for column in (*FIGURES, *IN_PLACE) if column.key == key), other)


def compare_row(
    name: str,
    runs: Sequence[Reported],
    reference: BaselineRuns,
    figures: Sequence[ComparedFigure],
    is_baseline: bool,
) -> Line:
    """Make a row of figures over the runs that are used; where none can be, over all, without verdict."""
    valid = [run for run in runs if run.level != INVALID]
    used = [run for run in valid if reference.takes(run)]
    shown = used or valid or list(runs)
    unlike = bool(valid and not used and not reference.missing)
    why = reference.missing or (UNLIKE_BASELINE if unlike else "")
    if not why and not valid:
        why = "its runs are INVALID" if runs else "it has no run here"
    steps = (
        bound.compare_decode(run.ceiling, run.figures, run.load) for run in shown if run.ceiling is not None
    )
    shares = [step.share for step in steps if step is not None]
    effects = {}
    for column in () if is_baseline else figures:
        if any(read_figure(run, column.key) is not None for run in shown):
            reason = why or comparability.explain_other_quantity(column.key, (*used, *reference.runs))
            effects[column.key] = (
                Effect(Decision.NONE, math.nan, unlike=unlike, why=reason)
                if reason
                else reference.judge_units(used, column)
            )
    return Line(
        name,
        tuple(runs),
        {column.key: summary for column in figures if (summary := _summarise(shown, column.key)) is not None},
        effects,
        math.fsum(shares) / len(shares) if shares else None,
        (*_question_speed(shown, figures), *_list_marks(runs, valid, used, reference)),
    )


def mark_answers(row: Line, baseline: Line | None, headline: str, margin: float) -> Line:
    """Add to a row the marks from its answers, compared with the baseline's: is it fast because broken?"""
    own, like = _list_fingerprints(row), next(iter(_list_fingerprints(baseline)), None)
    problems = dict.fromkeys(
        problem for answers in own for problem in answer_check.judge_answers(answers, like)
    )
    parted = (
        answer_check.measure_divergence(own[0], like).format_line(baseline.name)
        if own and like and baseline
        else ""
    )
    effect = row.effects.get(headline)
    is_faster = effect is not None and effect.call is Decision.FASTER
    if effect is not None and effect.call is Decision.NONE:
        is_faster = (effect.ratio if effect.higher_is_faster else 1 / effect.ratio) > 1 + margin
    begun = f"{BROKEN} " if is_faster else ""
    marks = (*(f"{begun}{problem}" for problem in problems), *row.marks)
    return replace(row, marks=marks, answers=parted)


def _list_fingerprints(line: Line | None) -> list[Fingerprint]:
    return [run.fingerprint for run in line.runs if run.fingerprint is not None] if line else []


def _find_marks(run: Reported, like: Reported, severity: Severity) -> list[str]:
    findings = comparability.find_differences(run, like)
    return [finding.evidence for finding in findings if finding.rule.severity is severity]


def _summarise(runs: Sequence[Reported], key: str) -> Summary | None:
    """Compute the mean over units with its 95 % interval by Student's t; None if no run has the figure."""
    values = statistics.list_units(runs, lambda run: read_figure(run, key))
    if not values:
        return None
    found = Mean.average(values)
    return Summary(found.mean, len(values), found.mean - found.half, found.mean + found.half)


def _question_speed(runs: Sequence[Reported], figures: Sequence[ComparedFigure]) -> Iterator[str]:
    """Whether runs that have one mean are repeats, where a figure of theirs is a factor of two apart."""
    apart: list[tuple[float, str]] = []
    for column in figures:
        values = [column.scale(value) for run in runs if (value := read_figure(run, column.key)) is not None]
        if factor := measure_distance(values):
            apart.append((factor, f"in {column.label} ({min(values):.4g} to {max(values):.4g})"))
    if not apart:
        return
    factor, where = max(apart, key=lambda each: each[0])
    if all(run.cell is not None for run in runs):  # repeats, since a campaign made them
        yield f"its {len(runs)} runs are {factor:g}× apart {where}: find what differed, or use no mean"
        return
    yield (
        f"are these {len(runs)} runs repeats? They are {factor:g}× apart {where}; if not, name each as a "
        "place of its own, or measure with --label"
    )


def measure_distance(values: Sequence[float]) -> float:
    """Compute the ratio of the largest of some values to the least, to a digit; 0 below a factor of two."""
    least, most = min(values, default=0.0), max(values, default=0.0)
    factor = round(most / least, 1) if least > 0 else 0.0
    return factor if factor >= FAR_APART else 0.0


def _list_marks(
    runs: Sequence[Reported], valid: Sequence[Reported], used: Sequence[Reported], reference: BaselineRuns
) -> Iterator[str]:
    """Yield what a reader of the row must know, the gravest first."""
    if bad := [run for run in runs if run.level == INVALID]:
        foreign = any(run.told_by != OURS for run in bad)
        why = f"{_name_doubts(bad)}{' (loadgen audit has the evidence)' if foreign else ''}"
        yield f"{_format_share(len(bad), len(runs))}{INVALID}, left out: {why}"
    if reference.like is not None:
        refused = UNLIKE_BASELINE if reference.ask.allow_unlike else "not compared"
        for severity, begin in ((Severity.REFUSED, f"{refused}: "), (Severity.MARKED, "")):
            apart = (_find_marks(run, reference.like, severity) for run in valid)
            yield from _count_sentences((f"{begin}{text}" for texts in apart for text in texts), len(valid))
    yield from _count_sentences(
        (comparability.explain_short_answers(run, reference.asked_output) for run in valid), len(valid)
    )
    yield from _question_roofline(valid)
    if suspect := [run for run in valid if run.level == _SUSPECT]:
        yield f"{_format_share(len(suspect), len(runs))}{_SUSPECT}: {_name_doubts(suspect)}"
    yield from _count_sentences(map(_describe_failures, valid), len(valid))
    yield from _count_sentences(map(_describe_impossible, valid), len(valid))
    whole = {describe_simulation(run.simulated) for run in valid}  # a remark of the whole table
    remarks = (remark for run in valid for remark in run.remarks if remark not in whole)
    yield from _count_sentences(remarks, len(valid))
    if (
        used
        and reference.runs
        and (left := statistics.pair_units(used, reference.runs, lambda run: 1.0).left)
    ):
        yield f"{format_count(left, 'run')} without a partner, not paired"


def _count_sentences(sentences: Iterable[str | None], of: int) -> Iterator[str]:
    """Yield each different sentence once, with how many of the runs it is true of where it is not all."""
    for sentence, count in Counter(filter(None, sentences)).items():
        yield f"{_format_share(count, of)}{sentence}"


def _format_share(count: int, of: int) -> str:
    return "" if count >= of else f"{count} of {of} runs: "


def _name_doubts(runs: Sequence[Reported]) -> str:
    return ", ".join(dict.fromkeys(doubt for run in runs for doubt in run.doubts)) or "no doubt is listed"


def _question_roofline(runs: Sequence[Reported]) -> Iterator[str]:
    """Hold runs to their ceilings: faster than possible, or so slow that a fallback kernel is likely."""
    for kind, judge in (
        ("impossible", bound.explain_impossible),
        ("a fallback kernel is likely", bound.explain_fallback),
    ):
        verdicts = (judge(run.ceiling, run.figures, run.load) for run in runs if run.ceiling is not None)
        if failed := [*filter(None, verdicts)]:
            one = ", for one" if len(failed) > 1 else ""
            yield f"{_format_share(len(failed), len(runs))}{kind}{one}: {failed[0]}"


def _describe_impossible(run: Reported) -> str:
    """Name the figures that are not compared since no measurement gives them."""
    named = [f"{key} {value:.6g}" for key, value in run.impossible.items()]
    return f"no measurement gives {list_first(named, _MOST_NAMED)}: not compared" if named else ""


def _describe_failures(run: Reported) -> str:
    failed, completed = run.figure("failed"), run.figure("completed")
    if run.doubts or not failed or completed is None:
        return ""
    return f"{failed:.0f} of {failed + completed:.0f} requests failed"
