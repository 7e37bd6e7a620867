"""Run section: the account of one run as sections, from the facts and the report's lines of it."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base import rule
from loadgen.base.passages import Passage, find_passage
from loadgen.base.secrecy import HIDDEN
from loadgen.base.tables import Number, Table, format_number, make_table
from loadgen.base.text import GIB
from loadgen.features.attribution import attribution_section
from loadgen.figures.distribution import Distribution
from loadgen.figures.figure_table import LATENCIES, Figure, percentile_name
from loadgen.figures.metrics import Metrics, list_known_throughputs, measure_latencies
from loadgen.figures.objectives import Objective, ObjectiveEvidence
from loadgen.figures.per_request import PerRequest
from loadgen.report import figure_lines, report, result_block, run_lines
from loadgen.report.run_directory import Result
from loadgen.server import engine_config
from loadgen.settings.data_settings import RANDOM
from loadgen.study import load_table
from loadgen.study.compare.comparison_report import describe_load
from loadgen.study.pages import run_charts
from loadgen.study.run_summary import Reported, shorten_name
from loadgen.verdict.evidence import has_tail, least_samples
from loadgen.verdict.verdict import Level

_RANKS = (90.0, 95.0, 99.0)  # percentiles that every table of latencies has
_METRICS = "loadgen.metrics."  # in a result's JSON
_PLAIN = ("n", "mean_ms", "std_ms", "min_ms")
_IN_ITS_COLUMN = "thin-percentiles"  # a doubt that stands where the percentile does
_OUTPUT = "Output tokens of successful requests per second, from the first request's start to the last's end."
_ARRIVED = "Every output token that arrived per second, until the run was ended early as saturated."
_FAILURES = "Requests that failed, of all; no latency includes them."
_GOODPUT = "Successful requests per second that met every objective: "
_ENERGY = "Energy that the server's machine used during the run, per output token."
_MEMORY = "The most memory that the server held during the run."
# Cards of one number a run: label, what it means, and the figures with their units.
_RateCard = tuple[str, str, dict[str, str]]
_RATE_CARDS: tuple[_RateCard, ...] = (
    ("Output", _OUTPUT, {"output_throughput": "tokens/s", "total_token_throughput": "with input"}),
    ("Requests", "", {"request_throughput": "per s"}),
)
_STATISTICS = {"mean": "mean", "P50": "median", "P99": "p99"}  # of another client's latencies
_PLACED = ("", "Notes", "Environment", attribution_section.TITLE)  # each has a place of its own, or none


class CardFigure(msgspec.Struct, frozen=True):
    """One figure on a card; `rank` is P50 or what else distinguishes it from the next, "" alone."""

    number: Number
    unit: str
    rank: str = ""


class Card(msgspec.Struct, frozen=True):
    """The figures of one quantity that are seen first, and what it means ("": it says so itself)."""

    label: str
    figures: tuple[CardFigure, ...]
    about: str = ""


class Account(msgspec.Struct, frozen=True):
    """Everything shown of one run: its cards, then its sections, of which none is empty."""

    anchor: str
    reported: Reported
    cards: tuple[Card, ...]
    sections: tuple[Passage, ...]
    not_checked: str = ""  # what a VALID rests on no check of

    def section(self, key: str) -> Passage:
        """Return the section with a key; an empty one if the run has none."""
        return find_passage(self.sections, key)

    @property
    def load(self) -> str:
        """The run's load in a line."""
        return describe_load(self.reported.load)

    @property
    def where(self) -> str:
        """The engine, the machine and its power mode, those that are known, joined by commas."""
        run = self.reported
        return ", ".join(filter(None, (run.engine, run.machine, run.power_mode)))

    @property
    def turn(self) -> str:
        """The run's repeat in its campaign, else its start time, which distinguishes runs of one load.

        "" if unknown.
        """
        if self.reported.cell is not None:
            return f"repeat {self.reported.cell.repeat + 1}"
        return f"{self.reported.started:%H:%M:%S}" if self.reported.started is not None else ""

    @property
    def headline(self) -> str:
        """The served model, else the run's name, with its data, concurrency and rate, in a line."""
        run, load = self.reported.run, self.reported.load
        served = shorten_name(run.facts.label or run.facts.server.model) if run is not None else ""
        parts = [run_lines.name_data(run.facts)] if run is not None else []
        if load.max_concurrency is not None:
            parts.append(f"concurrency {load.max_concurrency}")
        if load.request_rate_per_s is not None:
            rate = load.request_rate_per_s
            if math.isfinite(rate):
                parts.append(f"{rate:.4g} requests/s")
            elif load.max_concurrency is None:
                parts.append("all at once")
        return ", ".join([served or self.reported.name, *filter(None, parts)])


