"""How often a comparison is wrong: `python benchmarks/comparing.py` writes docs/comparing-calibration.md.

Thousands of simulated campaigns go through the lines of `loadgen.study.compare` that judge a real
one: five repeats, a verdict, the further runs that the tool asks for, a verdict again. Where no row differs,
every `faster` or `slower` is false; where one does, it should be found. Nothing here asserts.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "servers")]

from benchmarks.harness.page import markdown  # noqa: E402
from benchmarks.simulated.calibration import Calibration, find_interval  # noqa: E402
from benchmarks.simulated.populations import Made, Population, real  # noqa: E402
from loadgen.base.arrays import Float64  # noqa: E402
from loadgen.study.compare.statistics import Estimate, estimate_more_runs, estimate_ratio, judge_family  # noqa: E402  # noqa: E402

ALPHA = 0.05
REPEATS = 5
SEED = 20260101
_PAGE = ROOT / "docs" / "comparing-calibration.md"
_FASTER, _SLOWER, _EQUIVALENT, _UNDECIDED = range(4)
_FIELDS = [
    ("false", int),
    ("verdict", int),
    ("covered", bool),
    ("plain", bool),
    ("repeats", int),
    ("beyond", bool),
]
ROWS = (1, 2, 9)  # compared with the baseline
_MOST_LOOKS = 12
_PLAIN = Made("log-normal, 2 %", 0.02)
_MADE = (
    Made("log-normal, 1 %", 0.01),
    _PLAIN,
    Made("log-normal, 5 %", 0.05),
    Made("2 %, and a drift of 5 % in five repeats", 0.02, drift=0.05),
    Made("2 %, neighbours in time correlated by 0.8", 0.02, "bursts"),
    Made("2 %, tails of t with 3 degrees of freedom", 0.02, "t3"),
    Made("2 %, one run in ten slower by up to 20 %", 0.02, "hiccups"),
    Made("three runs of 2 % a start, starts of 3 %", 0.02, start_spread=0.03, runs_a_start=3),
)
_HEADS = [f"{rows} and the baseline, %" for rows in ROWS]
_HEAD = (
    "# How often a comparison is wrong",
    "",
    "Written by one run of `python benchmarks/comparing.py`. Simulated campaigns go through the code that"
    " judges real ones; their runs are synthetic with the given spread, or real runs of one checkpoint,"
    " resampled in stretches that keep their order. Every arm has a run in each repeat, in ABBA order,"
    " paired by repeat. Brackets are 95 % intervals of the simulation (Clopper, Pearson).",
)
Outcomes = NDArray[Any]  # one campaign an element, of _FIELDS


@dataclass(frozen=True)
class Question:
    """Campaigns of one kind: `rows` and a baseline, the first of them faster by `truth`."""

    population: Population
    rows: int
    margin: float
    truth: float = 0.0
    paired: bool = True
    looks: int = 2  # at most
    repeats: int = REPEATS  # before the first look


def simulate(question: Question, campaigns: int) -> Outcomes:
    """The outcomes of simulated campaigns; the same in every run of this program."""
    draws = np.random.default_rng(SEED)
    figures = _figures(question, draws, np.zeros((campaigns, 0)), question.repeats)
    return np.concatenate(list(_follow(question, draws, figures, np.zeros(campaigns, _FIELDS), 1)))


def _figures(question: Question, draws: np.random.Generator, before: Float64, repeats: int) -> Float64:
    """`repeats` more repeats after those `before`: (campaigns, arms, repeats), the baseline first."""
    arms = question.rows + 1
    figures = question.population.figures(draws, len(before), arms, repeats, before.shape[-1])
    figures[:, 1] *= 1 + question.truth
    return figures


def _follow(
    question: Question, draws: np.random.Generator, figures: Float64, before: Outcomes, look: int
) -> Iterator[Outcomes]:
    """Look; then add the requested repeats to the campaigns that need them, and look again."""
    outcomes, more = _look(question, figures, before, look)
    goes_on = np.isfinite(more) & (more > 0) & (look < question.looks)
    yield outcomes[~goes_on]
    for extra in np.unique(more[goes_on]).astype(int):
        these = goes_on & (more == extra)
        further = _figures(question, draws, figures[these], extra)
        longer = np.concatenate([figures[these], further], -1)
        yield from _follow(question, draws, longer, outcomes[these], look + 1)


def _look(question: Question, figures: Float64, before: Outcomes, look: int) -> tuple[Outcomes, Float64]:
    """Today's verdicts, and the repeats requested: by the noisiest undecided row, which needs most."""
    count = figures.shape[-1]
    ratios = estimate_ratio(figures[:, 1:], figures[:, :1], paired=question.paired)
    rows = judge_family(ratios, question.margin, ALPHA)
    faster, slower = (rows.differs & (ratios.log_ratio * sign > 0) for sign in (1, -1))
    same = (np.arange(question.rows) > 0) | (question.truth == 0)
    outcomes = before.copy()
    outcomes["false"][(before["false"] == 0) & (slower | (faster & same)).any(-1)] = look
    outcomes["verdict"] = np.select((faster[:, 0], slower[:, 0], rows.equivalent[:, 0]), range(3), _UNDECIDED)
    outcomes["repeats"] = count
    if look == 1:
        off = np.abs(ratios.log_ratio - np.log1p(question.truth * ~same))
        outcomes["covered"] = (off <= ratios.reach(ALPHA))[:, 0]
        outcomes["plain"] = (ratios.p <= ALPHA).any(-1)
    undecided = rows.undecided.any(-1)
    more = np.zeros(len(figures))
    if undecided.any():
        noisiest = np.where(rows.undecided, ratios.error, -1).argmax(-1)[undecided, None]
        parts = (ratios.log_ratio, ratios.error, ratios.freedom)
        worst = Estimate(*(np.take_along_axis(part[undecided], noisiest, -1)[:, 0] for part in parts))
        more[undecided] = estimate_more_runs(
            worst, count, rows=question.rows, margin=question.margin, alpha=ALPHA
        )
    outcomes["beyond"] = np.isinf(more)
    return outcomes, more


