"""Run section: what the page has of one run: figures, verdict, machine, and how to run it again."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.base import rule
from loadgen.base.secrecy import HIDDEN
from loadgen.features.data import data_lines
from loadgen.features.sessions import session_lines
from loadgen.figures import steady_state
from loadgen.figures.distribution import Distribution
from loadgen.figures.figure_table import LATENCIES, Figure, percentile_name
from loadgen.figures.metrics import Metrics, compute
from loadgen.figures.objectives import ObjectiveEvidence
from loadgen.host import cpu_use, sensor_summary
from loadgen.plan.sources import RANDOM
from loadgen.report import report, report_parts, result_block, saturated_run
from loadgen.report.run_directory import Result
from loadgen.server import answer_check, engine_config
from loadgen.study.compare.comparison_report import describe_load
from loadgen.study.pages import comparison_section, run_charts
from loadgen.study.pages.page_parts import Entry, FigureTable, Number, Panel, format_number
from loadgen.study.run_summary import Reported, short_name
from loadgen.transport.failure import describe_outcome
from loadgen.verdict import run_roofline
from loadgen.verdict.evidence import least_samples
from loadgen.verdict.run_facts import Facts
from loadgen.verdict.verdict import Level

_DECIMALS = {"": 0, "ms": 2, "%": 1}
_COLUMNS = (90.0, 95.0, 99.0)  # percentiles that every table of latencies has
_PLAIN = ("n", "mean_ms", "std_ms", "min_ms")
_IN_ITS_COLUMN = "thin-percentiles"  # a doubt that stands where the percentile does


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


class Account(msgspec.Struct, frozen=True):
    """Everything shown of one run; `drawn` are its plots."""

    anchor: str
    reported: Reported
    load: str
    where: str
    cards: tuple[Card, ...]
    figures: FigureTable  # all of them
    doubts: tuple[dict[str, str], ...]  # as a result's JSON has them; of others' results the names alone
    notes: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    text: str  # the report as text; of others' results the block
    data: tuple[tuple[str, str], ...] = ()  # what the requests were made of, where that is more than a length
    latencies: FigureTable | None = None
    not_checked: str = ""  # what a VALID rests on no check of
    thin: str = ""  # what to know of percentiles from few samples
    by_target: FigureTable | None = None  # of several servers
    by_turn: FigureTable | None = None  # of sessions
    sessions: tuple[str, ...] = ()  # what became of them
    reconciled: FigureTable | None = None  # our figures and the server's
    best: tuple[str, ...] = ()  # what the machine could have done
    command: str = ""
    command_note: str = ""
    drawn: tuple[Panel, ...] = ()
    not_drawn: str = ""  # why there is nothing drawn
    hardly_sampled: tuple[str, ...] = ()  # what was sampled, but not often enough for a chart

    @property
    def turn(self) -> str:
        """What distinguishes it from the other runs of its load."""
        if self.reported.cell is not None:
            return f"repeat {self.reported.cell.repeat + 1}"
        return f"{self.reported.started:%H:%M:%S}" if self.reported.started is not None else ""

    @property
    def headline(self) -> str:
        """The served model and its load in a line."""
        run, load = self.reported.run, self.reported.load
        served = short_name(run.facts.label or run.facts.server.model) if run is not None else ""
        parts = [data_lines.title(run.facts)] if run is not None else []
        if load.max_concurrency is not None:
            parts.append(f"concurrency {load.max_concurrency}")
        if load.request_rate_per_s is not None:
            rate = load.request_rate_per_s
            held = load.max_concurrency is not None
            parts += [f"{rate:.4g} requests/s"] if math.isfinite(rate) else ["all at once"] * (not held)
        return ", ".join([served or self.reported.name, *filter(None, parts)])

    @property
    def simulated(self) -> str:
        """The embedded engine's preset, where no model ran."""
        return self.reported.simulated


