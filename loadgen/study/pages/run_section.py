"""Run section: the account of one run as sections, from the facts and the report's lines of it."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from loadgen.base import rule
from loadgen.base.passages import Passage
from loadgen.base.secrecy import HIDDEN
from loadgen.base.tables import Number, Table, format_number, make_table
from loadgen.base.text import GIB
from loadgen.features.attribution import attribution_section
from loadgen.figures.distribution import Distribution
from loadgen.figures.figure_table import LATENCIES, Figure, percentile_name
from loadgen.figures.metrics import Metrics
from loadgen.figures.objectives import Objective
from loadgen.report import report, result_block, run_lines
from loadgen.report.run_directory import Result
from loadgen.server import engine_config
from loadgen.settings.data_settings import RANDOM
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
_PLACED = ("", "Notes", "Environment", attribution_section.TITLE)  # each has a place of its own, or none


CardFigure = tuple[str, Number, str]  # its rank, as P50 or what else tells it from the next, and its unit


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
        """The repeat, from 1, in a campaign, else the start time: it tells runs of one load apart; or ""."""
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
        cards, sections, not_checked = make_cards(reported), _describe_result(reported), ""
    else:
        # P90, P95 and P99 are always there, whether or not they were asked for.
        metrics = run.measure_ranks(dict.fromkeys((*run.ask.metric_percentiles, *_RANKS)))
        cards, sections = make_cards(reported, metrics), _describe_run(run, metrics, draw, divide)
        not_checked = ", ".join(run.verdict.not_checked) if run.verdict.level is Level.VALID else ""
    figures = ((key, format_number(key, value, 4)) for key, value in reported.figures.items()
               if value is not None)  # fmt: skip
    every = Passage(
        "All figures", "figures", folded=True, style="keys", table=make_table(("key", "value"), figures)
    )
    shown = tuple(section for section in (*sections, every) if section)
    return Account(anchor, reported, tuple(cards), shown, not_checked)


def _describe_result(reported: Reported) -> Iterator[Passage]:
    yield Passage("Doubts", "doubts", doubts=tuple({"name": name} for name in reported.doubts))
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
        passage = report.make_page_passage(attribution_section.TITLE, run)
        yield replace(passage, key="attribution", panels=waits)
    if draw:
        panels, rare = tuple(run_charts.plot_run(run)), tuple(run_charts.list_rarely_sampled(run))
        yield Passage("Distributions and time" if panels else "", "drawn", panels=panels, remarks=rare)
    else:
        why = "Not plotted on a page with this many runs: report this run alone."
        yield Passage("", remarks=(why,))
    for title in dict.fromkeys(section.page for section in report.SECTIONS if section.page not in _PLACED):
        yield report.make_page_passage(title, run)
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
    lines = (line.removeprefix("note: ") for line in report.make_page_passage("Notes", run).lines)
    yield Passage("Notes", folded=True, lines=tuple(lines))
    facts = tuple(_list_environment(run))
    yield Passage("Environment", "environment", folded=True, facts=facts)


def _make_latency_table(run: Result, metrics: Metrics) -> Table:
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


def _note_few_samples(rank: float, count: float) -> str:
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
    for line in report.make_page_passage("Environment", run).lines:
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


def make_cards(reported: Reported, metrics: Metrics | None = None) -> Iterator[Card]:
    """Yield a run's cards: rates, latencies and failures, then objectives and sensors of one of ours.

    `metrics` of a run of ours have P99. Of a saturated run all arrived tokens count as output. The mean of a
    latency is only shown if the median is not known.
    """
    figures, samples = dict(reported.figures), dict[str, float]()
    latencies = [figure for figure in LATENCIES if figure.about]
    if reported.saturated:
        figures |= {"total_token_throughput": None, "output_throughput": None, **reported.held}
    if metrics is not None:
        measured = list(_select_latencies(metrics))
        latencies = [figure for figure, _ in measured]
        samples = {figure.key: latency.n for figure, latency in measured}
        for figure, latency in measured:
            figures[figure.statistic("median")] = latency.median_ms
            figures[figure.statistic("p99")] = latency.p99_ms

    def make(key: str, unit: str, rank: str = "") -> CardFigure | None:
        at = key if reported.figures.get(key) == figures.get(key) else ""
        return _make_card_figure(at, figures.get(key), unit, rank)

    output = make("output_throughput", "tokens/s"), make("total_token_throughput", "with input")
    yield from _make_card("Output", _ARRIVED if reported.saturated else _OUTPUT, *output)
    yield from _make_card("Requests", "", make("request_throughput", "per s"))
    yield from _make_card("Speed", "", make("speed_tok_s", "tokens/s"))
    for figure in (figure for figure in latencies if figure.has_card):
        few = (_note_few_samples(rank, samples.get(figure.key, math.inf)) for rank in (50.0, 99.0))
        units = [", ".join(filter(None, ("ms", note))) for note in few]
        median = make(figure.statistic("median"), units[0], "P50")
        first = make(figure.statistic("mean"), "ms", "mean") if median is None else median
        p99 = make(figure.statistic("p99"), units[1], "P99")
        yield from _make_card(figure.label, figure.about, first, p99)
    yield from _make_failure_card(reported)
    if reported.run is not None:
        yield from _make_own_cards(reported.run)


def _make_card(label: str, about: str, *figures: CardFigure | None) -> Iterator[Card]:
    if known := tuple(each for each in figures if each is not None):
        yield Card(label, known, about)


def _make_card_figure(key: str, value: object, unit: str, rank: str = "") -> CardFigure | None:
    """Make a card's figure: two decimals below 100, one below 1000, else none; None if not a number."""
    digits = 0
    if isinstance(value, int | float) and math.isfinite(value):
        digits = 2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0
    number = format_number(key, value, digits)
    return (rank, number, unit) if isinstance(number, Number) else None


