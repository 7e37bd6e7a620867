"""Export: comparisons with every digit, as CSV and as strict JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import asdict

from loadgen.base.csv_text import format_csv_table
from loadgen.report.vllm_json import strict
from loadgen.study.compare import loads
from loadgen.study.compare.model import ComparedLoad, Line
from loadgen.study.compare.render import compute_speed_up
from loadgen.study.run_summary import Reported

FORMAT = 1
_LOAD = (
    "requests", "duration_s", "input_len", "output_len", "max_concurrency", "request_rate_per_s", "shape",
)  # fmt: skip
_EFFECT = ("ratio", "low", "high", "p", "p_adjusted", "p_equivalent", "p_equivalent_adjusted", "detectable")
CSV_COLUMNS = (
    "load", "checkpoint", "baseline", "figure", "headline", "runs", "units", "mean", "mean_low", "mean_high",
    "call", *_EFFECT, "more_runs", "pairs", "paired", "why", "roofline", "marks", "answers", "failures",
    "simulated", *_LOAD,
)  # fmt: skip


def render_csv(comparisons: Sequence[ComparedLoad]) -> str:
    """Write a line a figure of a row, under `CSV_COLUMNS`; an unknown value is empty."""
    rows = (row for each in comparisons for line in each.lines for row in _csv_rows(each, line))
    finite_rows = ({key: None if value == math.inf else value for key, value in row.items()} for row in rows)
    return format_csv_table(CSV_COLUMNS, finite_rows)


def render_json(comparisons: Sequence[ComparedLoad]) -> dict[str, Any]:
    """Write everything that a comparison knows, as JSON has it: no NaN, no infinity."""
    found = loads.arrange_loads(comparisons)
    points = [
        {**asdict(row), "figures": {key: asdict(mean) for key, mean in row.figures.items()}}
        for row in found.rows
    ]
    swept = {"rows": points, "notes": found.notes}
    made = {"format": FORMAT, "comparisons": list(map(_comparison, comparisons)), "loads": swept}
    clean: dict[str, Any] = strict(made)
    return clean


def _csv_rows(comparison: ComparedLoad, line: Line) -> Iterator[dict[str, Any]]:
    about = {
        "load": comparison.load.name,
        "checkpoint": line.name,
        "baseline": comparison.baseline,
        "runs": len(line.runs),
        "roofline": line.roofline,
        "marks": "; ".join(line.marks),
        "answers": line.answers,
        "failures": "; ".join(line.failures),
        "simulated": line.simulated,
        **{key: getattr(comparison.load, key) for key in _LOAD},
    }
    if not line.summaries:
        yield about
    for key, summary in line.summaries.items():
        effect = line.effects.get(key)
        row = {
            **about,
            "figure": key,
            "headline": key == comparison.headline,
            "units": summary.units,
            "mean": summary.mean,
            "mean_low": summary.low,
            "mean_high": summary.high,
        }
        if effect is not None:
            row |= {name: getattr(effect, name) for name in (*_EFFECT, "more_runs", "paired", "why")}
            row |= {"call": effect.call.value, "pairs": effect.units}
        yield row


def _comparison(comparison: ComparedLoad) -> dict[str, Any]:
    return {
        "load": asdict(comparison.load),
        **{key: getattr(comparison, key) for key in ("baseline", "headline", "margin", "alpha")},
        "figures": [asdict(figure) for figure in comparison.figures],
        "rows": [_line(comparison, line) for line in comparison.lines],
        "remarks": comparison.remarks,
    }


def _line(comparison: ComparedLoad, line: Line) -> dict[str, Any]:
    ratio, low, high = compute_speed_up(line.effects.get(comparison.headline))
    return {
        "name": line.name,
        "summaries": {key: asdict(summary) for key, summary in line.summaries.items()},
        # `beside` held figures of a resampling that is no longer made.
        "effects": {
            key: {**asdict(effect), "call": effect.call.value, "beside": {}}
            for key, effect in line.effects.items()
        },
        "speed_up": {"ratio": ratio, "low": low, "high": high},
        **{key: getattr(line, key) for key in ("roofline", "marks", "answers", "failures", "simulated")},
        "runs": [_run(run) for run in line.runs],
    }


def _run(run: Reported) -> dict[str, Any]:
    keys = ("name", "source", "told_by", "engine", "machine", "power_mode", "plan_digest", "memory_bytes")
    more = ("simulated", "weight_bytes", "joules_per_token", "level", "doubts", "remarks", "place", "unread")
    return {
        **{key: getattr(run, key) for key in (*keys, *more)},
        "started": None if run.started is None else run.started.isoformat(),
        "load": asdict(run.load),
        "cell": None if run.cell is None else run.cell.model_dump(mode="json"),
        "figures": dict(run.figures),
    }
