"""Charts: what is drawn of several runs: bars with the roofline, lengths of input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from loadgen.study.compare.model import ComparedFigure, ComparedLoad, Line
from loadgen.study.pages import formatting, run_charts
from loadgen.study.pages.formatting import FigureTable
from loadgen.study.pages.panel import NAN, Bar, Curve, CurveStyle, Panel
from loadgen.study.run_summary import Reported, grouped

MOST_CURVES = 8  # in one panel
_BETTER = {None: "Neither direction is faster.", True: "Higher is faster.", False: "Lower is faster."}
_TPOT, _SPEED = "mean_tpot_ms", "speed_tok_s"


def comparison(compared: ComparedLoad) -> Iterator[Panel]:
    """A panel of bars a figure, checkpoints as bars, then how near decoding came to the roofline."""
    for figure in compared.figures:
        bars = tuple(_bar(line, figure) for line in compared.lines if figure.key in line.summaries)
        if bars:
            yield _bars(f"bars-{figure.key}", figure.label, bars, _BETTER[figure.higher_is_faster])
    shares = tuple(
        Bar(line.shown_name, 100 * line.roofline, f"{100 * line.roofline:.0f} %", best=100.0)
        for line in compared.lines
        if line.roofline is not None
    )
    if shares:
        best = "100 % is what the memory bandwidth allows."
        yield _bars("bars-roofline", "Decoding, % of the roofline", shares, best)


def _bar(line: Line, figure: ComparedFigure) -> Bar:
    summary, effect = line.summaries[figure.key], line.effects.get(figure.key)
    text = formatting.written(figure, summary.mean)
    if effect is not None and effect.ratio == effect.ratio:
        text += f" · {formatting.ratio(effect.ratio)} {formatting.SYMBOLS[effect.call]}".removesuffix(" –")
    best = NAN
    if line.roofline and figure.key in (_TPOT, "median_tpot_ms"):
        best = summary.mean * line.roofline
    mean, low, high = map(figure.scaled, (summary.mean, summary.low, summary.high))
    return Bar(line.shown_name, mean, text, low, high, best)


def _bars(key: str, title: str, bars: tuple[Bar, ...], better: str) -> Panel:
    sentences = [better]
    if any(bar.low == bar.low for bar in bars):
        sentences.append("The thin line is the 95 % confidence interval of the mean.")
    if any(bar.best == bar.best for bar in bars):
        sentences.append("The dashed mark is the roofline.")
    intervals = (formatting.ends(bar.low, bar.high) for bar in bars)
    rows = tuple((bar.name, bar.text, interval) for bar, interval in zip(bars, intervals, strict=True))
    numbers = FigureTable(("", "mean", "95 % interval"), rows)
    return Panel(key, title, "", bars=bars, caption=" ".join(sentences), numbers=numbers)


def distributions(compared: ComparedLoad) -> list[Panel]:
    """The latencies of the rows over one another, of those whose requests are known."""
    lines = ((line.shown_name, line.runs) for line in compared.lines)
    groups = [(name, [run.run for run in runs if run.run is not None]) for name, runs in lines]
    groups = [(name, runs) for name, runs in groups if runs]
    return list(run_charts.distributions(groups[:MOST_CURVES])) if groups else []


def ladders(
    reported: Sequence[Reported], named: Callable[[Reported], str] = lambda run: run.name
) -> Iterator[Panel]:
    """Speed over input length, of each checkpoint whose speed is known at two lengths or more."""
    timed = [run for run in reported if run.figure(_SPEED) and run.load.input_len]
    curves = []
    for name, runs in grouped(timed, named).items():
        by_length = grouped(runs, lambda run: float(run.load.input_len or 0))
        if len(by_length) > 1:
            lengths = sorted(by_length)
            speeds = [np.mean([run.figure(_SPEED) or 0.0 for run in by_length[at]]) for at in lengths]
            curves.append(Curve(name, np.array(lengths), np.array(speeds), CurveStyle.JOINED))
    for start in range(0, len(curves), MOST_CURVES):
        drawn = tuple(curves[start : start + MOST_CURVES])
        points = ((curve.name, x, y) for curve in drawn for x, y in zip(curve.x, curve.y, strict=True))
        rows = tuple((name, f"{x:,.0f}", f"{y:,.2f}") for name, x, y in points)
        key, title = f"ladder-{start // MOST_CURVES + 1}", "Speed over input length"
        numbers, caption = FigureTable(("", "input", "tokens/s"), rows), "One request at a time."
        yield Panel(key, title, "input tokens", "tokens/s", drawn, caption=caption, numbers=numbers)