def no_difference(campaigns: int) -> list[str]:
    """Campaigns in which any row is called faster or slower, where all are alike."""
    lines, above = [], []
    for population, margin, paired in _populations():
        cells = []
        for rows in ROWS:
            outcomes = simulate(Question(population, rows, margin, paired=paired), campaigns)
            wrong = _wrong(outcomes, 2)
            cells.append(f"{100 * _wrong(outcomes, 1).mean():.1f} → {_share(wrong)}")
            if find_interval(wrong)[1] > ALPHA:
                above.append(f"{population.name}, {rows} and the baseline: {_share(wrong)} %")
        lines.append((population.name, f"± {margin:.0%}", _share(outcomes["covered"]), *cells))
    met = "met in every cell"
    if above:
        met = f"**missed** in {len(above)} of {len(ROWS) * len(lines)} cells: {'; '.join(above)}"
    return [
        "## Where no row differs",
        "",
        f"False verdicts: the share of {campaigns:,} campaigns per cell in which any row is called faster or"
        " slower, after five repeats → including the repeats then requested. *Holds*: how often the first"
        " 95 % interval of a ratio contains the true one.",
        "",
        *markdown(("runs", "margin", "holds, %", *_HEADS), lines),
        "",
        f"The bar, an interval that ends at {ALPHA:.0%} or below, is {met}.",
    ]


