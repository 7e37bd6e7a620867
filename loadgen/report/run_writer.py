"""Run writer: a run as the JSON of its result file, and its directory as it is written and checked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from loadgen.base import files
from loadgen.base.errors import Broken, UsageError, make_guarded
from loadgen.facts.run_facts import Facts
from loadgen.features.images import image_figures
from loadgen.features.routed import role_figures
from loadgen.features.sessions import session_figures
from loadgen.features.speculation import speculation_figures
from loadgen.features.targets import target_figures
from loadgen.figures import objectives, steady_state
from loadgen.records import journal
from loadgen.records.journal import JOURNAL
from loadgen.report import shape_figures
from loadgen.report.result_file import OURS, make_result
from loadgen.report.run_directory import ARRIVALS, RESULT, Result
from loadgen.server import sample_file
from loadgen.server.sample_file import SAMPLES
from loadgen.verdict import verdict

_OF_ARRIVALS = (
    "completed",
    "total_input_tokens",
    "total_output_tokens",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_itl_ms",
    "p99_itl_ms",
)


# The keys of a result that some runs have, in the order of the file: in which runs, and what makes them.
PARTS: dict[str, tuple[Callable[[Facts], object], Callable[[Result], Any]]] = {
    "by_stage": (attrgetter("profile.shaped"), shape_figures.divide_by_stage),
    "by_class": (attrgetter("profile.classes"), shape_figures.divide_by_class),
    "by_target": (attrgetter("targets"), target_figures.divide_by_target),
    "by_role": (attrgetter("role_windows"), role_figures.divide_by_role),
    "role_balance": (attrgetter("role_windows"), role_figures.measure_balance),
    "by_turn": (attrgetter("session_turns"), session_figures.divide_by_turn),
    "by_branch": (attrgetter("session_waits"), session_figures.divide_by_branch),
    "sessions": (attrgetter("session_turns"), session_figures.summarize_sessions),
    "critical_path": (attrgetter("session_waits"), session_figures.measure_critical_path),
    "speculation": (attrgetter("speculates"), speculation_figures.measure_speculation),
    "images": (attrgetter("data.images"), image_figures.measure_images),
}


def encode_run(run: Result, detailed: bool = False) -> dict[str, Any]:
    """Encode a run as vLLM's result file has it, ours under one key; `detailed`: every request."""
    # These follow from the facts and are computed again when the file is read.
    derived: dict[str, Callable[[], Any]] = {
        "verdict": lambda: verdict.encode_verdict(run.verdict),
        "steady_state": lambda: steady_state.encode_steady_state(run.steady),
        "objectives": lambda: list(map(objectives.encode_evidence, run.objectives)),
        "reconciliation": lambda: [asdict(row) for row in run.reconciled],
    }
    for name, (is_there, make) in PARTS.items():
        if is_there(run.facts):
            derived[name] = partial(run.derive, make)
    return make_result(run.metrics, run.counted, run.facts, derived, detailed)


def save(run: Result, directory: Path, texts: Mapping[str, str], broken: list[Broken]) -> list[str]:
    """Write a run's directory, the result file last; return what could not be written, in words.

    `texts` are further files by name. Parts that cannot be made are added to `broken`. The journal is deleted
    once arrivals and result are on the disk.
    """
    errors = [_attempt(directory / ARRIVALS, run.records.save)]
    if run.samples.series:
        errors.append(_attempt(directory / SAMPLES, partial(sample_file.save, run.samples)))
    errors += [write_text(directory / name, text) for name, text in texts.items()]
    stored = make_guarded("the result file", lambda: json.dumps(encode_run(run), allow_nan=False), "", broken)
    if not errors[0] and stored:
        errors.append(write_text(directory / RESULT, stored))
        if not errors[-1]:
            for path in journal.list_files(directory / JOURNAL):
                path.unlink(missing_ok=True)
    return [error for error in errors if error]


def write_text(path: Path, text: str) -> str:
    """Write a text file whole or not at all; return "" or why that failed."""
    return _attempt(path, partial(files.write_text, text=text))


def _attempt(path: Path, write: Callable[[Path], None]) -> str:
    """Return "", or why `write` could not write the file."""
    try:
        write(path)
    except OSError as error:
        return f"cannot write {path}: {error.strerror or error}"
    return ""


def check_pair(directory: Path, run: Result) -> None:
    """Raise UsageError if a loaded run's result has other figures than its arrivals give.

    A result of other definitions, and a run without one, is not judged.
    """
    if not (directory / RESULT).exists():
        return
    stored, again = json.loads((directory / RESULT).read_text("utf-8")), encode_run(run)
    if stored[OURS].get("definitions_version") != again[OURS]["definitions_version"]:
        return
    was: Any
    now: Any
    for key in _OF_ARRIVALS:
        was, now = stored.get(key), again.get(key)
        known = isinstance(was, int | float) and isinstance(now, int | float)
        if was != now and not (known and math.isclose(was, now)):
            raise UsageError(
                f"{directory}: {RESULT} and {ARRIVALS} are not of one run: {key} is {was} in the one and "
                f"{now} by the other: take both from the same run"
            )