def make_account(reported: Reported, anchor: str, draw: bool, divide: bool = True) -> Account:
    """Make the account of a run: its cards, and its sections that are not empty.

    `draw` adds its charts, `divide` where the time goes.
    """
    run = reported.run
    if run is None:
        cards, sections, not_checked = make_result_cards(reported.figures), _describe_result(reported), ""
    else:
        metrics, verdict = _add_percentiles(run), run.verdict
        cards, sections = make_run_cards(run, metrics), _describe_run(run, metrics, draw, divide)
        not_checked = ", ".join(verdict.not_checked) if verdict.level is Level.VALID else ""
    figures = ((key, format_number(key, value, 4)) for key, value in reported.figures.items()
               if value is not None)  # fmt: skip
    every = Passage(
        "All figures", "figures", folded=True, style="keys", table=make_table(("key", "value"), figures)
    )
    shown = tuple(section for section in (*sections, every) if section)
    return Account(anchor, reported, tuple(cards), shown, not_checked)


def _describe_result(reported: Reported) -> Iterator[Passage]:
    nothing = dict.fromkeys(("severity", "evidence", "condition", "remedy"), "")
    doubts = tuple({**nothing, "name": name} for name in reported.doubts)
    yield Passage("Doubts", "doubts", doubts=doubts)
    yield Passage("", remarks=("The source has no request times: nothing can be plotted over time.",))
    text = result_block.render_block(reported.figures) if "completed" in reported.figures else ""
    yield Passage("The report as text", "text", menu="As text", folded=True, text=text)
    yield Passage("Notes", folded=True, lines=reported.remarks)
    facts = (("source", reported.source), ("reported by", reported.told_by))
    yield Passage("Environment", "environment", folded=True, facts=facts)


def _describe_run(run: Result, metrics: Metrics, draw: bool, divide: bool) -> Iterator[Passage]:
    parts = [line.partition(": ") for line in run_lines.describe_data(run)]
    sent = [(name, words) for name, _, words in parts]
    if parts or run.facts.data.kind != RANDOM:  # nothing for random prompts of one length
        sent.insert(0, ("prompts", run_lines.describe_prompts(run.facts)))
    yield Passage("What was sent", "data", facts=tuple(sent))
    doubts = tuple(
        rule.encode_finding(each) for each in run.verdict.findings if each.rule.code != _IN_ITS_COLUMN
    )
    yield Passage("Doubts", "doubts", doubts=doubts)
    latencies, few = _make_latency_table(run, metrics), tuple[str, ...]()
    if any(isinstance(cell, Number) and cell.aside for row in latencies.body for cell in row):
        least = ", ".join(f"P{rank:g} {least_samples(rank)[1]}" for rank in _RANKS)
        few = (f"from N: fewer samples than an upper bound at 99 % needs ({least}); raise --num-prompts",)
    yield Passage("Latencies", "latencies", table=latencies, remarks=few)
    if divide:
        waits = tuple(run_charts.plot_waits(run)) if has_tail(run.facts) else ()
        yield replace(_make_section(attribution_section.TITLE, run), key="attribution", panels=waits)
    yield _make_charts(run, draw)
    for title in dict.fromkeys(section.page for section in report.SECTIONS if section.page not in _PLACED):
        yield _make_section(title, run)
    again, notes = shlex.join(["loadgen", *run.facts.command[1:]]), []
    if not run.facts.seed_chosen:
        notes.append(
            f"The seed was random: --seed {run.facts.seed} repeats the same prompts, "
            "and a prefix cache that still holds them shortens TTFT."
        )
    if HIDDEN in " ".join(run.facts.command):
        notes.append(f"{HIDDEN} replaces a secret, which is stored nowhere.")
    yield Passage("Run it again", "again", text=again, remarks=tuple(notes))
    yield Passage("The report as text", "text", menu="As text", folded=True, text=report.render_report(run))
    lines = (line.removeprefix("note: ") for line in report.list_page_lines("Notes", run))
    yield Passage("Notes", folded=True, lines=tuple(lines))
    facts = tuple(_list_environment(run))
    yield Passage("Environment", "environment", folded=True, facts=facts)


