"""lm-eval: scores that lm-evaluation-harness measured of a checkpoint, from its results_*.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path
from loadgen.base.intervals import NORMAL_QUANTILE
from loadgen.base.untrusted import read_list, read_mapping
from loadgen.study.answer.candidate import Value
from loadgen.study.importers import json_fields

_ERROR = "_stderr"  # of a metric, which comes before the filter: acc_stderr,none
_NO_METRIC = ("alias", "name", "sample_len", "samples")


def read_scores(file: str) -> dict[str, Value]:
    """Read the first metric of each task, as "gsm8k exact_match", ± 1.96 × stderr where that is known.

    A task of a group that has a score itself is left out. Of a directory it is the results_*.json whose name
    sorts last. Raises UsageError of a file without scores.
    """
    path = expand_path(file)
    if path.is_dir():
        path = max(path.rglob("results_*.json"), key=lambda found: found.name, default=path)
    whole = _read_document(path)
    results = read_mapping(whole.get("results"))
    scores = {task: score for task in results if (score := _find_score(read_mapping(results[task])))}
    groups = read_mapping(whole.get("group_subtasks"))
    grouped = {str(task) for group in groups if group in scores for task in read_list(groups[group])}
    if not scores:
        raise UsageError(f"{path}: no task has a score: give a results_*.json of lm-evaluation-harness")
    return {f"{task} {name}": value for task, (name, value) in scores.items() if task not in grouped}


def _read_document(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises UsageError."""
    try:
        whole = json.loads(json_fields.read_bounded(path))
    except (ValueError, RecursionError):
        whole = None
    if not isinstance(whole, dict):
        raise UsageError(f"{path} is not a results_*.json of lm-evaluation-harness")
    return whole


def _find_score(metrics: Mapping[str, Any]) -> tuple[str, Value] | None:
    """Find the name and value of a task's first metric; None if it has none."""
    for key, number in metrics.items():
        name, comma, chosen = key.partition(",")
        value = json_fields.read_number(number)
        if value is None or name.endswith(_ERROR) or name in _NO_METRIC:
            continue
        error = json_fields.read_number(metrics.get(f"{name}{_ERROR}{comma}{chosen}"))
        reach = math.nan if error is None else NORMAL_QUANTILE * error
        return name, Value(value, value - reach, value + reach)
    return None
