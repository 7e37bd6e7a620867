"""Cards: the few figures of a run that are seen first, each with what it means."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from loadgen.figures.distribution import Distribution
from loadgen.figures.figure_table import LATENCIES, Figure, percentile_name
from loadgen.figures.metrics import Metrics
from loadgen.figures.objectives import ObjectiveEvidence
from loadgen.report import saturated_run
from loadgen.report.run_directory import Result
from loadgen.study.pages.formatting import Number, number
from loadgen.verdict.evidence import least_samples

_OUTPUT = "Output tokens of successful requests per second, from the first request's start to the last's end."
_ARRIVED = "Every output token that arrived per second, until the run was ended early as saturated."
_FAILURES = "Requests that failed, of all; no latency includes them."
_GOODPUT = "Successful requests per second that met every objective: "
_OBJECTIVE = (
    "At most {} were asked of it; {} were above. It meets that where its upper bound at 99 % confidence "
    "does, fails where the lower bound is above it, and else that is not shown."
)
_ENERGY = "Energy that this machine used during the run, per output token."
_MEMORY = "The most memory that the server held during the run."


class CardFigure(msgspec.Struct, frozen=True):
    """One figure on a card; `rank` is P50 or what else distinguishes it from the next, "" alone."""

    number: Number
    unit: str
    rank: str = ""


class Card(msgspec.Struct, frozen=True):
    """What is seen first of one quantity, and what it means ("": it says so itself)."""

    label: str
    figures: tuple[CardFigure, ...]
    about: str = ""


def of_run(run: Result, metrics: Metrics) -> Iterator[Card]:
    """The cards of a run of ours; `metrics` have the percentile 99, whichever were requested."""
    ours = "loadgen.metrics."
    output, total, requests = (f"{name}_throughput_per_s" for name in ("output", "total", "request"))
    if run.facts.saturated:
        arrived = saturated_run.figures(run).get("output_throughput")
        yield from _card("Output", _ARRIVED, ("", arrived, "tokens/s", ""))
    else:
        yield from _card("Output", _OUTPUT, (f"{ours}{output}", getattr(metrics, output), "tokens/s", ""),
                         (f"{ours}{total}", getattr(metrics, total), "with input", ""))  # fmt: skip
    yield from _card("Requests", "", (f"{ours}{requests}", getattr(metrics, requests), "per s", ""))
    for figure, latency in shown_latencies(metrics):
        if figure.has_card:
            yield _latency(figure, f"{ours}{figure.field_name}", latency, run)
    yield _failures(run)
    objectives = run.facts.ask().goodput_slo_ms
    if metrics.goodput_per_s is not None:
        yield _goodput(metrics, objectives)
    yield from map(_objective, run.objectives)
    yield from _measured(run)


def of_figures(figures: Mapping[str, Any]) -> Iterator[Card]:
    """The cards of another client's run, by vLLM's keys."""
    output, total, requests = "output_throughput", "total_token_throughput", "request_throughput"
    yield from _card("Output", _OUTPUT, (output, figures.get(output), "tokens/s", ""),
                     (total, figures.get(total), "with input", ""))  # fmt: skip
    yield from _card("Requests", "", (requests, figures.get(requests), "per s", ""))
    yield from _card("Speed", "", ("speed_tok_s", figures.get("speed_tok_s"), "tokens/s", ""))
    for figure in (figure for figure in LATENCIES if figure.about):
        ranks = {"mean": "mean", "P50": "median", "P99": "p99"}
        keys = {rank: figure.statistic(word) for rank, word in ranks.items()}
        known = {rank: at for rank, at in keys.items() if isinstance(number("", figures.get(at)), Number)}
        if "P50" in known:
            known.pop("mean", None)
        shown = ((at, figures[at], "ms", rank) for rank, at in known.items())
        yield from _card(figure.label, figure.about, *shown)
    yield from _card("Failed", "", ("failed", figures.get("failed"), "requests", ""))


def thin(rank: float, count: int) -> str:
    """How many samples a percentile has where those are too few for an upper bound, else ""."""
    return f"from {count:,}" if count < least_samples(rank)[1] else ""


def _card(label: str, about: str, *figures: tuple[str, object, str, str]) -> Iterator[Card]:
    """A card of those figures that there are."""
    shown = [(number(key, value, _digits(value)), unit, rank) for key, value, unit, rank in figures]
    known = tuple(CardFigure(value, unit, rank) for value, unit, rank in shown if isinstance(value, Number))
    if known:
        yield Card(label, known, about)


def _digits(value: object) -> int:
    """As many decimals as make four digits, two at most."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return 2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0