def make_account(reported: Reported, anchor: str, draw: bool) -> Account:
    """All that is shown of a run; without `draw` its pictures are left out."""
    parts = _describe_run(reported.run, draw) if reported.run is not None else _describe_result(reported)
    return Account(
        anchor=anchor,
        reported=reported,
        load=describe_load(reported.load),
        where=comparison_section.describe_machine(reported),
        figures=_make_figure_table(reported.figures),
        **parts,
    )


def _describe_result(reported: Reported) -> dict[str, Any]:
    nothing = dict.fromkeys(("severity", "evidence", "condition", "remedy"), "")
    return {
        "cards": tuple(make_result_cards(reported.figures)),
        "doubts": tuple({**nothing, "name": name} for name in reported.doubts),
        "notes": reported.remarks,
        "environment": (("source", reported.source), ("reported by", reported.told_by)),
        "text": result_block.render(reported.figures) if "completed" in reported.figures else "",
        "not_drawn": "The source has no request times: nothing can be plotted over time.",
    }


def _describe_run(run: Result, draw: bool) -> dict[str, Any]:
    metrics, findings = _add_percentiles(run), run.verdict.findings
    notes = [*run.facts.notes, *steady_state.lines(run.steady)]
    failures = run.whole.failures.items()
    notes += [f"{describe_outcome(kind)}: {tally.count} × {kind}: {tally.detail}" for kind, tally in failures]
    if run.facts.fingerprint is not None:
        notes += answer_check.render_lines(run.facts.fingerprint)
    return {
        "cards": tuple(make_run_cards(run, metrics)),
        "data": tuple(_list_data(run)),
        "latencies": (latencies := _make_latency_table(run, metrics)),
        "thin": _explain_few_samples(latencies),
        "not_checked": ", ".join(run.verdict.not_checked) if run.verdict.level is Level.VALID else "",
        "by_target": _make_target_table(run),
        "by_turn": _make_turn_table(run),
        "sessions": tuple(
            session_lines.lines(run, report_parts.ReportOptions(False, result_block.layout(None)))
        ),
        "reconciled": _make_reconciled_table(run),
        "doubts": tuple(rule.as_json(each) for each in findings if each.rule.code != _IN_ITS_COLUMN),
        "best": tuple(run_roofline.lines(run.facts, run.metrics)),
        "notes": tuple(" ".join(note.split()) for note in notes),
        "environment": tuple(_list_environment(run)),
        **_make_command(run.facts),
        "text": report.render(run),
        "drawn": tuple(run_charts.plot_run(run)) if draw else (),
        "hardly_sampled": tuple(run_charts.list_rarely_sampled(run)) if draw else (),
        "not_drawn": "" if draw else "Not plotted on a page with this many runs: report this run alone.",
    }


def _list_data(run: Result) -> Iterator[tuple[str, str]]:
    """What the requests were made of, a name and words each; nothing of random prompts of one length."""
    facts = run.facts
    parts = [line.partition(": ") for line in data_lines.lines(run)]
    if parts or facts.data.kind != RANDOM:
        yield "prompts", data_lines.prompts(facts)
    yield from ((name, words) for name, _, words in parts)


def _add_percentiles(run: Result) -> Metrics:
    """The run's metrics with the percentiles that are always shown, whichever were requested."""
    ask = run.ask
    missing = [rank for rank in _COLUMNS if rank not in ask.metric_percentiles]
    if not missing:
        return run.metrics
    return compute(run.counted, replace(ask, metric_percentiles=(*ask.metric_percentiles, *missing)))


def _make_latency_table(run: Result, metrics: Metrics) -> FigureTable:
    requested = run.facts.ask().metric_percentiles
    ranks = sorted({*_COLUMNS, *requested} - {50.0})
    rows: list[tuple[Entry, ...]] = []
    for figure, latency in select_latencies(metrics):
        at = f"loadgen.metrics.{figure.field_name}"
        row = [format_number(f"{at}.{name}", getattr(latency, name)) for name in _PLAIN]
        row.append(_make_percentile(f"{at}.median_ms", latency.median_ms, 50.0, latency.n))
        for rank in ranks:
            place = f"{at}.percentiles_ms.{percentile_name(rank)}" if rank in requested else ""
            row.append(_make_percentile(place, latency.percentiles_ms[rank], rank, latency.n))
        rows.append((figure.label, *row, format_number(f"{at}.max_ms", latency.max_ms)))
    names = (f"P{percentile_name(rank)}" for rank in (50.0, *ranks))
    return FigureTable(("ms", "n", "mean", "std", "min", *names, "max"), tuple(rows))