def _select_latencies(metrics: Metrics) -> Iterator[tuple[Figure, Distribution]]:
    """Yield latencies with a description and samples, and their distributions; not one equal to another."""
    for figure in (figure for figure in LATENCIES if figure.about):
        latency: Distribution = getattr(metrics, figure.field)
        if latency.n and not (figure.same_as and latency == getattr(metrics, figure.same_as)):
            yield figure, latency


def _make_failure_card(reported: Reported) -> Iterator[Card]:
    """Yield the card of failed requests and their share; none if they are not known."""
    failed, completed, run = reported.figure("failed"), reported.figure("completed"), reported.run
    if failed is None:
        return
    number = Number(f"{failed:,.0f}", int(failed), "failed")
    if completed is None:
        yield Card("Failed", (("", number, "requests"),))
        return
    requests = failed + completed if run is None else run.metrics.requests
    share = 100 * failed / max(requests, 1)
    figures = [("", Number(f"{share:.3g} %", share), ""), ("", number, f"of {requests:,.0f}")]
    if run is not None and (cut_off := run.metrics.cut_off):
        at = f"{_METRICS}cut_off"
        figures.append(("", Number(f"{cut_off:,}", cut_off, at), "cut off by the run's end"))
    yield Card("Failure rate", tuple(figures), _FAILURES)


def _make_own_cards(run: Result) -> Iterator[Card]:
    """Yield the cards of goodput, objectives, energy and memory that a run of ours has."""
    metrics, limits, sensed = run.metrics, run.facts.ask().goodput_limits, run.facts.sensed
    if (per_s := metrics.goodput_per_s) is not None:
        share = 100 * (metrics.slo_attainment or 0.0)
        rate = ("", Number(f"{per_s:,.2f}", per_s, f"{_METRICS}goodput_per_s"), "requests/s")
        asked = (Objective(name, 50.0, limit) for name, limit in limits.items())
        words = (
            f"{each.metric.upper()} {'≥' if each.is_floor else '≤'} {each.limit:g} {each.unit}"
            for each in asked
        )
        attained = ("", Number(f"{share:.3g} %", share), "of requests")
        yield Card("Goodput", (rate, attained), f"{_GOODPUT}{', '.join(words)}.")
    for evidence in run.objectives:
        objective, value = evidence.objective, evidence.value
        unit = f"{objective.unit}: {evidence.standing}"
        label = f"{objective.metric.upper()} P{objective.percentile:g}, objective"
        figure = _make_card_figure("", value, unit) if math.isfinite(value) else None
        shown = figure or ("", Number("–", value), unit)
        yield Card(label, (shown,), run_lines.describe_objective(evidence))
    if sensed is None:
        return
    if (joules := sensed.joules_per_token(run.whole.total_output_tokens)) is not None:
        label = "CPU energy" if sensed.energy is not None and sensed.energy.is_of_cpu else "Energy"
        yield Card(label, (("", Number(f"{joules:,.3f}", joules), "J/token"),), _ENERGY)
    for key, label, level in (("server", "GPU memory", sensed.server), ("rss", "Host memory", sensed.rss)):
        if level is not None:
            at = f"loadgen.sensed.{key}.peak_bytes"
            number = Number(f"{level.peak_bytes / GIB:,.2f}", level.peak_bytes, at)
            yield Card(label, (("", number, "GiB"),), _MEMORY)