def _make_section(title: str, run: Result) -> Passage:
    """Make the passage of the report's sections that stand under a title of the page."""
    lines = (line.removeprefix(f"{title.lower()}: ") for line in report.list_page_lines(title, run))
    return Passage(title, lines=tuple(lines), table=report.find_page_table(title, run))


def _make_charts(run: Result, draw: bool) -> Passage:
    """Make the section of charts, with remarks on what was sampled too rarely; untitled without charts.

    Without `draw` it only has the remark that the run is not plotted.
    """
    if not draw:
        why = "Not plotted on a page with this many runs: report this run alone."
        return Passage("", remarks=(why,))
    panels, rare = tuple(run_charts.plot_run(run)), tuple(run_charts.list_rarely_sampled(run))
    title = "Distributions and time" if panels else ""
    return Passage(title, "drawn", panels=panels, remarks=rare)


def _add_percentiles(run: Result) -> Metrics:
    """Return the run's metrics with P90, P95 and P99 of latencies added to the requested percentiles."""
    ask = run.ask
    missing = [rank for rank in _RANKS if rank not in ask.metric_percentiles]
    if not missing:
        return run.metrics
    ask = replace(ask, metric_percentiles=(*ask.metric_percentiles, *missing))
    each = PerRequest.from_records(run.counted, ask)
    return replace(run.metrics, **measure_latencies(run.counted, each, ask))


def _make_latency_table(run: Result, metrics: Metrics) -> Table:
    """Make the table of latencies in ms: n, mean, std, min, percentiles and max; few samples are noted."""
    requested = run.facts.ask().metric_percentiles
    ranks = sorted({*_RANKS, *requested} - {50.0})
    rows: list[tuple[str, ...]] = []
    for figure, latency in _select_latencies(metrics):
        at = _METRICS + figure.field
        row = [format_number(f"{at}.{name}", getattr(latency, name)) for name in _PLAIN]
        values = [(f"{at}.median_ms", latency.median_ms, 50.0)]
        for rank in ranks:
            place = f"{at}.percentiles_ms.{percentile_name(rank)}" if rank in requested else ""
            values.append((place, latency.percentiles_ms[rank], rank))
        for place, value_ms, rank in values:
            row.append(format_number(place, value_ms, aside=_note_few_samples(rank, latency.n)))
        rows.append((figure.label, *row, format_number(f"{at}.max_ms", latency.max_ms)))
    names = (f"P{percentile_name(rank)}" for rank in (50.0, *ranks))
    return make_table(("ms", "n", "mean", "std", "min", *names, "max"), rows)


def _note_few_samples(rank: float, count: int) -> str:
    """Return `from N` if a percentile's samples are too few for an upper bound at 99 %, else ""."""
    return f"from {count:,}" if count < least_samples(rank)[1] else ""


