"""vLLM's layout: the runs of a sweep as `vllm bench sweep serve` would have left them, for its plots."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.campaign.kept_directory import made
from loadgen.campaign.sweep.grid import GridPoint, shown_value
from loadgen.campaign.sweep.sweep_store import SweepStore
from loadgen.errors import UsageError
from loadgen.metrics import files
from loadgen.results.run_directory import RESULT
from loadgen.results.sweep_record import FINISHED, SweepRecord
from loadgen.results.vllm_json import OURS

VLLM, SUMMARY = "vllm", "summary.json"


def write(store: SweepStore, record: SweepRecord, points: Sequence[GridPoint], of: GridPoint) -> None:
    """Write the folder of one combination: `run=N.json` for each run, and all of them in `summary.json`.

    `vllm bench sweep plot` and `plot_pareto` read every summary.json below the directory they are given.
    Raises StoreError.
    """
    name = _combination(of)
    runs = [
        _run(store.directory / point.directory, planned)
        for point, planned in zip(record.points, points, strict=True)
        if point.state in FINISHED and _combination(planned) == name
    ]
    with store.writing():
        place = store.directory / VLLM / name
        made(place)
        for run in runs:
            files.write_text(place / f"run={run['run_number']}.json", json.dumps(run, indent=4))
        files.write_text(place / SUMMARY, json.dumps(runs, indent=4))


def _run(directory: Path, point: GridPoint) -> dict[str, Any]:
    """A run under vLLM's keys, with what was varied; raises UsageError where its result is damaged."""
    try:
        stored = json.loads((directory / RESULT).read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{directory / RESULT} is missing or damaged: {error}") from None
    stored.pop(OURS, None)
    return {**stored, **dict(_varied(point)), "run_number": point.repeat}


def _varied(point: GridPoint) -> Iterator[tuple[str, Any]]:
    for name, value in point.serve.items():
        yield name.replace("-", "_"), _number(value)
    for name, value in point.settings.items():
        yield name, value if value != float("inf") else "inf"


def _number(text: str) -> float | str:
    """A server's flag as vLLM's own parameters have it: a number where it is one."""
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        return text


def _combination(point: GridPoint) -> str:
    """The folder's name: SERVE--max_num_seqs=8-BENCH--max_concurrency=4."""
    parts = []
    for kind, table in (("SERVE", point.serve), ("BENCH", point.settings)):
        if table:
            parts.append(f"{kind}--{_joined(table)}")
    return "-".join(parts)


def _joined(table: Mapping[str, Any]) -> str:
    named = "-".join(f"{name.replace('-', '_')}={shown_value(value)}" for name, value in table.items())
    return re.sub(r"[^\w.=-]+", "_", named)
