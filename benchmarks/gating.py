"""How often a gate is wrong: `python benchmarks/gating.py` writes docs/gate-calibration.md.

Thousands of simulated gates go through the lines of `loadgen.study.gate` that judge real ones. Where the new
side is no slower than the margin, every `slower` is false; where it is slower, it should be found within the
pairs that a gate makes by default. Nothing here asserts.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "servers")]

from benchmarks.harness.page import markdown  # noqa: E402
from benchmarks.simulated.calibration import Calibration, find_interval  # noqa: E402
from benchmarks.simulated.drifts import (  # noqa: E402
    DRIFTS,
    SPREAD,
    compare_blocks,
    gate_blocks,
)
from benchmarks.simulated.populations import (  # noqa: E402
    GATE_RUNS,
    RUNS,
    Made,
    Population,
    gated,
    real,
    shrink,
)
from loadgen.base.arrays import Bool, Float64, Int64  # noqa: E402
from loadgen.study.compare.model import Decision  # noqa: E402
from loadgen.study.gate.gate_record import make_gate_metric  # noqa: E402
from loadgen.study.gate.gate_verdict import (  # noqa: E402  # noqa: E402
    ALPHA,
    FIRST_LOOK,
    MARGIN,
    MAX_PAIRS,
    SPENDING_POWER,
    GateOutcome,
    GatePlan,
    GateSeries,
    Looks,
    estimate_in_turn,
    find_levels,
    judge_gate,
    list_strict_levels,
    spend_alpha,
)

SEED = 20261127
SLOWER = 0.05  # what is to be found
FOUND = 0.9  # of gates, at least
_PAGE = ROOT / "docs" / "gate-calibration.md"
_PLAIN = Made("log-normal, 2 %", 0.02)
_SPREADS = [Made(f"log-normal, {100 * spread:g} %", spread) for spread in (0.005, 0.01, 0.02, 0.03, 0.05)]
_SHAPES = (
    Made("2 %, and a drift of 5 % in five pairs", 0.02, drift=0.05),
    Made("2 %, neighbours in time correlated by 0.8", 0.02, "bursts"),
    Made("2 %, tails of t with 3 degrees of freedom", 0.02, "t3"),
    Made("2 %, one run in ten slower by up to 20 %", 0.02, "hiccups"),
)
_MOST_PAIRS = (3, 4, 5, 8, 12, 20, 30, 60)
_PLAN = GatePlan(sequential=True)
_TAIL = 0.002  # of the test of a cell, since a table has about fifty
_TRIED = (5, 10, 15, 20, 30, 40, 60, 80, 120, 160, 240)
_MOST_GIVEN = 500  # pairs of runs that are given
_DIFFERENT = (Decision.FASTER, Decision.SLOWER)
_MOST_BLOCKS = 400  # comparisons and gates of a drift and a size
_HEAD = (
    "# How often a gate is wrong",
    "",
    "Written by one run of `python benchmarks/gating.py`. Simulated gates go through the code that judges"
    f" real ones: a look after each pair from the third on, {MAX_PAIRS} pairs at most, a margin of"
    f" {MARGIN:.0%}, alpha {ALPHA:.0%}, which side comes first drawn. Runs are synthetic with the given"
    " spread, or real runs of one checkpoint, resampled in stretches that keep their order. Brackets are"
    " 95 % intervals of the simulation (Clopper, Pearson).",
    "",
    "## The rule",
    "",
    "A pair's slowdown is base ÷ new for a throughput, new ÷ base for a latency. A figure is slower if"
    " the one-sided t test of the mean logarithm against log(1 + margin) passes at alpha ÷ figures"
    " (Holm). It is not slower if the other one-sided test passes at alpha; the gate needs that"
    f" for every figure (Berger 1982). Looks spend alpha · share^{SPENDING_POWER:g} of the planned pairs"
    " (Lan, DeMets 1983), at levels of the exact t distribution (Jennison, Turnbull 1991). Given runs,"
    f" {FIRST_LOOK} per side or more, are judged at a third of alpha, in pairs or by Welch, as in"
    " `compare`. The number of further pairs is the least that decides 80 % of gates, if"
    " the truth lies near what was seen (Spiegelhalter, Freedman, Blackburn 1986).",
)


class Seen(msgspec.Struct, frozen=True):
    """What simulated gates came to, one an element."""

    slower: Bool
    not_slower: Bool
    pairs: Int64


@dataclass(frozen=True)
class Case:
    """Gates of one kind: each of `rows` figures is slower by `truth`."""

    population: Population
    truth: float
    rows: int = 1
    plan: GatePlan = _PLAN
    order: str = "drawn"  # for each pair; or "reversed" from pair to pair, or "kept"

    def draw(self, gates: int, pairs: int) -> Float64:
        """Draw the logarithms of the slowdowns: (gates, rows, pairs); the same in every run of this program.

        A population has the two sides in reverse order in every other pair; to turn a pair round is to change
        the sign of its logarithm. The rows are independent.
        """
        draws = np.random.default_rng(SEED)
        figures = self.population.figures(draws, gates * self.rows, 2, pairs)
        slowdowns = np.log(figures[:, 1] / figures[:, 0])
        if self.order == "drawn":
            slowdowns *= draws.choice((-1, 1), slowdowns.shape)
        elif self.order == "kept":
            slowdowns[:, 1::2] *= -1
        return np.asarray(slowdowns.reshape(gates, self.rows, pairs) + np.log1p(self.truth))


def run_gates(case: Case, gates: int, levels: Sequence[float] | None = None) -> Seen:
    """Run sequential gates to their ends; `levels` are another rule's p of each look, of gates of one row."""
    strict = list_strict_levels(case.plan, case.rows) if levels is None else np.array([levels])
    slowdown = estimate_in_turn(case.draw(gates, case.plan.max_pairs))
    looks = Looks(slowdown, np.full((case.rows, 1), np.log1p(MARGIN)), strict, strict[0])
    end = looks.find_end()
    slower, not_slower = looks.decide()
    gate = np.arange(gates)
    called, cleared = slower[gate, :, end].any(-1), not_slower[gate, :, end].all(-1)
    return Seen(np.asarray(called), np.asarray(cleared), end + FIRST_LOOK)