def _explain_few_samples(latencies: FigureTable) -> str:
    """What to know of the percentiles that are from few samples; "" if none is."""
    if not any(isinstance(entry, Number) and entry.aside for row in latencies.rows for entry in row):
        return ""
    least = ", ".join(f"P{rank:g} {least_samples(rank)[1]}" for rank in _COLUMNS)
    return f"from N: fewer samples than an upper bound at 99 % needs ({least}); raise --num-prompts"


def _make_percentile(key: str, value_ms: float, rank: float, count: int) -> Entry:
    entry = format_number(key, value_ms)
    return replace(entry, aside=note_few_samples(rank, count)) if isinstance(entry, Number) else entry


def _make_target_table(run: Result) -> FigureTable | None:
    rows = []
    for index, row in enumerate(run.by_target):
        at = f"loadgen.by_target.{index}"
        latencies = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")
        names = ("requests", "failed", *latencies, "output_throughput_per_s")
        rows.append((row.url, *(format_number(f"{at}.{name}", getattr(row, name)) for name in names)))
    titles = ("", "requests", "failed", "TTFT ms", "P99", "TPOT ms", "P99", "tok/s")
    return FigureTable(titles, tuple(rows)) if rows else None


def _make_turn_table(run: Result) -> FigureTable | None:
    latencies = ("mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")
    rows = []
    for index, row in enumerate(run.by_turn):
        at, share = f"loadgen.by_turn.{index}", row.cached_share
        cached = "-" if share is None else Number(f"{at}.cached_share", share, f"{100 * share:.1f} %")
        rows.append((
            row.name,
            *(format_number(f"{at}.{name}", getattr(row, name), 0) for name in ("requests", "failed")),
            format_number(f"{at}.mean_input_tokens", row.mean_input_tokens, 1),
            cached,
            format_number(f"{at}.mean_output_tokens", row.mean_output_tokens, 1),
            *(format_number(f"{at}.{name}", getattr(row, name)) for name in latencies),
        ))  # fmt: skip
    titles = (
        "turn",
        "requests",
        "failed",
        "input tokens",
        "cached",
        "output tokens",
        "TTFT ms",
        "P50",
        "P99",
    )
    return FigureTable((*titles, "TPOT ms", "E2EL ms"), tuple(rows)) if rows else None


def _make_reconciled_table(run: Result) -> FigureTable | None:
    rows = []
    for index, row in enumerate(run.reconciled):
        digits, at = _DECIMALS[row.unit], f"loadgen.reconciliation.{index}"
        server: Entry = format_number(f"{at}.server", row.server, digits)
        if row.bracket is not None:
            low, high = row.bracket
            server = f"{low:g} to {high:g}" if high is not None else f"over {low:g}"
        client = format_number(f"{at}.client", row.client, digits)
        difference = format_number(f"{at}.difference", row.difference, digits)
        rows.append((f"{row.figure}{f' ({row.unit})' if row.unit else ''}", client, server, difference))
    return FigureTable(("", "client", "server", "difference"), tuple(rows)) if rows else None


