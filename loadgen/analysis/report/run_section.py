"""Run section: what the page has of one run: figures, verdict, machine, and how to run it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import PurePath
from typing import Any

import msgspec

from loadgen.analysis.comparison.render import described
from loadgen.analysis.report import formatting, run_charts, sample_charts
from loadgen.analysis.report.formatting import Entry, FigureTable, Number, number
from loadgen.analysis.report.panel import Panel
from loadgen.analysis.run_summary import Reported
from loadgen.endpoint import answer_check, engine_config
from loadgen.endpoint.secrecy import HIDDEN
from loadgen.metrics import steady_state
from loadgen.metrics.distribution import Distribution
from loadgen.metrics.metrics import Metrics
from loadgen.metrics.vllm_keys import percentile_name
from loadgen.results import report, result_block
from loadgen.results.run_directory import Result
from loadgen.telemetry import sensor_summary
from loadgen.validity import rule, run_roofline
from loadgen.validity.run_facts import Facts

_DECIMALS = {"": 0, "ms": 2, "%": 1}
_ROWS = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("token_time", "Token time"), ("e2el", "E2EL"))
# The path in our Metrics and the key in others' figures, "" if the tile is not theirs; label, unit, decimals.
_TILES = (
    ("output_throughput_per_s", "output_throughput", "Output", "tokens/s", 1),
    ("total_throughput_per_s", "total_token_throughput", "Input and output", "tokens/s", 1),
    ("request_throughput_per_s", "", "Requests", "per s", 2),
    ("", "speed_tok_s", "Speed", "tokens/s", 2),
    ("ttft.mean_ms", "mean_ttft_ms", "TTFT, mean", "ms", 2),
    ("tpot.mean_ms", "mean_tpot_ms", "TPOT, mean", "ms", 2),
    ("itl.median_ms", "", "ITL, median", "ms", 2),
    ("", "mean_itl_ms", "ITL, mean", "ms", 2),
    ("e2el.mean_ms", "mean_e2el_ms", "E2E, mean", "ms", 1),
    ("goodput_per_s", "", "Goodput", "requests/s", 2),
    ("completed", "", "Completed", "requests", 0),
    ("failed", "", "Failed", "requests", 0),
)


class Tile(msgspec.Struct, frozen=True):
    """One figure that is seen first."""

    label: str
    number: Number
    unit: str


class Account(msgspec.Struct, frozen=True):
    """Everything shown of one run; `drawn` are its plots."""

    anchor: str
    reported: Reported
    load: str
    where: str
    tiles: tuple[Tile, ...]
    figures: FigureTable  # all of them
    doubts: tuple[dict[str, str], ...]  # as a result's JSON has them; of others' results the names alone
    notes: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    text: str  # the report as text; of others' results the block
    latencies: FigureTable | None = None
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
    def simulated(self) -> str:
        """The embedded engine's preset, where no model ran."""
        return self.reported.simulated


def account(reported: Reported, anchor: str, draw: bool) -> Account:
    """All that is shown of a run; without `draw` its pictures are left out."""
    parts = _of_ours(reported.run, draw) if reported.run is not None else _of_others(reported)
    return Account(
        anchor=anchor,
        reported=reported,
        load=described(reported.load),
        where=formatting.where(reported),
        figures=_figures(reported.figures),
        **parts,
    )


def _of_others(reported: Reported) -> dict[str, Any]:
    nothing = dict.fromkeys(("severity", "evidence", "condition", "remedy"), "")
    return {
        "tiles": tuple(_tiles(reported.figures.get, "")),
        "doubts": tuple({**nothing, "name": name} for name in reported.doubts),
        "notes": reported.remarks,
        "environment": (("source", reported.source), ("reported by", reported.told_by)),
        "text": result_block.render(reported.figures) if "completed" in reported.figures else "",
        "not_drawn": "The source has no request times: nothing can be plotted over time.",
    }