def list_pair_counts(gates: int) -> list[str]:
    """The error at every number of looks: alike, exactly at the margin, and just above it."""
    lines, above = [], []
    for most, rows in itertools.product(_MOST_PAIRS, (1, 3)):
        plan = GatePlan(max_pairs=most, sequential=True)
        alike, at_margin = (run_gates(Case(_PLAIN, truth, rows, plan), gates) for truth in (0.0, MARGIN))
        shares = (alike.slower, at_margin.slower, at_margin.not_slower)
        above += [f"{most} pairs, figures: {rows}" for share in shares if _exceeds(share)]
        lines.append((str(most), str(most - FIRST_LOOK + 1), str(rows), *map(_share, shares)))
    return [
        "## At every number of looks",
        "",
        f"Outcomes of {gates:,} gates per row, in %, with a spread of 2 %: both sides alike, or the new one"
        f" slower by exactly the margin of {MARGIN:.0%}.",
        "",
        *markdown(
            ("pairs at most", "looks", "figures", "alike: slower", "at the margin: slower", "not slower"),
            lines,
        ),
        "",
        _judge(above),
    ]


def list_spreads(gates: int) -> list[str]:
    """What gates of the default plan say of runs of each kind."""
    lines, above, missed = [], [], []
    for population in _list_populations():
        alike, at_margin, slower, slow = (
            run_gates(Case(population, truth), gates) for truth in (0, MARGIN, SLOWER, 2 * SLOWER)
        )
        spread = _measure_spread(population)
        if _exceeds(alike.slower) or _exceeds(at_margin.slower):
            above.append(population.name)
        if slower.slower.mean() < FOUND:
            missed.append(spread)
        lines.append(
            (
                population.name,
                f"{100 * spread:.1f}",
                _percent(alike.slower),
                f"{_percent(alike.not_slower)}, {np.median(alike.pairs):.0f}",
                _share(at_margin.slower),
                f"{_percent(slower.slower)}, {np.median(slower.pairs):.0f}",
                f"{_percent(slow.slower)}, {np.median(slow.pairs):.0f}",
            )
        )
    head = (
        "runs",
        "spread",
        "alike: slower",
        "not slower",
        "at the margin: slower",
        "5 %: found",
        "10 %: found",
    )
    widest = f"runs that spread by less than {100 * min(missed, default=1):.1f} %"
    return [
        f"## Runs of every kind, {MAX_PAIRS} pairs at most",
        "",
        f"The share of {gates:,} gates per cell, in %, then the median number of pairs. The spread, in %, is"
        " that between the runs of a pair.",
        "",
        *markdown(head, lines),
        "",
        _judge(above),
        f"{FOUND:.0%} of gates find a slowdown of {SLOWER:.0%} in {widest}.",
    ]


def list_orders(gates: int) -> list[str]:
    """What the order of a pair's two runs does to the error."""
    lines = []
    correlated = next(made for made in _SHAPES if made.noise == "bursts")
    measured = next(series for series in real() if series.stretch == 5 and "TTFT" in series.name)
    kinds: tuple[Population, ...] = (_SHAPES[0], correlated, measured)
    for population, order in itertools.product(kinds, ("drawn", "reversed", "kept")):
        at_margin = run_gates(Case(population, MARGIN, order=order), gates)
        lines.append((population.name, order, _share(at_margin.slower), _share(at_margin.not_slower)))
    return [
        "## The order in a pair",
        "",
        f"Outcomes of {gates:,} gates at exactly the margin, in %, if the order of the two runs is drawn for"
        " each pair, reversed from pair to pair, or kept.",
        "",
        *markdown(("runs", "order", "slower", "not slower"), lines),
    ]


