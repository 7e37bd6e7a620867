"""Times of tokens: where what arrived is not tokens, no report has a figure of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from builders import made_sessions
from builders.loops import loop_over
from builders.made_cases import changed, closed, observed
from builders.made_cases import run as case
from loadgen.base.passages import find_passage
from loadgen.base.structs import replace
from loadgen.base.tables import Number
from loadgen.records.record import Record, Records
from loadgen.report import report
from loadgen.report.run import Run
from loadgen.report.run_directory import Result
from loadgen.report.run_writer import encode_run
from loadgen.server.server_counters import ServerLatency
from loadgen.study import load_table
from loadgen.study.pages import run_charts
from loadgen.study.pages.run_section import make_account
from loadgen.study.run_summary import summarise_result, summarise_run
from loadgen.study.series.campaign import execution
from report.test_shape_figures import CLASSES, answered, shaped

_OF_TOKENS = re.compile(r"ttft|tpot|itl|token_time|ttfvt|prefill_speed|tps_user|good")
_SHOWN = re.compile(r"(?:TTFT|TPOT|ITL|TTFVT)[^;,\n]*?[ :]\d+\.\d|Time to first token|Inter-token latency")
TOKENS = 10


def _plain() -> Result:
    workload = {"slo": "ttft p90 < 500ms, itl p50 < 1s, e2el p90 < 2s", "goodput": ("ttft:500",)}
    buckets: dict[str, tuple[float, float | None]] = dict.fromkeys(("50", "90", "99"), (1.0, 2.0))
    latency = ServerLatency(count=320, mean_ms=60.0, brackets_ms=buckets)
    made = case(changed(closed()), workload=workload, window=observed(ttft=latency, itl=latency))
    return Result(made.facts, made.records)


def _shaped(**keys: Any) -> Result:
    rows = [answered(index, index * 10**8) for index in range(50)]
    return replace(shaped(num_prompts=50, **keys), records=Records.from_records(map(_of_many, rows)))


def _of_many(row: Record) -> Record:
    """The answer with enough tokens to be judged."""
    arrival_ns = np.linspace(row.arrival_ns[0], row.end_ns, TOKENS).astype(np.int64)
    ones = np.ones(TOKENS, np.int64)
    return msgspec.structs.replace(row, arrival_ns=arrival_ns, tokens=ones, output_tokens=TOKENS)


def _sessions() -> Result:
    return made_sessions.made([5] * 8, [_of_many(row) for row in made_sessions.rows_of([5] * 8)])


def _targets() -> Result:
    made = _plain()
    return replace(made, facts=replace(made.facts, targets=("http://a", "http://b")))


MADE: dict[str, Callable[[], Result]] = {
    "plain": _plain,
    "classes": lambda: _shaped(request_rate=10.0, classes=CLASSES, goodput=("tpot:80",)),
    "stages": lambda: _shaped(schedule="rate 20 for 1s, 30 for 1s"),
    "sessions": _sessions,
    "targets": _targets,
}


def _held(made: Result) -> Result:
    """The run with every answer in one piece, at its end."""
    ends_ns = np.repeat(made.records.end_ns, np.diff(made.records.start))
    return replace(made, records=msgspec.structs.replace(made.records, arrival_ns=ends_ns))


def _figures(part: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a tree, with the keys that lead to it."""
    if isinstance(part, dict | list | tuple):
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            yield from _figures(value, f"{path}.{key}")
    elif isinstance(part, int | float) and not isinstance(part, bool) and part == part:
        yield path, part


def _seen(result: Result) -> dict[str, list[str]]:
    """What each report has of the times of tokens, by its name."""
    reported = summarise_run(Path("x"), result)
    shown = make_account(reported, "a", draw=True)
    latencies = find_passage(shown.sections, "latencies").table
    stored = json.loads(json.dumps(encode_run(result)))
    derived = ("metrics", "by_stage", "by_class", "by_turn", "by_target", "steady_state", "reconciliation")
    trees = {
        "result.json": {key: value for key, value in stored.items() if key != "loadgen"},
        "its own part": {key: stored["loadgen"].get(key) for key in derived},
        "compared": reported.figures,
        "compared by its file": summarise_result(result.facts, stored, "x", None).figures,
        "row of a sweep": load_table.make_load_row(result).figures,
        "API": msgspec.to_builtins(Run(result).metrics, str_keys=True),
    }
    seen = {
        name: [
            at for at, value in _figures(tree) if _OF_TOKENS.search(at) and value and not at.endswith(".n")
        ]
        for name, tree in trees.items()
    }
    texts = {
        "report": report.render_report(result),
        "short report": report.render_short(result, ""),
        "point of a sweep": execution.summarize_run(result),
        "cards": " ".join(f"{card.label} {card.figures[0][1]}" for card in shown.cards),
        "latencies": " ".join(f"{row[0]} 1.0" for row in latencies.body) if latencies else "",
        "pictures": " ".join(panel.title for panel in find_passage(shown.sections, "drawn").panels),
    }
    tables = [section.table for section in shown.sections if section.table not in (None, latencies)]
    cells = [cell.key for table in tables for row in table.body for cell in row if isinstance(cell, Number)]
    return {
        **seen,
        **{name: _SHOWN.findall(_without_verdict(text)) for name, text in texts.items()},
        "tables of the page": [key for key in cells if _OF_TOKENS.search(key)],
        "distributions": [
            key for key in ("ttft", "tpot", "itl") if len(run_charts.select_latencies_ms(result, key))
        ],
    }


def _without_verdict(text: str) -> str:
    """The text without what says why there are none: the doubts, and the self-test of the client."""
    kept = re.sub(r"(?ms)^(?:verdict|and|client error[^:]*):.*?(?=^\S)", "", text)
    return re.sub(r"(?m)^(?:TTFT|ITL|E2E)[\w ]*, (?:mean|P50|P90|P99) +- .*$", "", kept)


@loop_over("name", MADE)
def test_what_was_not_measured_is_in_no_report(name: str) -> None:
    healthy = MADE[name]()
    held = _held(healthy)
    assert "arrivals-not-tokens" in held.verdict.reasons
    assert "arrivals-not-tokens" not in healthy.verdict.reasons
    assert {where: seen for where, seen in _seen(held).items() if seen} == {}
    assert all(_seen(healthy)[where] for where in ("result.json", "compared", "cards", "pictures", "report"))
    assert "see arrivals-not-tokens" in " ".join(report.render_report(held).split())
    assert held.metrics.e2el == healthy.metrics.e2el


def test_an_objective_of_what_was_not_measured_is_not_shown() -> None:
    ttft, itl, e2el = _held(_plain()).objectives
    assert [(each.samples, each.standing.value) for each in (ttft, itl, e2el)] == [
        (0, "not shown"),
        (0, "not shown"),
        (320, "meets"),
    ]
