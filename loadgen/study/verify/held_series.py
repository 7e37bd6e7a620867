"""Held series: the records of searches, sweeps and ladders, held to the runs that lie below them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from loadgen.base.errors import UsageError
from loadgen.base.untrusted import read_file_bytes, read_list, read_mapping
from loadgen.figures.metrics import DEFINITIONS_VERSION
from loadgen.figures.objectives import parse_objectives
from loadgen.report import run_directory
from loadgen.report.result_file import make_strict
from loadgen.report.run_directory import RESULT
from loadgen.study.gate.gate_record import RECORD as GATE
from loadgen.study.importers.clients import loadgen_runs
from loadgen.study.importers.clients.loadgen_runs import CAMPAIGN, LADDER
from loadgen.study.limit_record import LIMIT
from loadgen.study.series.campaign.quality_cells import TASKS
from loadgen.study.series.limit.limit_search import RUNS, make_record_again
from loadgen.study.series.sweep.sweep_run import POINTS
from loadgen.study.speed import ladder_rows
from loadgen.study.speed.batch_rows import BatchRow, BatchTest, encode_batch_row, make_batch_row
from loadgen.study.speed.ladder_rows import DepthTest
from loadgen.study.speed.speed_rows import FORMULAS
from loadgen.study.sweep_record import FINISHED, LARGEST_BYTES, SWEEP
from loadgen.study.verify.held_campaigns import hold_arm_quality, hold_campaign, hold_gate
from loadgen.study.verify.proof import (
    DAMAGE,
    Difference,
    Held,
    Proof,
    encode_record,
    excuse_version,
    hold_document,
    hold_values,
)

DEPTH = "depth.json"
_TEST = re.compile(r"(pp|tg)(\d{1,9})(?: @ d(\d{1,9}))?", re.ASCII)
_NO_RUN = "it states a speed, and no run of it is there"
_SPEEDS = ("speed_tok_s", "tok_s", "batches")  # keys of rows


def prove_series(directory: Path, place: str) -> Iterator[Proof]:
    """Yield a proof for each record that a directory has itself; raises UsageError if one is damaged.

    Of a search every figure and the answer are computed again, of a ladder every row, of a sweep the
    verdicts, of a campaign the arms' qualities. A run's own quality is not: its proof says so.
    """
    holds: dict[str, Callable[[Path, Held], None]] = {
        CAMPAIGN: hold_campaign,
        GATE: hold_gate,
        LIMIT: _hold_search,
        SWEEP: _hold_sweep,
        LADDER: partial(_hold_ladder, file=LADDER),
        DEPTH: partial(_hold_ladder, file=DEPTH),
        "quality.json": _hold_nothing,
    }
    for name, hold in holds.items():
        if (directory / name).is_file():
            yield _prove(f"{place}/{name}", partial(hold, directory), directory / name)
    for path in sorted((directory / "quality").glob("*.json")):
        if path.name != TASKS:
            yield _prove(f"{place}/quality/{path.name}", partial(hold_arm_quality, path))


def _prove(place: str, hold: Callable[[Held], None], path: Path | None = None) -> Proof:
    """Return the proof of one record; of one that names its version, as at `path`, another is excused."""
    held = Held()
    try:
        hold(held)
        by = None if path is None else read_mapping(json.loads(path.read_bytes())).get("loadgen")
        if by is not None:
            excuse_version(by, DEFINITIONS_VERSION, held)
    except (UsageError, *DAMAGE) as error:
        raise UsageError(f"{place} is damaged: {' '.join(str(error).split())[:200]}") from None
    return Proof(place, held.values, tuple(held.differences), tuple(held.unchecked), source=held.source)


def _hold_search(directory: Path, held: Held) -> None:
    stored = loadgen_runs.read_limit(directory)
    if len(stored.run_directories) != sum(bool(run.directory) for run in stored.record.runs):
        raise UsageError("a run of it lies outside")
    for entry in stored.record.runs:
        if entry.directory:
            facts = run_directory.load(directory / entry.directory).facts
            states = [*stored.record.objectives, stored.record.seed, entry.number, stored.record.simulated]
            goals = map(str, parse_objectives(facts.profile.slo))
            gives = [*goals, facts.seed, facts.repeat, bool(facts.server.simulated)]
            hold_values(states, gives, f"{LIMIT}: objectives, seed, number, simulated", held)
    made = make_record_again(stored.record, directory)
    raw = read_file_bytes(directory / LIMIT, LARGEST_BYTES)
    hold_document(raw, encode_record(made.model_dump(mode="json")), LIMIT, held)
    _note_unnamed(directory, RUNS, [run.directory for run in stored.record.runs], LIMIT, held)


def _hold_sweep(directory: Path, held: Held) -> None:
    """Hold each finished point of a sweep to its run: verdict, what was varied, its number and attempts."""
    stored = loadgen_runs.read_sweep(directory)
    record = stored.record
    numbers = [point.number for point in record.points]
    hold_values(numbers, list(range(len(numbers))), f"{SWEEP}: numbers of points", held)
    found = {os.path.relpath(run, directory): run for run in stored.run_directories}
    for point in record.points:
        if point.state in FINISHED:
            run = run_directory.load(found[os.path.normpath(point.directory)])
            workload = run.facts.profile.model_dump(mode="json")
            follows = {
                "number": run.facts.repeat,
                "repeat": [(each.settings, each.serve) for each in record.points[: point.number]].count(
                    (point.settings, point.serve)
                ),
                "attempts": run.facts.attempt + 1,
                "state": FINISHED[run.facts.saturated],
                "verdict": run.verdict.level.value,
                "settings": {key: workload.get(key) for key in point.settings},
            }
            stated = {key: point.model_dump(mode="json")[key] for key in follows}
            hold_values(stated, follows, f"{SWEEP}: point {point.number}", held)
            hold_values(record.seed, run.facts.seed, f"{SWEEP}: seed", held)
        if point.state == "failed":
            held.unchecked.append(f"{SWEEP}: point {point.number}: why it failed follows from no arrivals")
    again = encode_record(record.model_dump(mode="json"))
    hold_document(read_file_bytes(directory / SWEEP, LARGEST_BYTES), again, SWEEP, held)
    named = [point.directory for point in record.points if point.state != "failed"]
    _note_unnamed(directory, POINTS, named, SWEEP, held)


def _note_unnamed(directory: Path, folder: str, named: list[str], file: str, held: Held) -> None:
    """Name the runs in a series' folder that its record leaves out, and what it names elsewhere."""
    inside = {f"{folder}/{each.name}" for each in (directory / folder).glob("[!.]*") if each.is_dir()}
    stated = {os.path.normpath(name) for name in named if name}
    held.differences += [
        Difference(f"{file}: {name}", "not named", "a run", "directories") for name in sorted(inside - stated)
    ]
    held.differences += [
        Difference(f"{file}: {name}", "a run of it", "no such folder", "directories")
        for name in sorted(stated - inside)
    ]