def list_needed(gates: int) -> list[str]:
    """The pairs at most with which a slowdown is found, by the spread of a run."""
    lines = []
    for spread in (0.01, 0.02, 0.03, 0.05):
        cells = []
        for truth in (SLOWER, 2 * SLOWER):
            for most in _TRIED:
                plan = GatePlan(max_pairs=most, sequential=True)
                seen = run_gates(Case(Made("", spread), truth, plan=plan), gates)
                if seen.slower.mean() >= FOUND:
                    cells.append(f"{most} ({np.median(seen.pairs):.0f})")
                    break
            else:
                cells.append(f"over {_TRIED[-1]}")
        lines.append((f"{100 * spread:g} %", *cells))
    return [
        "## Which --max-pairs",
        "",
        f"The fewest pairs with which {FOUND:.0%} of gates find a slowdown, and the median number that they"
        f" make. The margin is {MARGIN:.0%}.",
        "",
        *markdown(("spread of a run", f"{SLOWER:.0%} slower", f"{2 * SLOWER:.0%} slower"), lines),
    ]


def list_given(gates: int) -> list[str]:
    """Given runs: five pairs, then as many more as were asked for, up to three analyses."""
    lines = []
    for truth in (0.0, MARGIN, SLOWER):
        draws = np.random.default_rng(SEED)
        ends = []
        for _ in range(gates):
            noise = _PLAIN.spread * np.sqrt(2) * draws.normal(size=_MOST_GIVEN)
            ends.append(_follow(np.exp(noise + np.log1p(truth)).tolist()))
        for analyses in (1, 2, 3):
            seen = [end[min(analyses, len(end)) - 1] for end in ends]
            outcomes = [np.array([one == wanted for one, _ in seen]) for wanted in GateOutcome]
            pairs = f"{np.median([made for _, made in seen]):.0f}"
            lines.append((f"{truth:.0%}", str(analyses), *map(_share, outcomes), pairs))
    return [
        "## Given runs",
        "",
        f"Outcomes of {gates:,} gates in %: five pairs with a spread of 2 %, then once and twice more with"
        f" the further pairs requested, {_MOST_GIVEN} in all at most.",
        "",
        *markdown(("slower by", "analyses", *(outcome.value for outcome in GateOutcome), "pairs"), lines),
    ]


def list_blocks(gates: int) -> list[str]:
    """Given runs of one side after the other, by `compare` and by the gate."""
    lines, campaigns = [], min(gates, _MOST_BLOCKS)
    for name, draw in DRIFTS.items():
        for runs in (3, 5, 8):
            random = np.random.default_rng([SEED, runs])

            called = {
                times: np.array([compare_blocks(draw, runs, times, random).call for _ in range(campaigns)])
                for times in (1.0, 1.1, 1.02)
            }
            alike, tenth = (np.isin(called[times], _DIFFERENT) for times in (1.0, 1.1))
            equal = called[1.02] == Decision.EQUIVALENT
            outcomes = np.array([gate_blocks(draw, runs, 1 + MARGIN, random) for _ in range(campaigns)])
            slower, cleared = (outcomes == one for one in (GateOutcome.SLOWER, GateOutcome.NOT_SLOWER))
            shares = map(_percent, (alike, equal, slower, cleared, tenth))
            lines.append((name, str(runs), *shares))
    return [
        "## Runs of one side after the other",
        "",
        f"All runs of one side before those of the other, spread {SPREAD:.0%}, on a machine that drifts:"
        f" outcomes of {campaigns:,} comparisons or gates per cell, in %. At 2 % `compare` is at its margin,"
        f" at {MARGIN:.0%} the gate.",
        "",
        *markdown(
            ("drift", "runs a side", "alike: called", "at 2 %: equivalent", "at the margin: slower",
             "not slower", "10 %: found"),
            lines,
        ),
    ]  # fmt: skip


def _follow(slowdowns: Sequence[float]) -> list[tuple[GateOutcome, int]]:
    """Judge five pairs, then with the pairs asked for; the outcome and pairs of each analysis."""
    latency, said = make_gate_metric("", "", higher_is_faster=False), list[tuple[GateOutcome, int]]()
    pairs = 5
    while len(said) < 3:
        new, base = tuple(slowdowns[:pairs]), (1.0001,) * pairs
        verdict = judge_gate([GateSeries(latency, "", new, base, True)], GatePlan())
        said.append((verdict.outcome, pairs))
        if verdict.more_pairs is None or pairs + verdict.more_pairs > len(slowdowns):
            break
        pairs += verdict.more_pairs
    return said


