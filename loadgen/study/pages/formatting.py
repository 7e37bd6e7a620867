"""Words: how figures, loads and calls are written, the same in every form of the report."""

from __future__ import annotations

import math

import msgspec

from loadgen.figures import repeats
from loadgen.study.compare import comparison_report, rows
from loadgen.study.compare.model import ComparedFigure, ComparedLoad, Decision, Effect, Line, Summary
from loadgen.study.run_summary import Reported, grouped

SYMBOLS = {
    Decision.FASTER: "▲",
    Decision.SLOWER: "▼",
    Decision.EQUIVALENT: "≈",
    Decision.UNDECIDED: "?",
    Decision.NONE: "–",
}
_MANY = 3  # rows: what holds for as many is written once
LEVELS = {"VALID": "✓", "SUSPECT": "!", "INVALID": "✗"}


class Number(msgspec.Struct, frozen=True):
    """A figure as it is written, with the whole of it and where it stands in the JSON ("" : nowhere)."""

    key: str
    value: float
    text: str
    aside: str = ""  # what is to be known of it, next to it


Entry = Number | str


class FigureTable(msgspec.Struct, frozen=True):
    """Figures in rows, the first entry of each its name."""

    titles: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]


def number(key: str, value: object, digits: int = 2, unit: str = "") -> Number | str:
    """A number with thousands apart; a dash without a value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return "–" if value is None or value != value else str(value)
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"
    return Number(key, value, f"{text} {unit}".rstrip())


def written(figure: ComparedFigure, value: float) -> str:
    """One value of a figure, in the unit that its label names."""
    return f"{figure.scaled(value):,.{figure.digits}f}"


def spread(figure: ComparedFigure, summary: Summary) -> str:
    """Half of a mean's interval, "" without one."""
    half = figure.scaled((summary.high - summary.low) / 2)
    if comparison_report.is_vague(summary):
        return repeats.VAGUE
    return f"± {half:,.{figure.digits}f}" if math.isfinite(half) else ""


def ends(low: float, high: float) -> str:
    """The ends of a mean's interval, in words where they bound nothing; "" where there is none."""
    if low != low:
        return ""
    return repeats.UNBOUNDED if low <= 0 < high else f"{low:,.4g} to {high:,.4g}"


def ratio(value: float) -> str:
    """A row ÷ its baseline."""
    return f"{value:.3g}×" if value >= 10 or value < 0.1 else f"{value:.3f}×"


def interval(effect: Effect) -> str:
    """The ratio's 95 % interval, "" without one."""
    if not (math.isfinite(effect.low) and math.isfinite(effect.high)):
        return ""
    if not repeats.is_bounded(effect.ratio, effect.low, effect.high):
        return repeats.UNBOUNDED
    return f"{ratio(effect.low)[:-1]} to {ratio(effect.high)[:-1]}"


def detectable(effect: Effect) -> str:
    """The least difference that runs as these find; a dash where it is not asked, words where it is any."""
    if effect.detectable != effect.detectable:
        return "–"
    return repeats.difference(effect.detectable) or "none"


def lead(comparison: ComparedLoad, line: Line) -> str:
    """What a row comes to in the headline figure: 1.44× (1.40 to 1.48) by tok/s; 5 pairs."""
    effect = line.effects.get(comparison.headline)
    if effect is None:
        return ""
    times = comparison_report.format_speed_up(comparison, line)
    parts = [f"{times} by {rows.compared_figure(comparison.headline).label}"] if times else []
    if effect.units > 1:
        parts.append(f"{effect.units} {'pairs' if effect.paired else 'runs per side'}")
    if effect.call is Decision.UNDECIDED:
        parts.append(comparison_report.explain_undecided(effect))
    elif effect.why and effect.why not in common(comparison):
        parts.append(effect.why)
    return "; ".join(parts)


def common(comparison: ComparedLoad) -> dict[str, str]:
    """What holds for three rows or more next to the baseline, or for both of two: written once."""
    others = [line for line in comparison.lines if line.name != comparison.baseline]
    sentences: list[tuple[str, str]] = []
    for line in others:
        effect = line.effects.get(comparison.headline)
        why = [effect.why] if effect is not None and effect.call is Decision.NONE and effect.why else []
        sentences += [(line.name, sentence) for sentence in dict.fromkeys((*why, *line.marks))]
    return {
        sentence: "all" if len(of) == len(others) else ", ".join(name for name, _ in of)
        for sentence, of in grouped(sentences, lambda pair: pair[1]).items()
        if len(of) >= _MANY or len(of) == len(others) > 1
    }


def marks(comparison: ComparedLoad, line: Line) -> tuple[str, ...]:
    """The marks of this row that hardly another has."""
    once = common(comparison)
    return tuple(mark for mark in line.marks if mark not in once)


def where(run: Reported) -> str:
    """Which engine on which machine."""
    return ", ".join(filter(None, (run.engine, run.machine, run.power_mode)))