def _make_figure_table(figures: Mapping[str, Any]) -> FigureTable:
    rows = [(key, format_number(key, value, 4)) for key, value in figures.items() if value is not None]
    return FigureTable(("key", "value"), tuple(rows))


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
    if facts.sensed is not None:
        for line in sensor_summary.render_summary(facts.sensed, run.whole.total_output_tokens):
            name, _, value = line.partition(": ")
            yield name, value
    if facts.cpu_use is not None:
        name, _, value = cpu_use.format_use(facts.cpu_use).partition(": ")
        yield name, value
    given = facts.profile.model_dump(mode="json", exclude_defaults=True)
    given.pop("description", None)
    words = (value if isinstance(value, str) else json.dumps(value) for value in given.values())
    yield "profile", ", ".join(f"{key} {word}" for key, word in zip(given, words, strict=True))
    yield "prompts", f"{data_lines.prompts(facts)}; seed {facts.seed}, plan {facts.plan_digest[:12]}"
    yield "when", f"{facts.started:%Y-%m-%d %H:%M:%S} to {facts.finished:%H:%M:%S} UTC"
    yield "client", f"{facts.client.transport}, {facts.client.cpu_s:.2f} s of CPU"
    yield from facts.environment.items()


def _make_command(facts: Facts) -> dict[str, str]:
    """The command that runs it again, and what to know of that."""
    notes = []
    if not facts.seed_chosen:
        notes.append(
            f"The seed was random: --seed {facts.seed} repeats the same prompts, "
            "and a prefix cache that still holds them shortens TTFT."
        )
    if HIDDEN in " ".join(facts.command):
        notes.append(f"{HIDDEN} replaces a secret, which is stored nowhere.")
    return {"command": shlex.join(["loadgen", *facts.command[1:]]), "command_note": " ".join(notes)}


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


def make_run_cards(run: Result, metrics: Metrics) -> Iterator[Card]:
    """The cards of a run of ours; `metrics` have the percentile 99, whichever were requested."""
    ours = "loadgen.metrics."
    output, total, requests = (f"{name}_throughput_per_s" for name in ("output", "total", "request"))
    if run.facts.saturated:
        arrived = saturated_run.figures(run).get("output_throughput")
        yield from _make_card("Output", _ARRIVED, ("", arrived, "tokens/s", ""))
    else:
        yield from _make_card(
            "Output",
            _OUTPUT,
            (f"{ours}{output}", getattr(metrics, output), "tokens/s", ""),
            (f"{ours}{total}", getattr(metrics, total), "with input", ""),
        )
    yield from _make_card("Requests", "", (f"{ours}{requests}", getattr(metrics, requests), "per s", ""))
    for figure, latency in select_latencies(metrics):
        if figure.has_card:
            yield _make_latency_card(figure, f"{ours}{figure.field_name}", latency, run)
    yield _make_failure_card(run)
    objectives = run.facts.ask().goodput_slo_ms
    if metrics.goodput_per_s is not None:
        yield _make_goodput_card(metrics, objectives)
    yield from map(_make_objective_card, run.objectives)
    yield from _make_sensor_cards(run)


def make_result_cards(figures: Mapping[str, Any]) -> Iterator[Card]:
    """The cards of another client's run, by vLLM's keys."""
    output, total, requests = "output_throughput", "total_token_throughput", "request_throughput"
    yield from _make_card("Output", _OUTPUT, (output, figures.get(output), "tokens/s", ""),
                     (total, figures.get(total), "with input", ""))  # fmt: skip
    yield from _make_card("Requests", "", (requests, figures.get(requests), "per s", ""))
    yield from _make_card("Speed", "", ("speed_tok_s", figures.get("speed_tok_s"), "tokens/s", ""))
    for figure in (figure for figure in LATENCIES if figure.about):
        ranks = {"mean": "mean", "P50": "median", "P99": "p99"}
        keys = {rank: figure.statistic(word) for rank, word in ranks.items()}
        known = {
            rank: at for rank, at in keys.items() if isinstance(format_number("", figures.get(at)), Number)
        }
        if "P50" in known:
            known.pop("mean", None)
        shown = ((at, figures[at], "ms", rank) for rank, at in known.items())
        yield from _make_card(figure.label, figure.about, *shown)
    yield from _make_card("Failed", "", ("failed", figures.get("failed"), "requests", ""))


def note_few_samples(rank: float, count: int) -> str:
    """How many samples a percentile has where those are too few for an upper bound, else ""."""
    return f"from {count:,}" if count < least_samples(rank)[1] else ""


