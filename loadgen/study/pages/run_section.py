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
from loadgen.figures.figure_table import percentile_name
from loadgen.figures.metrics import Metrics, compute
from loadgen.host import cpu_use, sensor_summary
from loadgen.plan.sources import RANDOM
from loadgen.report import report, report_parts, result_block
from loadgen.report.run_directory import Result
from loadgen.server import answer_check, engine_config
from loadgen.study.compare.comparison_report import describe_load
from loadgen.study.pages import cards, formatting, run_charts, sample_charts
from loadgen.study.pages.cards import Card, thin
from loadgen.study.pages.formatting import Entry, FigureTable, Number, number
from loadgen.study.pages.panel import Panel
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


def account(reported: Reported, anchor: str, draw: bool) -> Account:
    """All that is shown of a run; without `draw` its pictures are left out."""
    parts = _of_ours(reported.run, draw) if reported.run is not None else _of_others(reported)
    return Account(
        anchor=anchor,
        reported=reported,
        load=describe_load(reported.load),
        where=formatting.where(reported),
        figures=_figures(reported.figures),
        **parts,
    )


def _of_others(reported: Reported) -> dict[str, Any]:
    nothing = dict.fromkeys(("severity", "evidence", "condition", "remedy"), "")
    return {
        "cards": tuple(cards.of_figures(reported.figures)),
        "doubts": tuple({**nothing, "name": name} for name in reported.doubts),
        "notes": reported.remarks,
        "environment": (("source", reported.source), ("reported by", reported.told_by)),
        "text": result_block.render(reported.figures) if "completed" in reported.figures else "",
        "not_drawn": "The source has no request times: nothing can be plotted over time.",
    }


def _of_ours(run: Result, draw: bool) -> dict[str, Any]:
    metrics, findings = _with_percentiles(run), run.verdict.findings
    notes = [*run.facts.notes, *steady_state.lines(run.steady)]
    failures = run.whole.failures.items()
    notes += [f"{describe_outcome(kind)}: {tally.count} × {kind}: {tally.detail}" for kind, tally in failures]
    if run.facts.fingerprint is not None:
        notes += answer_check.render_lines(run.facts.fingerprint)
    return {
        "cards": tuple(cards.of_run(run, metrics)),
        "data": tuple(_data(run)),
        "latencies": (latencies := _latencies(run, metrics)),
        "thin": _thin(latencies),
        "not_checked": ", ".join(run.verdict.not_checked) if run.verdict.level is Level.VALID else "",
        "by_target": _by_target(run),
        "by_turn": _by_turn(run),
        "sessions": tuple(
            session_lines.lines(run, report_parts.ReportOptions(False, result_block.layout(None)))
        ),
        "reconciled": _reconciled(run),
        "doubts": tuple(rule.as_json(each) for each in findings if each.rule.code != _IN_ITS_COLUMN),
        "best": tuple(run_roofline.lines(run.facts, run.metrics)),
        "notes": tuple(" ".join(note.split()) for note in notes),
        "environment": tuple(_environment(run)),
        **_command(run.facts),
        "text": report.render(run),
        "drawn": tuple(run_charts.panels(run)) if draw else (),
        "hardly_sampled": tuple(sample_charts.remarks(run)) if draw else (),
        "not_drawn": "" if draw else "Not plotted on a page with this many runs: report this run alone.",
    }


def _data(run: Result) -> Iterator[tuple[str, str]]:
    """What the requests were made of, a name and words each; nothing of random prompts of one length."""
    facts = run.facts
    parts = [line.partition(": ") for line in data_lines.lines(run)]
    if parts or facts.data.kind != RANDOM:
        yield "prompts", data_lines.prompts(facts)
    yield from ((name, words) for name, _, words in parts)


def _with_percentiles(run: Result) -> Metrics:
    """The run's metrics with the percentiles that are always shown, whichever were requested."""
    ask = run.ask
    missing = [rank for rank in _COLUMNS if rank not in ask.metric_percentiles]
    if not missing:
        return run.metrics
    return compute(run.counted, replace(ask, metric_percentiles=(*ask.metric_percentiles, *missing)))


