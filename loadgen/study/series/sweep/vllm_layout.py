"""vLLM's layout: the runs of a sweep as `vllm bench sweep serve` would have left them, for its plots."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadgen.base import files
from loadgen.base.errors import UsageError
from loadgen.report.result_file import OURS
from loadgen.report.run_directory import RESULT
from loadgen.study.series.point_runs import parse_value
from loadgen.study.series.series_store import SeriesStore, create_directory
from loadgen.study.series.sweep.grid import GridPoint, list_finished
from loadgen.study.sweep_record import SweepRecord, format_value

VLLM, SUMMARY = "vllm", "summary.json"
_LONGEST_NAME = 150


def write_combination(
    store: SeriesStore, record: SweepRecord, points: Sequence[GridPoint], of: GridPoint
) -> None:
    """Write the folder of a point's combination: `run=N.json` for each repeat, and all in `summary.json`.

    `vllm bench sweep plot` and `plot_pareto` read every summary.json below the directory they are given.
    Raises StoreError.
    """
    name = _name_combination(of)
    runs = [
        _read_run(store.directory / point.directory, planned)
        for point, planned in list_finished(record.points, points)
        if _name_combination(planned) == name
    ]
    with store.writing():
        place = store.directory / VLLM / name
        create_directory(place)
        files.write_text(place / SUMMARY, json.dumps(runs, indent=4))
        for run in runs:  # last: `complete` finds by them what was not written to its end
            files.write_text(place / f"run={run['run_number']}.json", json.dumps(run, indent=4))


def complete_layout(store: SeriesStore, record: SweepRecord, points: Sequence[GridPoint]) -> None:
    """Write each folder that lacks a finished point's file, as an ended process left it.

    Raises StoreError, and UsageError where a result is damaged.
    """
    lacking = {}
    for _, point in list_finished(record.points, points):
        name = _name_combination(point)
        if not (store.directory / VLLM / name / f"run={point.repeat}.json").is_file():
            lacking[name] = point
    for point in lacking.values():
        write_combination(store, record, points, point)


def _read_run(directory: Path, point: GridPoint) -> dict[str, Any]:
    """Read a run's result without loadgen's own part, and add the varied values and the repeat's number.

    An infinite value becomes a text. Raises UsageError where the result is missing or damaged.
    """
    try:
        stored = json.loads((directory / RESULT).read_bytes())
        if not isinstance(stored, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{directory / RESULT} is missing or damaged: {error}") from None
    stored.pop(OURS, None)
    # As vLLM's own parameters have what was varied: a number or a switch where it is one.
    served = {name.replace("-", "_"): parse_value(value) for name, value in point.serve.items()}
    varied = {**served, **point.settings}
    for name, value in varied.items():
        if isinstance(value, float) and not math.isfinite(value):
            varied[name] = str(value)  # JSON has no infinity
    return {**stored, **varied, "run_number": point.repeat}


def _name_combination(point: GridPoint) -> str:
    """Return a combination's folder name: SERVE--max_num_seqs=8-BENCH--max_concurrency=4.

    Other signs become `_`, and a name that changed, or is cut at 150 characters, ends with a hash.
    """
    parts = []
    for kind, table in (("SERVE", point.serve), ("BENCH", point.settings)):
        if table:
            named = (f"{name.replace('-', '_')}={format_value(value)}" for name, value in table.items())
            parts.append(f"{kind}--{'-'.join(named)}")
    whole = "-".join(parts)
    plain = re.sub(r"[^\w.=-]+", "_", whole, flags=re.ASCII)[:_LONGEST_NAME]
    if plain == whole:
        return plain
    digest = hashlib.blake2b(whole.encode("utf-8", "surrogateescape"), digest_size=4)
    return f"{plain}-{digest.hexdigest()}"