def _of_ours(run: Result, draw: bool) -> dict[str, Any]:
    notes = [*run.facts.notes, *steady_state.lines(run.steady)]
    failures = run.metrics.failures.items()
    notes += [f"failed: {tally.count} × {kind}: {tally.detail}" for kind, tally in failures]
    if run.facts.fingerprint is not None:
        notes += answer_check.lines(run.facts.fingerprint)
    return {
        "tiles": (*_tiles(lambda path: attrgetter(path)(run.metrics), "loadgen.metrics."), *_energy(run)),
        "latencies": _latencies(run.metrics),
        "reconciled": _reconciled(run),
        "doubts": tuple(map(rule.as_json, run.verdict.findings)),
        "best": tuple(run_roofline.lines(run.facts, run.metrics)),
        "notes": tuple(" ".join(note.split()) for note in notes),
        "environment": tuple(_environment(run)),
        **_command(run.facts),
        "text": report.render(run),
        "drawn": tuple(run_charts.panels(run)) if draw else (),
        "hardly_sampled": tuple(sample_charts.remarks(run)) if draw else (),
        "not_drawn": "" if draw else "Not plotted on a page with this many runs: report this run alone.",
    }


def _tiles(figure: Callable[[str], Any], prefix: str) -> Iterator[Tile]:
    """The figures seen first: ours by their path behind a prefix, others' by their keys, without one."""
    for path, key, label, unit, digits in _TILES:
        if at := path if prefix else key:
            shown = number(prefix + at, figure(at), digits)
            if isinstance(shown, Number) and (at != "failed" or shown.value):
                yield Tile(label, shown, unit)


def _energy(run: Result) -> Iterator[Tile]:
    sensed = run.facts.sensed
    if sensed is None:
        return
    if (joules := sensed.joules_per_token(run.metrics.total_output_tokens)) is not None:
        yield Tile("Energy", Number("", joules, f"{joules:,.3f}"), "J/token")
    for key, label, level in (("server", "GPU memory", sensed.server), ("rss", "Host memory", sensed.rss)):
        if level is not None:
            shown = f"{level.peak_bytes / 2**30:,.2f}"
            yield Tile(label, Number(f"loadgen.sensed.{key}.peak_bytes", level.peak_bytes, shown), "GiB")


def _latencies(metrics: Metrics) -> FigureTable:
    columns = ("mean", "std", "min", "median")
    ranks = {rank: percentile_name(rank) for rank in metrics.e2el.percentiles_ms}
    rows: list[tuple[Entry, ...]] = []
    for key, label in _ROWS:
        latency: Distribution = getattr(metrics, key)
        if not latency.n or (key == "token_time" and latency == metrics.itl):
            continue
        values: dict[str, Any] = {"n": latency.n}
        values |= {f"{name}_ms": getattr(latency, f"{name}_ms") for name in columns}
        values |= {f"percentiles_ms.{name}": latency.percentiles_ms[rank] for rank, name in ranks.items()}
        values["max_ms"] = latency.max_ms
        rows.append((label, *(number(f"loadgen.metrics.{key}.{at}", each) for at, each in values.items())))
    titles = ("ms", "n", *columns, *(f"P{name}" for name in ranks.values()), "max")
    return FigureTable(titles, tuple(rows))


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
    yield "address", server.url
    if facts.launched is not None:
        yield "started by", f"{facts.launched.how}: {shlex.join(facts.launched.command)}"
    if facts.as_run is not None:
        yield from (("as run", line) for line in engine_config.render(facts.as_run, facts.checkpoint))
    if facts.sensed is not None:
        for line in sensor_summary.render(facts.sensed, run.metrics.total_output_tokens):
            name, _, value = line.partition(": ")
            yield name, value
    given = facts.profile.model_dump(mode="json", exclude_defaults=True)
    given.pop("description", None)
    words = (value if isinstance(value, str) else json.dumps(value) for value in given.values())
    yield "profile", ", ".join(f"{key} {word}" for key, word in zip(given, words, strict=True))
    yield "prompts", f"{facts.prompt_format}, seed {facts.seed}, plan {facts.plan_digest[:12]}"
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
    program = [PurePath(word).name for word in facts.command[:1]]
    return {"command": shlex.join([*program, *facts.command[1:]]), "command_note": " ".join(notes)}