def _make_card(label: str, about: str, *figures: tuple[str, object, str, str]) -> Iterator[Card]:
    """A card of those figures that there are."""
    shown = [
        (format_number(key, value, _choose_digits(value)), unit, rank) for key, value, unit, rank in figures
    ]
    known = tuple(CardFigure(value, unit, rank) for value, unit, rank in shown if isinstance(value, Number))
    if known:
        yield Card(label, known, about)


def _choose_digits(value: object) -> int:
    """As many decimals as make four digits, two at most."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return 2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0


def select_latencies(metrics: Metrics) -> Iterator[tuple[Figure, Distribution]]:
    """The latencies that a page has, without those that repeat another's values."""
    for figure in (figure for figure in LATENCIES if figure.about):
        latency: Distribution = getattr(metrics, figure.field_name)
        if latency.n and not (figure.same_as and latency == getattr(metrics, figure.same_as)):
            yield figure, latency


def _make_latency_card(figure: Figure, key: str, latency: Distribution, run: Result) -> Card:
    ranks = run.facts.ask().metric_percentiles
    at = f"{key}.percentiles_ms.{percentile_name(99.0)}" if 99.0 in ranks else ""
    p50 = format_number(f"{key}.median_ms", latency.median_ms, _choose_digits(latency.median_ms))
    p99 = format_number(at, latency.p99_ms, _choose_digits(latency.p99_ms))
    shown = [
        CardFigure(value, ", ".join(filter(None, ("ms", note_few_samples(rank, latency.n)))), name)
        for value, name, rank in ((p50, "P50", 50.0), (p99, "P99", 99.0))
        if isinstance(value, Number)
    ]
    return Card(figure.label, tuple(shown), figure.about)


def _make_failure_card(run: Result) -> Card:
    """Failures, none included: that no request failed is worth knowing; one that was cut off did not."""
    requests, failed, cut_off = run.metrics.requests, run.metrics.failed, run.metrics.cut_off
    share = 100 * failed / max(requests, 1)
    count = Number("loadgen.metrics.failed", failed, f"{failed:,}")
    figures = [CardFigure(Number("", share, f"{share:.3g} %"), ""), CardFigure(count, f"of {requests:,}")]
    figures += [
        CardFigure(Number("loadgen.metrics.cut_off", cut_off, f"{cut_off:,}"), "cut off by the run's end")
    ] * bool(cut_off)
    return Card("Failure rate", tuple(figures), _FAILURES)


def _make_goodput_card(metrics: Metrics, objectives_ms: Mapping[str, float]) -> Card:
    """Requests that met every objective, a second and of all."""
    per_s, share = metrics.goodput_per_s or 0.0, 100 * (metrics.slo_attainment or 0.0)
    rate = Number("loadgen.metrics.goodput_per_s", per_s, f"{per_s:,.2f}")
    of_all = CardFigure(Number("", share, f"{share:.3g} %"), "of requests")
    limits = ", ".join(f"{name.upper()} ≤ {limit_ms:g} ms" for name, limit_ms in objectives_ms.items())
    return Card("Goodput", (CardFigure(rate, "requests/s"), of_all), f"{_GOODPUT}{limits}.")


def _make_objective_card(evidence: ObjectiveEvidence) -> Card:
    """What the run shows of one objective, and the percentile that it is of."""
    objective, value_ms = evidence.objective, evidence.value_ms
    about = _OBJECTIVE.format(f"{objective.limit_ms:g} ms", f"{evidence.over} of {evidence.samples}")
    shown = f"{value_ms:,.{_choose_digits(value_ms)}f}" if math.isfinite(value_ms) else "–"
    figure = CardFigure(Number("", value_ms, shown), f"ms: {evidence.standing}")
    return Card(f"{objective.metric.upper()} P{objective.percentile:g}, objective", (figure,), about)


def _make_sensor_cards(run: Result) -> Iterator[Card]:
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