def shown_latencies(metrics: Metrics) -> Iterator[tuple[Figure, Distribution]]:
    """The latencies that a page has, without those that repeat another's values."""
    for figure in (figure for figure in LATENCIES if figure.about):
        latency: Distribution = getattr(metrics, figure.field_name)
        if latency.n and not (figure.same_as and latency == getattr(metrics, figure.same_as)):
            yield figure, latency


def _latency(figure: Figure, key: str, latency: Distribution, run: Result) -> Card:
    ranks = run.facts.ask().metric_percentiles
    at = f"{key}.percentiles_ms.{percentile_name(99.0)}" if 99.0 in ranks else ""
    p50 = number(f"{key}.median_ms", latency.median_ms, _digits(latency.median_ms))
    p99 = number(at, latency.p99_ms, _digits(latency.p99_ms))
    shown = [
        CardFigure(value, ", ".join(filter(None, ("ms", thin(rank, latency.n)))), name)
        for value, name, rank in ((p50, "P50", 50.0), (p99, "P99", 99.0))
        if isinstance(value, Number)
    ]
    return Card(figure.label, tuple(shown), figure.about)


def _failures(run: Result) -> Card:
    """Failures, none included: that no request failed is worth knowing; one that was cut off did not."""
    requests, failed, cut_off = run.metrics.requests, run.metrics.failed, run.metrics.cut_off
    share = 100 * failed / max(requests, 1)
    count = Number("loadgen.metrics.failed", failed, f"{failed:,}")
    figures = [CardFigure(Number("", share, f"{share:.3g} %"), ""), CardFigure(count, f"of {requests:,}")]
    figures += [
        CardFigure(Number("loadgen.metrics.cut_off", cut_off, f"{cut_off:,}"), "cut off by the run's end")
    ] * bool(cut_off)
    return Card("Failure rate", tuple(figures), _FAILURES)


def _goodput(metrics: Metrics, objectives_ms: Mapping[str, float]) -> Card:
    """Requests that met every objective, a second and of all."""
    per_s, share = metrics.goodput_per_s or 0.0, 100 * (metrics.slo_attainment or 0.0)
    rate = Number("loadgen.metrics.goodput_per_s", per_s, f"{per_s:,.2f}")
    of_all = CardFigure(Number("", share, f"{share:.3g} %"), "of requests")
    limits = ", ".join(f"{name.upper()} ≤ {limit_ms:g} ms" for name, limit_ms in objectives_ms.items())
    return Card("Goodput", (CardFigure(rate, "requests/s"), of_all), f"{_GOODPUT}{limits}.")


def _objective(evidence: ObjectiveEvidence) -> Card:
    """What the run shows of one objective, and the percentile that it is of."""
    objective, value_ms = evidence.objective, evidence.value_ms
    about = _OBJECTIVE.format(f"{objective.limit_ms:g} ms", f"{evidence.over} of {evidence.samples}")
    shown = f"{value_ms:,.{_digits(value_ms)}f}" if math.isfinite(value_ms) else "–"
    figure = CardFigure(Number("", value_ms, shown), f"ms: {evidence.standing}")
    return Card(f"{objective.metric.upper()} P{objective.percentile:g}, objective", (figure,), about)


def _measured(run: Result) -> Iterator[Card]:
    sensed = run.facts.sensed
    if sensed is None:
        return
    if (joules := sensed.joules_per_token(run.whole.total_output_tokens)) is not None:
        yield Card("Energy", (CardFigure(Number("", joules, f"{joules:,.3f}"), "J/token"),), _ENERGY)
    for key, label, level in (("server", "GPU memory", sensed.server), ("rss", "Host memory", sensed.rss)):
        if level is not None:
            shown = f"{level.peak_bytes / 2**30:,.2f}"
            peak = Number(f"loadgen.sensed.{key}.peak_bytes", level.peak_bytes, shown)
            yield Card(label, (CardFigure(peak, "GiB"),), _MEMORY)
