"""Sheet: one row a run with everything that is known of it, as comma-separated values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from loadgen.base.csv_text import format_csv_table
from loadgen.study.run_summary import Reported

_LEFT = (
    "name", "load", "requests", "input_len", "output_len", "asked_output_len", "max_concurrency",
    "request_rate_per_s", "campaign", "server", "repeat", "start", "engine", "machine", "power_mode",
    "started", "told_by", "source", "level", "doubts", "memory_bytes", "weight_bytes",
    "joules_per_token", "plan_digest", "duration_s", "shape", "simulated",
)  # fmt: skip


def render(reported: Sequence[Reported]) -> str:
    """A header and a row a run; figures under vLLM's keys, in full precision, empty where unknown."""
    rows = [_row(run) for run in reported]
    return format_csv_table(list(dict.fromkeys((*_LEFT, *(key for row in rows for key in row)))), rows)


def _row(run: Reported) -> dict[str, Any]:
    cell = {} if run.cell is None else run.cell.model_dump()
    started = run.started.isoformat() if run.started else None
    changed = {"load": run.load.name, "started": started, "doubts": " ".join(run.doubts)}
    about = {**cell, **asdict(run.load), **asdict(run), **changed}
    return {**run.figures, **{key: about.get(key) for key in _LEFT}}
