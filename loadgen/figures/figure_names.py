"""Figure names: the words that people use for figures, and the key in a result that each means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from loadgen.base.parsing import suggest_name
from loadgen.base.text import quote_value
from loadgen.figures.figure_table import FIGURES, LATENCY, RESULT, SPEED, Figure

_STATISTIC = re.compile(r"(?:(?P<word>mean|avg|average|median|max|p\d+(?:\.\d+)?)_)?(?P<figure>.+)")
_LAST = re.compile(r"(?P<figure>.+)_(?P<word>mean|avg|average|median|max|p\d+(?:\.\d+)?)")
_SAME = {"avg": "mean", "average": "mean", "p50": "median"}
# What people write for a rate; every other name is made of the table's rows.
_WORDS = {
    "tok/s": "output_throughput",
    "tokens/s": "output_throughput",
    "throughput": "output_throughput",
    "req/s": "request_throughput",
    "requests/s": "request_throughput",
    "rps": "request_throughput",
}
_EXAMPLES = "tok/s, req/s, ttft, ttft_p99, tpot, itl_p99, e2el, goodput"


def find_named_figure(name: str) -> tuple[Figure, str]:
    """Find the figure that a name means, as tok/s or ttft_p99, and its key; a latency's is that of the mean.

    Raises ValueError, with the nearest name, where it means none, or a statistic of what is one number.
    """
    plain = _normalize(name)
    figures = _list_figures()
    for pattern in (_STATISTIC, _LAST):
        match = pattern.fullmatch(plain)
        figure = figures.get(match["figure"]) if match else None
        if match is None or figure is None:
            continue
        word = match["word"] or ""
        if figure.kind in (LATENCY, SPEED):
            return figure, figure.statistic(_SAME.get(word, word) or "mean")
        if word:
            raise ValueError(f"{name}: {figure.label} is one number a run: leave {word} out")
        return figure, figure.key
    near = suggest_name(plain, _list_forms())
    raise ValueError(f"{quote_value(name)}: no such figure{near}; there are {_EXAMPLES}, …")


def _normalize(name: str) -> str:
    """Write a name as keys have it: lower case, words joined by _, without a unit of time at the end."""
    return re.sub(r"[\s_-]+", "_", name.strip().lower()).removesuffix("_ms")


@cache
def _list_figures() -> dict[str, Figure]:
    """List the figures that rank speed by each name that people use for them, the first of a name."""
    figures: dict[str, Figure] = {}
    for figure in FIGURES:
        if figure.kind == RESULT or figure.higher_is_better is None:
            continue
        for name in (figure.key, figure.label, figure.suffix, *figure.titles):
            figures.setdefault(_normalize(name), figure)
    keys = {figure.key: figure for figure in figures.values()}
    return {**figures, **{word: keys[key] for word, key in _WORDS.items()}}


def _list_forms() -> list[str]:
    """List the names, those of latencies and speeds with usual statistics too, for a suggestion."""

    def list_own() -> Iterator[str]:
        for name, figure in _list_figures().items():
            yield name
            if figure.kind in (LATENCY, SPEED):
                yield from (f"{name}_{word}" for word in ("p50", "p90", "p95", "p99", "mean", "median"))

    return list(list_own())