def _latencies(run: Result, metrics: Metrics) -> FigureTable:
    requested = run.facts.ask().metric_percentiles
    ranks = sorted({*_COLUMNS, *requested} - {50.0})
    rows: list[tuple[Entry, ...]] = []
    for figure, latency in cards.shown_latencies(metrics):
        at = f"loadgen.metrics.{figure.field_name}"
        row = [number(f"{at}.{name}", getattr(latency, name)) for name in _PLAIN]
        row.append(_percentile(f"{at}.median_ms", latency.median_ms, 50.0, latency.n))
        for rank in ranks:
            place = f"{at}.percentiles_ms.{percentile_name(rank)}" if rank in requested else ""
            row.append(_percentile(place, latency.percentiles_ms[rank], rank, latency.n))
        rows.append((figure.label, *row, number(f"{at}.max_ms", latency.max_ms)))
    names = (f"P{percentile_name(rank)}" for rank in (50.0, *ranks))
    return FigureTable(("ms", "n", "mean", "std", "min", *names, "max"), tuple(rows))


def _thin(latencies: FigureTable) -> str:
    """What to know of the percentiles that are from few samples; "" if none is."""
    if not any(isinstance(entry, Number) and entry.aside for row in latencies.rows for entry in row):
        return ""
    least = ", ".join(f"P{rank:g} {least_samples(rank)[1]}" for rank in _COLUMNS)
    return f"from N: fewer samples than an upper bound at 99 % needs ({least}); raise --num-prompts"


def _percentile(key: str, value_ms: float, rank: float, count: int) -> Entry:
    entry = number(key, value_ms)
    return replace(entry, aside=thin(rank, count)) if isinstance(entry, Number) else entry


def _by_target(run: Result) -> FigureTable | None:
    rows = []
    for index, row in enumerate(run.by_target):
        at = f"loadgen.by_target.{index}"
        latencies = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms")
        names = ("requests", "failed", *latencies, "output_throughput_per_s")
        rows.append((row.url, *(number(f"{at}.{name}", getattr(row, name)) for name in names)))
    titles = ("", "requests", "failed", "TTFT ms", "P99", "TPOT ms", "P99", "tok/s")
    return FigureTable(titles, tuple(rows)) if rows else None


def _by_turn(run: Result) -> FigureTable | None:
    latencies = ("mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")
    rows = []
    for index, row in enumerate(run.by_turn):
        at, share = f"loadgen.by_turn.{index}", row.cached_share
        cached = "-" if share is None else Number(f"{at}.cached_share", share, f"{100 * share:.1f} %")
        rows.append((
            row.name,
            *(number(f"{at}.{name}", getattr(row, name), 0) for name in ("requests", "failed")),
            number(f"{at}.mean_input_tokens", row.mean_input_tokens, 1),
            cached,
            number(f"{at}.mean_output_tokens", row.mean_output_tokens, 1),
            *(number(f"{at}.{name}", getattr(row, name)) for name in latencies),
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


def _reconciled(run: Result) -> FigureTable | None:
    rows = []
    for index, row in enumerate(run.reconciled):
        digits, at = _DECIMALS[row.unit], f"loadgen.reconciliation.{index}"
        server: Entry = number(f"{at}.server", row.server, digits)
        if row.bracket is not None:
            low, high = row.bracket
            server = f"{low:g} to {high:g}" if high is not None else f"over {low:g}"
        client = number(f"{at}.client", row.client, digits)
        difference = number(f"{at}.difference", row.difference, digits)
        rows.append((f"{row.figure}{f' ({row.unit})' if row.unit else ''}", client, server, difference))
    return FigureTable(("", "client", "server", "difference"), tuple(rows)) if rows else None


def _figures(figures: Mapping[str, Any]) -> FigureTable:
    rows = [(key, number(key, value, 4)) for key, value in figures.items() if value is not None]
    return FigureTable(("key", "value"), tuple(rows))


def _environment(run: Result) -> Iterator[tuple[str, str]]:
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


def _command(facts: Facts) -> dict[str, str]:
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
