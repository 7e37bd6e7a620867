"""Sheet: one row a run with everything that is known of it, as comma-separated values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.analysis.run_summary import Reported
from loadgen.results.csv_text import csv_text

_LEFT = (
    "name", "load", "requests", "input_len", "output_len", "asked_output_len", "max_concurrency",
    "request_rate_per_s", "campaign", "server", "repeat", "start", "engine", "machine", "power_mode",
    "started", "told_by", "source", "level", "doubts", "memory_bytes", "weight_bytes",
    "joules_per_token", "plan_digest",
)  # fmt: skip


def render(reported: Sequence[Reported]) -> str:
    """A header and a row a run; figures under vLLM's keys, in full precision, empty where not told."""
    keys = dict.fromkeys(key for one in reported for key in one.figures if key not in _LEFT)
    rows = ((_known(one), one.figures) for one in reported)
    cells = ([*(known[key] for key in _LEFT), *(figures.get(key) for key in keys)] for known, figures in rows)
    return csv_text([[*_LEFT, *keys], *cells])


def _known(one: Reported) -> dict[str, Any]:
    load, cell = one.load, one.cell
    return {
        "name": one.name,
        "load": load.name,
        "requests": load.requests,
        "input_len": load.input_len,
        "output_len": load.output_len,
        "asked_output_len": load.asked_output_len,
        "max_concurrency": load.max_concurrency,
        "request_rate_per_s": load.request_rate_per_s,
        "campaign": cell.campaign if cell else None,
        "server": cell.server if cell else None,
        "repeat": cell.repeat if cell else None,
        "start": cell.start if cell else None,
        "engine": one.engine,
        "machine": one.machine,
        "power_mode": one.power_mode,
        "started": one.started.isoformat() if one.started else None,
        "told_by": one.told_by,
        "source": one.source,
        "level": one.level,
        "doubts": " ".join(one.doubts),
        "memory_bytes": one.memory_bytes,
        "weight_bytes": one.weight_bytes,
        "joules_per_token": one.joules_per_token,
        "plan_digest": one.plan_digest,
    }