def _hold_ladder(directory: Path, held: Held, file: str) -> None:
    """Hold each row of a ladder, or of speeds at depth, to its runs; one with a speed must have a run."""
    raw = read_file_bytes(directory / file, LARGEST_BYTES)
    stored = read_mapping(json.loads(raw))
    rows = [read_mapping(row) for row in read_list(stored.get("rows"))]
    hold_document(raw, json.dumps({"rows": rows}, allow_nan=False).encode(), file, held)
    most = max((len(read_list(row.get("runs"))) for row in rows), default=0)
    listed = [[name for name in (row.get("run"), *read_list(row.get("runs"))) if name] for row in rows]
    named = {name for names in listed for name in names}
    held.differences += [
        Difference(f"{file}: {path.parent.name}", "not named", "a run", "directories")
        for path in sorted(directory.glob(f"[!.]*/{RESULT}"))
        if path.parent.name not in named
    ]
    first = [names[0] for names in listed if names and _has_run(directory, names[0])]
    began = [run_directory.load(directory / name).facts.started for name in first]
    if began != sorted(began):
        held.differences.append(Difference(f"{file}: rows", "in another order", "their own", "runs"))
    for number, row in enumerate(rows, 1):
        where = f"{file}: row {number}"
        names = [str(name) for name in (row.get("run"), *read_list(row.get("runs"))) if name]
        if not names or not all(_has_run(directory, name) for name in names):
            if names[1:] or any(row.get(key) not in (None, []) for key in _SPEEDS):
                held.differences.append(Difference(where, _NO_RUN, "none"))
        elif "batches" in row:
            _hold_batches(directory, row, len(names) < most, where, held)
        elif (made := _make_row(row, directory / names[0], names[0])) is None:
            held.unchecked.append(f"{where}: this loadgen has no such row")
        else:
            hold_values(row, make_strict(made), where, held)


def _has_run(directory: Path, name: str) -> bool:
    """Whether a name is that of a directory below another."""
    inside = Path(name)
    return not inside.is_absolute() and ".." not in inside.parts and (directory / inside).is_dir()


def _hold_batches(directory: Path, row: Mapping[str, Any], lacks: bool, where: str, held: Held) -> None:
    """Hold a test of several requests at once to its runs: what it is of, its batches, and its note.

    With `lacks` a batch has no run, and what the note says of it is not held.
    """
    test = BatchTest(**{name: row[name] for name in BatchTest.__struct_fields__})
    made: BatchRow | None = None
    for name in row["runs"]:
        run = run_directory.load(directory / name)
        workload = run.facts.profile.model_dump(mode="json", include=set(test.workload))
        hold_values(test.workload, workload, f"{where}: {name}", held)
        batch = make_batch_row(run, test, name)
        made = batch if made is None else made.merge(batch)
    gives = {} if made is None else encode_batch_row(made)
    hold_values(row, make_strict({**gives, "note": row["note"]} if lacks else gives), where, held)


def _make_row(row: Mapping[str, Any], directory: Path, name: str) -> dict[str, Any] | None:
    """Make a ladder's row again of its run; None if it is of no form that is known."""
    if (formula := row.get("formula")) in FORMULAS:
        return ladder_rows.encode_speed_row(
            ladder_rows.make_speed_row(run_directory.load(directory), formula), name
        )
    if found := _TEST.fullmatch(str(row.get("test"))):
        test = DepthTest(found[1], int(found[2]), int(found[3] or 0))
        return {**asdict(ladder_rows.make_depth_row(run_directory.load(directory), test)), "run": name}
    return None


def _hold_nothing(directory: Path, held: Held) -> None:
    """Note that nothing is kept from which a quality follows that a campaign has not measured."""
    held.unchecked.append("`loadgen quality --json` keeps no scores: measure it again, or in a campaign")
