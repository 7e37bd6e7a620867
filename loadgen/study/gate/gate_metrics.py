"""Gate metrics: the figures that a gate judges, by the names people use, and the margin of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from loadgen.base.errors import UsageError
from loadgen.base.parsing import parse_share, suggest_name
from loadgen.base.text import quote_value
from loadgen.figures.figure_table import FIGURES, LATENCY, RESULT, SPEED, Figure
from loadgen.study.gate.gate_verdict import MARGIN

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
_LEAST_MARGIN, _MOST_MARGIN = 1e-4, 0.99


class GateMetric(msgspec.Struct, frozen=True):
    """One figure that a gate judges."""

    name: str  # as it was asked for
    key: str  # of the figure in a result
    higher_is_faster: bool
    margin: float = MARGIN  # how much slower is not worth a failed build; 0.03 is 3 %


def parse_gate_metrics(texts: Sequence[str]) -> list[GateMetric]:
    """Parse `--metric tok/s,ttft_p99`; [] if nothing is named.

    A latency without a statistic is its mean. Raises UsageError of an unknown one, with the nearest, and of
    one that is named twice.
    """
    metrics: dict[str, GateMetric] = {}
    for name in (part.strip() for text in texts for part in text.split(",")):
        metric = _find_metric(name)
        if metric.key in metrics:
            raise UsageError(f"--metric {name}: {metrics[metric.key].name} is the same figure: name it once")
        metrics[metric.key] = metric
    return list(metrics.values())


def lay_margins(metrics: Sequence[GateMetric], texts: Sequence[str]) -> list[GateMetric]:
    """Return the metrics with the margins of `--margin 3% --margin ttft_p99=10%`.

    Raises UsageError of a margin that is no share, or of a metric that is not judged.
    """
    usual, own = MARGIN, dict[str, float]()
    for text in (part.strip() for given in texts for part in given.split(",")):
        name, equals, share = text.rpartition("=")
        try:
            margin = parse_share(share, _LEAST_MARGIN, _MOST_MARGIN)
        except ValueError as error:
            raise UsageError(f"--margin {text}: {error}") from None
        if not equals:
            usual = margin
            continue
        key = _find_metric(name.strip(), "--margin").key
        if key not in {metric.key for metric in metrics}:
            judged = ", ".join(metric.name for metric in metrics)
            raise UsageError(f"--margin {text}: the gate judges {judged}: name it with --metric too")
        own[key] = margin
    return [msgspec.structs.replace(metric, margin=own.get(metric.key, usual)) for metric in metrics]


def _find_metric(name: str, flag: str = "--metric") -> GateMetric:
    """Find the figure that a name means; raises UsageError, with the nearest name."""
    plain = _normalize(name)
    figures = _list_figures()
    for pattern in (_STATISTIC, _LAST):
        match = pattern.fullmatch(plain)
        figure = figures.get(match["figure"]) if match else None
        if match is None or figure is None:
            continue
        word = match["word"] or ""
        if figure.kind not in (LATENCY, SPEED):
            if word:
                raise UsageError(f"{flag} {name}: {figure.label} is one number a run: leave {word} out")
            return GateMetric(name, figure.key, bool(figure.higher_is_better))
        key = figure.statistic(_SAME.get(word, word) or "mean")
        return GateMetric(name, key, bool(figure.higher_is_better))
    near = suggest_name(plain, _list_forms())
    raise UsageError(f"{flag} {quote_value(name)}: no such figure{near}; there are {_EXAMPLES}, …")


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