def _list_environment(run: Result) -> Iterator[tuple[str, str]]:
    facts = run.facts
    server = facts.server
    yield "server", f"{server.engine} {server.version}".strip()
    yield "model", f"{server.model} ({server.model_root})" if server.model_root else server.model
    yield "address", ", ".join((server.url, *facts.targets[1:]))
    if facts.launched is not None:
        yield "started by", f"{facts.launched.how}: {shlex.join(facts.launched.command)}"
    if facts.as_run is not None:
        yield from (("as run", line) for line in engine_config.render_config(facts.as_run, facts.checkpoint))
    for line in report.list_page_lines("Environment", run):
        name, _, value = line.partition(": ")
        yield name, value
    given = facts.profile.model_dump(mode="json", exclude_defaults=True)
    given.pop("description", None)
    words = (value if isinstance(value, str) else json.dumps(value) for value in given.values())
    yield "profile", ", ".join(f"{key} {word}" for key, word in zip(given, words, strict=True))
    yield "prompts", f"{run_lines.describe_prompts(facts)}; seed {facts.seed}, plan {facts.plan_digest[:12]}"
    yield "when", f"{facts.started:%Y-%m-%d %H:%M:%S} to {facts.finished:%H:%M:%S} UTC"
    yield "client", f"{facts.client.transport}, {facts.client.cpu_s:.2f} s of CPU"
    yield from facts.environment.items()


def make_run_cards(run: Result, metrics: Metrics) -> Iterator[Card]:
    """Yield the cards of a run of loadgen, whose `metrics` have P99: rates, latencies, failures, objectives.

    Those of goodput, energy and memory follow if known. Of a saturated run all arrived tokens count as
    output.
    """
    rates: Sequence[_RateCard] = _RATE_CARDS
    if run.facts.saturated:
        arrived = load_table.saturated_figures(run).get("output_throughput")
        yield from _make_card("Output", _ARRIVED, _make_card_figure("", arrived, "tokens/s"))
        rates = rates[1:]
    yield from _make_rate_cards(list_known_throughputs(metrics), rates)
    for figure, latency in _select_latencies(metrics):
        if figure.has_card:
            yield from _make_latency_card(figure, latency, run.facts.ask().metric_percentiles)
    yield _make_failure_card(run.metrics)
    if metrics.goodput_per_s is not None:
        yield _make_goodput_card(metrics, run.facts.ask().goodput_limits)
    yield from map(_make_objective_card, run.objectives)
    yield from _make_sensor_cards(run)


def make_result_cards(figures: Mapping[str, Any]) -> Iterator[Card]:
    """Yield the cards of another client's run from its figures under vLLM's keys, those that are known.

    The mean of a latency is only shown if the median is not known.
    """

    def make(key: str, unit: str, rank: str = "") -> CardFigure | None:
        return _make_card_figure(key, figures.get(key), unit, rank)

    yield from _make_rate_cards(figures, (*_RATE_CARDS, ("Speed", "", {"speed_tok_s": "tokens/s"})))
    for figure in (figure for figure in LATENCIES if figure.about):
        shown = [make(figure.statistic(word), "ms", rank) for rank, word in _STATISTICS.items()]
        if shown[1] is not None:  # the mean only in place of the median
            del shown[0]
        yield from _make_card(figure.label, figure.about, *shown)
    yield from _make_card("Failed", "", make("failed", "requests"))


def _make_rate_cards(figures: Mapping[str, Any], rates: Sequence[_RateCard]) -> Iterator[Card]:
    for label, about, units in rates:
        shown = (_make_card_figure(key, figures.get(key), unit) for key, unit in units.items())
        yield from _make_card(label, about, *shown)


def _make_card(label: str, about: str, *figures: CardFigure | None) -> Iterator[Card]:
    if known := tuple(each for each in figures if each is not None):
        yield Card(label, known, about)


def _make_card_figure(key: str, value: object, unit: str, rank: str = "") -> CardFigure | None:
    """Make a card's figure: two decimals below 100, one below 1000, else none; None if not a number."""
    digits = 0
    if isinstance(value, int | float) and math.isfinite(value):
        digits = 2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0
    number = format_number(key, value, digits)
    return CardFigure(number, unit, rank) if isinstance(number, Number) else None