def as_long_as_it_asks(campaigns: int) -> list[str]:
    """The same, if requested repeats are made until none are requested."""
    lines = []
    for repeats in (REPEATS, 3, 2):
        questions = [Question(_PLAIN, rows, 0.02, looks=_MOST_LOOKS, repeats=repeats) for rows in ROWS]
        wrong = (_wrong(simulate(question, campaigns), _MOST_LOOKS) for question in questions)
        lines.append((str(repeats), *map(_share, wrong)))
    return [
        "## Asked again and again",
        "",
        f"False verdicts of {_PLAIN.name}, if requested repeats are made up to {_MOST_LOOKS} times. alpha is"
        " divided by three looks: with more, or fewer than five repeats at first, 5 % is not guaranteed.",
        "",
        *markdown(("repeats at first", *_HEADS), lines),
    ]


def a_difference(campaigns: int) -> list[str]:
    """The verdicts on a row that differs, after the repeats that were requested."""
    lines = []
    for (population, margin, truth), rows in itertools.product(_truths(), ROWS):
        outcomes = simulate(Question(population, rows, margin, truth), campaigns)
        verdicts = [_share(outcomes["verdict"] == verdict) for verdict in range(4)]
        middle, most = np.median(outcomes["repeats"]), outcomes["repeats"].max()
        repeats = f"{middle:.0f} ({most})"
        lines.append((population.name, f"± {margin:.0%}", str(rows), f"{truth:.1%}", *verdicts, repeats))
    return [
        "## Where one row differs",
        "",
        f"The verdicts on that row in {campaigns:,} campaigns, in %, after the repeats then requested."
        " If over 1000 would be needed, none are requested, and the row stays undecided.",
        "",
        *markdown(
            (
                "runs",
                "margin",
                "rows",
                "faster by",
                "faster",
                "slower",
                "equivalent",
                "undecided",
                "repeats (most)",
            ),
            lines,
        ),
    ]


def without(campaigns: int) -> list[str]:
    """The effect of each rule: the same campaigns without it."""
    drifting = Made("", 0.02, drift=0.05, in_turn=False)
    cases = [
        ("every row by its own p ≤ 0.05, one look", Question(_PLAIN, 9, 0.02), "plain"),
        (
            "an arm after the other while the figure drifts by 5 % in five repeats",
            Question(drifting, 2, 0.02, paired=False),
            "false",
        ),
        (
            "one start an arm, luck of 3 %, its five runs taken for units",
            Question(Made("", 0.02, start_spread=0.03, one_start=True), 2, 0.02),
            "false",
        ),
    ]
    lines = [
        (what, str(question.rows), _share(simulate(replace(question, looks=1), campaigns)[column] > 0))
        for what, question, column in cases
    ]
    return [
        "## Without a rule",
        "",
        "False verdicts at the first look, without one of the rules:",
        "",
        *markdown(("without it", "rows", "false, %"), lines),
    ]


def _populations() -> Iterator[tuple[Population, float, bool]]:
    """Each with the margin of its verdicts, and whether its runs are judged in pairs."""
    yield from ((series, 0.1, True) for series in real())
    yield from ((made, 0.02, True) for made in _MADE)
    yield replace(_PLAIN, name=f"{_PLAIN.name}, not paired"), 0.02, False


def _truths() -> Iterator[tuple[Population, float, float]]:
    """Each with a margin and a true difference."""
    yield from ((_PLAIN, 0.02, truth) for truth in (0.03, 0.02, 0.005, 0.0))
    yield from (
        (series, 0.1, 0.15) for series in real() if "throughput" in series.name and series.stretch == 2
    )


def _wrong(outcomes: Outcomes, look: int) -> NDArray[Any]:
    return np.asarray((outcomes["false"] > 0) & (outcomes["false"] <= look))


def _share(hits: NDArray[Any]) -> str:
    low, high = find_interval(hits)
    return f"{100 * hits.mean():.1f} ({100 * low:.1f}–{100 * high:.1f})"


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, print the page, write it."""
    sections = (no_difference, as_long_as_it_asks, a_difference, without)
    return Calibration(_PAGE, _HEAD, sections, "campaigns", 2_000, SEED).run(argv, str(__doc__))


if __name__ == "__main__":
    sys.exit(main())