def list_choices(gates: int) -> list[str]:
    """Other ways to spend alpha, and other rules: the errors and the pairs of each."""
    from scipy import special

    looks = np.arange(FIRST_LOOK, MAX_PAIRS + 1)
    shares = looks / MAX_PAIRS
    powers = {f"alpha · share^{power:g}": ALPHA * shares**power for power in (SPENDING_POWER, 1, 2, 3)}
    spent = powers | {
        "Pocock's, as by Lan and DeMets": ALPHA * np.log1p((np.e - 1) * shares),
        "O'Brien and Fleming's, likewise": 2 * special.ndtr(special.ndtri(ALPHA / 2) / np.sqrt(shares)),
    }
    rules: dict[str, Sequence[float]] = {
        name: find_levels(by_look, looks.tolist()) for name, by_look in spent.items()
    }
    rules["the first, t taken for a normal deviate"] = _find_known_levels(spend_alpha(ALPHA, shares))
    rules["every look at alpha"] = [ALPHA] * len(looks)
    rules["alpha ÷ the looks (Bonferroni)"] = [ALPHA / len(looks)] * len(looks)
    lines = []
    for name, levels in rules.items():
        at_margin = run_gates(Case(_PLAIN, MARGIN), gates, levels)
        cells = [_share(at_margin.slower)]
        for spread, truth in ((0.005, SLOWER), (0.01, SLOWER), (0.02, SLOWER), (0.03, SLOWER), (0.01, 0.3)):
            seen = run_gates(Case(Made("", spread), truth), gates, levels)
            cells.append(f"{100 * seen.slower.mean():.1f}, {seen.pairs.mean():.1f}")
        lines.append((name, *cells))
    return [
        "## How alpha is spent",
        "",
        f"Gates that find a slowdown of {SLOWER:.0%}, in %, and their mean number of pairs, by spread; last a"
        f" slowdown of 30 %. {gates:,} gates per cell.",
        "",
        *markdown(("rule", "at the margin: slower", "0.5 %", "1 %", "2 %", "3 %", "30 % slower, 1 %"), lines),
    ]


def _find_known_levels(spent: Float64) -> list[float]:
    """Find the p of each look where the variance is known, by simulation: what the usual programs print."""
    from scipy import special

    paths = np.random.default_rng(SEED).normal(size=(400_000, MAX_PAIRS)).cumsum(-1)
    levels, all_paths = [], len(paths)
    for pairs, share in zip(range(FIRST_LOOK, MAX_PAIRS + 1), np.diff(spent, prepend=0), strict=True):
        deviates = paths[:, pairs - 1] / np.sqrt(pairs)
        count = round(share * all_paths)
        bar = np.partition(deviates, -count)[-count]
        levels.append(float(special.ndtr(-bar)))
        paths = paths[deviates < bar]
    return levels


def _list_populations() -> Iterator[Population]:
    """Synthetic runs, recorded ones, and recorded ones with their logarithms scaled to a spread of 2 %."""
    yield from _SPREADS
    yield from _SHAPES
    yield from gated()
    busy = [series for series in real() if series.stretch == 5]
    yield from busy
    yield from (replace(shrink(series, 0.02), name=f"{series.name}, shrunk") for series in busy)


def _measure_spread(population: Population) -> float:
    """Measure the spread of a run as pairs have it: that of the logarithm of a pair's ratio, over √2."""
    slowdowns = Case(population, 0.0).draw(2_000, 20)
    return float(slowdowns.std() / np.sqrt(2))


def _exceeds(hits: Bool) -> bool:
    """Whether the error is above alpha, by a test that one table in ten fails if all its errors are alpha."""
    from scipy import stats

    return bool(stats.binomtest(int(hits.sum()), hits.size, ALPHA, alternative="greater").pvalue < _TAIL)


def _judge(above: Sequence[str]) -> str:
    verdict = f"**missed** for {len(above)}: {'; '.join(above)}" if above else "met in every row"
    return f"The bar, an error of {ALPHA:.0%} at most (binomial test at {_TAIL:.1%}), is {verdict}."


def _share(hits: Bool) -> str:
    low, high = find_interval(hits)
    return f"{_percent(hits)} ({100 * low:.1f}–{100 * high:.1f})"


def _percent(hits: Bool) -> str:
    return f"{100 * hits.mean():.1f}"


SECTIONS: tuple[Callable[[int], list[str]], ...] = (
    list_pair_counts,
    list_spreads,
    list_orders,
    list_needed,
    list_given,
    list_blocks,
    list_choices,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, print the page, write it."""
    made = Calibration(_PAGE, _HEAD, SECTIONS, "gates", 1_000, SEED, (GATE_RUNS, RUNS))
    return made.run(argv, str(__doc__))


if __name__ == "__main__":
    sys.exit(main())