def _select_latencies(metrics: Metrics) -> Iterator[tuple[Figure, Distribution]]:
    """Yield latencies with a description and samples, and their distributions; not one equal to another."""
    for figure in (figure for figure in LATENCIES if figure.about):
        latency: Distribution = getattr(metrics, figure.field)
        if latency.n and not (figure.same_as and latency == getattr(metrics, figure.same_as)):
            yield figure, latency


def _make_latency_card(figure: Figure, latency: Distribution, requested: Collection[float]) -> Iterator[Card]:
    key = _METRICS + figure.field
    at = f"{key}.percentiles_ms.{percentile_name(99.0)}" if 99.0 in requested else ""
    values = ((f"{key}.median_ms", latency.median_ms, 50.0), (at, latency.p99_ms, 99.0))
    units = (", ".join(filter(None, ("ms", _note_few_samples(rank, latency.n)))) for *_, rank in values)
    shown = (
        _make_card_figure(place, value, unit, f"P{rank:g}")
        for (place, value, rank), unit in zip(values, units, strict=True)
    )
    yield from _make_card(figure.label, figure.about, *shown)


def _make_failure_card(metrics: Metrics) -> Card:
    requests, failed, cut_off = metrics.requests, metrics.failed, metrics.cut_off
    share = 100 * failed / max(requests, 1)
    figures = [CardFigure(Number(f"{share:.3g} %", share), "")]
    figures.append(CardFigure(Number(f"{failed:,}", failed, f"{_METRICS}failed"), f"of {requests:,}"))
    if cut_off:
        number = Number(f"{cut_off:,}", cut_off, f"{_METRICS}cut_off")
        figures.append(CardFigure(number, "cut off by the run's end"))
    return Card("Failure rate", tuple(figures), _FAILURES)


def _make_goodput_card(metrics: Metrics, limits: Mapping[str, float]) -> Card:
    per_s, share = metrics.goodput_per_s or 0.0, 100 * (metrics.slo_attainment or 0.0)
    rate = CardFigure(Number(f"{per_s:,.2f}", per_s, f"{_METRICS}goodput_per_s"), "requests/s")
    attained = CardFigure(Number(f"{share:.3g} %", share), "of requests")
    asked = (Objective(name, 50.0, limit) for name, limit in limits.items())
    words = (
        f"{each.metric.upper()} {'≥' if each.is_floor else '≤'} {each.limit:g} {each.unit}" for each in asked
    )
    return Card("Goodput", (rate, attained), f"{_GOODPUT}{', '.join(words)}.")


def _make_objective_card(evidence: ObjectiveEvidence) -> Card:
    objective, value = evidence.objective, evidence.value
    unit = f"{objective.unit}: {evidence.standing}"
    label = f"{objective.metric.upper()} P{objective.percentile:g}, objective"
    figure = _make_card_figure("", value, unit) if math.isfinite(value) else None
    shown = figure or CardFigure(Number("–", value), unit)
    return Card(label, (shown,), figure_lines.describe_objective(evidence))


def _make_sensor_cards(run: Result) -> Iterator[Card]:
    sensed = run.facts.sensed
    if sensed is None:
        return
    if (joules := sensed.joules_per_token(run.whole.total_output_tokens)) is not None:
        label = "CPU energy" if sensed.energy is not None and sensed.energy.is_of_cpu else "Energy"
        yield Card(label, (CardFigure(Number(f"{joules:,.3f}", joules), "J/token"),), _ENERGY)
    for key, label, level in (("server", "GPU memory", sensed.server), ("rss", "Host memory", sensed.rss)):
        if level is not None:
            shown, at = f"{level.peak_bytes / GIB:,.2f}", f"loadgen.sensed.{key}.peak_bytes"
            yield Card(label, (CardFigure(Number(shown, level.peak_bytes, at), "GiB"),), _MEMORY)
