"""Held series: records of campaigns, gates, searches, sweeps and ladders, held to the runs that lie below."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict

from loadgen.base.errors import UsageError
from loadgen.base.text import list_first
from loadgen.base.untrusted import read_file_bytes, read_list, read_mapping
from loadgen.facts.run_facts import Cell, Facts
from loadgen.figures.metrics import DEFINITIONS_VERSION
from loadgen.figures.objectives import parse_objectives
from loadgen.plan import profile
from loadgen.report import run_directory
from loadgen.report.result_file import make_strict
from loadgen.report.run_directory import RESULT, Result
from loadgen.run.command.options import Options
from loadgen.settings.validation import ServerSettings
from loadgen.study.gate.gate_record import RECORD as GATE
from loadgen.study.gate.gate_record import read_gate_record
from loadgen.study.gate.gate_verdict import ALPHA, MARGIN
from loadgen.study.importers.clients import loadgen_runs
from loadgen.study.importers.clients.loadgen_runs import CAMPAIGN, LADDER
from loadgen.study.limit_record import LIMIT
from loadgen.study.quality.arm_qualities import QUALITY, REFERENCE_FILE, SCORES, judge_arm, make_arm_id
from loadgen.study.quality.quality_record import Quality
from loadgen.study.series.campaign.arms import list_cells, plan_starts
from loadgen.study.series.campaign.campaign_file import CampaignOptions
from loadgen.study.series.campaign.campaign_store import (
    CELLS,
    RECORD,
    ArmRecord,
    CampaignRecord,
)
from loadgen.study.series.campaign.quality_cells import TASKS, read_tasks
from loadgen.study.series.campaign.steps import Arm
from loadgen.study.series.limit.limit_search import RUNS, make_record_again
from loadgen.study.series.series_store import ATTEMPTS, FAILED
from loadgen.study.series_record import LARGEST_BYTES
from loadgen.study.speed import ladder_rows
from loadgen.study.speed.ladder_rows import BatchRow, BatchTest, DepthTest, encode_batch_row, make_batch_row
from loadgen.study.speed.speed_rows import FORMULAS
from loadgen.study.sweep_record import FINISHED, POINTS, SWEEP
from loadgen.study.verify.proof import (
    OF_SCORES,
    Difference,
    Proof,
    encode_record,
    excuse_version,
    hold_document,
    hold_values,
    naming_damage,
)

DEPTH = "depth.json"
_TEST = re.compile(r"(pp|tg)(\d{1,9})(?: @ d(\d{1,9}))?", re.ASCII)
_NO_SCORES = "`loadgen quality --json` keeps no scores: measure it again, or in a campaign"
_NO_RUN = "it states a speed, and no run of it is there"
_SPEEDS = ("speed_tok_s", "tok_s", "batches")  # keys of rows


def prove_series(directory: Path, place: str) -> Iterator[Proof]:
    """Yield a proof for each record that a directory has itself; raises UsageError if one is damaged.

    Of a search every figure and the answer are computed again, of a ladder every row, of a sweep the
    verdicts, of a campaign the arms' qualities. A run's own quality is not: its proof says so.
    """
    holds: dict[str, Callable[[Path, bytes, Proof], None]] = {
        CAMPAIGN: _hold_campaign,
        GATE: _hold_gate,
        LIMIT: _hold_search,
        SWEEP: _hold_sweep,
        LADDER: _hold_ladder,
        DEPTH: _hold_ladder,
        "quality.json": lambda _path, _raw, held: held.unchecked.append(_NO_SCORES),
    }
    found = [(name, hold) for name, hold in holds.items() if (directory / name).is_file()]
    arms = sorted(path.name for path in (directory / QUALITY).glob("*.json") if path.name != TASKS)
    for name, hold in (*found, *((f"{QUALITY}/{arm}", hold_arm_quality) for arm in arms)):
        held, path = Proof(f"{place}/{name}"), directory / name
        with naming_damage(path):
            raw = read_file_bytes(path, LARGEST_BYTES)
            hold(path, raw, held)
            if (by := read_mapping(json.loads(raw)).get("loadgen")) is not None:
                excuse_version(by, DEFINITIONS_VERSION, held)
        yield held


def _hold_search(path: Path, raw: bytes, held: Proof) -> None:
    """Compare a search's record with its runs: goals, seed, numbers, figures and the answer made again."""
    directory = path.parent
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
    hold_document(raw, encode_record(made.model_dump(mode="json")), LIMIT, held)
    _note_unnamed(directory, f"{RUNS}/[!.]*", [run.directory for run in stored.record.runs], LIMIT, held)


def _hold_sweep(path: Path, raw: bytes, held: Proof) -> None:
    """Compare a sweep's record with one made again of its runs: numbers, seed, repeats, varied settings."""
    directory = path.parent
    stored = loadgen_runs.read_sweep(directory)
    record, found = stored.record, dict[str, list[Facts]]()
    again = record.model_dump(mode="json")
    for number, (point, swept) in enumerate(zip(record.points, stored.points, strict=True)):
        row = again["points"][number]
        row["number"] = number
        if swept.state in FINISHED:
            facts = run_directory.load(directory / swept.directory).facts
            found[point.id], workload = [facts], facts.profile.model_dump(mode="json")
            earlier = [(each.settings, each.serve) for each in record.points[:number]]
            if facts.repeat != point.number:
                row["number"] = facts.repeat
            again["seed"] = facts.seed
            row["repeat"] = earlier.count((point.settings, point.serve))
            row["settings"] = {key: workload.get(key) for key in point.settings}
        if swept.state == "failed":
            held.unchecked.append(f"{SWEEP}: point {number}: why it failed follows from no arrivals")
    hold_document(raw, encode_record(again), SWEEP, held)
    _hold_attempts(directory, [point.id for point in record.points], found, held)
    named = [swept.directory for swept in stored.points if swept.state in FINISHED]
    _note_unnamed(directory, f"{POINTS}/[!.]*", named, SWEEP, held)


def _note_unnamed(directory: Path, pattern: str, named: Iterable[str], file: str, held: Proof) -> None:
    """Add a difference for each run of a pattern that its series' record does not name, and the reverse."""
    inside = {str(each.relative_to(directory)) for each in directory.glob(pattern) if each.is_dir()}
    stated = {os.path.normpath(name) for name in named if name}
    found = [(name, "not named", "a run") for name in sorted(inside - stated)]
    found += [(name, "a run of it", "no such folder") for name in sorted(stated - inside)]
    held.differences += [
        Difference(f"{file}: {name}", says, gives, "directories") for name, says, gives in found
    ]


def _hold_ladder(path: Path, raw: bytes, held: Proof) -> None:
    """Compare rows of a ladder, or of speeds at depth, with those that their runs give, in that order."""
    directory, file = path.parent, path.name
    rows = [read_mapping(row) for row in read_list(read_mapping(json.loads(raw)).get("rows"))]
    listed = [[str(name) for name in (row.get("run"), *read_list(row.get("runs"))) if name] for row in rows]
    most = max((len(read_list(row.get("runs"))) for row in rows), default=0)
    runs_there = {result.parent.name for result in directory.glob(f"[!.]*/{RESULT}")}
    held.differences += [
        Difference(f"{file}: {name}", "not named", "a run", "directories")
        for name in sorted(runs_there.difference(*listed))
    ]
    made, places = list[Mapping[str, Any]](), list[tuple[int, str]]()
    for number, (row, names) in enumerate(zip(rows, listed, strict=True), 1):
        where = f"{file}: row {number}"
        if names and all(_has_run(directory, name) for name in names):
            runs = [run_directory.load(directory / name) for name in dict.fromkeys(names)]
            # Names give the order, not time: --resume measures a failed rung after later ones.
            rung = names[0].partition("-")[0]
            places.append((int(rung) if rung.isdecimal() else 0, names[0]))
            made.append(make_strict(_make_row_again(row, names, runs, len(names) < most, where, held)))
            continue
        made.append(row)
        if names[1:] or any(row.get(key) not in (None, []) for key in _SPEEDS):
            held.differences.append(Difference(where, _NO_RUN, "none"))
    hold_document(raw, json.dumps({"rows": made}, allow_nan=False).encode(), file, held)
    if places != sorted(places):
        held.differences.append(Difference(f"{file}: rows", "in another order", "their own", "runs"))


def _has_run(directory: Path, name: str) -> bool:
    """Whether a name is a folder below the directory, with no `..` in it."""
    inside = Path(name)
    return not inside.is_absolute() and ".." not in inside.parts and (directory / inside).is_dir()


def _make_row_again(
    row: Mapping[str, Any], names: list[str], runs: list[Result], lacks: bool, where: str, held: Proof
) -> Mapping[str, Any]:
    """Make a row again of its runs; of one that this loadgen does not know it is unchecked.

    With `lacks` a batch of it has no run, and what its note says of that is not held.
    """
    if "batches" in row:
        test = BatchTest(**{name: row[name] for name in BatchTest.__struct_fields__})
        batches = list[BatchRow]()
        for name, run in zip(row["runs"], runs, strict=True):
            workload = run.facts.profile.model_dump(mode="json", include=set(test.workload))
            hold_values(test.workload, workload, f"{where}: {name}", held)
            batches.append(make_batch_row(run, test, name))
        given = encode_batch_row(reduce(BatchRow.merge, batches))
        return {**given, "note": row["note"]} if lacks else given
    if (formula := row.get("formula")) in FORMULAS:
        speed = ladder_rows.encode_speed_row(ladder_rows.make_speed_row(runs[0], formula))
        return {**speed, "run": names[0]}
    if found := _TEST.fullmatch(str(row.get("test"))):
        depth = ladder_rows.make_depth_row(runs[0], DepthTest(found[1], int(found[2]), int(found[3] or 0)))
        return {**asdict(depth), "run": names[0]}
    held.unchecked.append(f"{where}: this loadgen has no such row")
    return row


_MOST_CELLS = 100_000
_ATTACHING = {"base_url", "base-url", "host", "port"}  # flags of a server that runs already
_SHOWN = 3  # ids that are named
_LEAST_LETTERS = 3  # of a flag's value that a run is recognised by
_Words = tuple[str, ...]
_Shown = tuple[frozenset[str], frozenset[str]]  # texts
_CHOSEN = "decides what is concluded, and follows from no run"
_QUALITY_FORMAT = Quality.model_fields["format"].default
_MOST_SCORES = 128 << 20  # uncompressed, of a file of them: a stranger's may be small, and much
_NOT_KEPT = "the scores it was measured from are not here: `loadgen bundle --with-text` takes them along"


def _hold_campaign(path: Path, raw: bytes, held: Proof) -> None:
    """Hold a campaign's record to its cells: their names, arms, seeds and number.

    A choice of its author that decides what is concluded (baseline, margin, constraints) is unchecked unless
    it is the default, as are a cell that is missing and the reason of one that failed.
    """
    directory, held.source = path.parent, "arms"
    record = CampaignRecord.parse(raw, path)
    hold_document(raw, encode_record(record.model_dump(mode="json")), RECORD, held)
    planned = _plan_cells(record)
    if list(record.order) != list(planned):
        held.differences.append(
            Difference(f"{RECORD}: order", "other cells", "the cells of its arms", "arms")
        )
    defaults = {name: field.default for name, field in CampaignOptions.model_fields.items()}
    defaults["baseline"] = record.arms[0].checkpoint if record.arms else ""
    for name in ("baseline", "margin", "answer"):
        if (value := getattr(record, name)) != defaults[name]:
            shown = value if isinstance(value, str | float) else "what a checkpoint must hold"
            held.unchecked.append(f"{RECORD}: {name} ({shown}) {_CHOSEN}")
    found = {  # one run of a cell, of a ladder or a search several
        cell.name: [run_directory.load(result.parent).facts for result in sorted(cell.rglob(RESULT))]
        for cell in sorted((directory / CELLS).glob("[!.]*"))
        if cell.is_dir()
    }
    failed = {each.stem: each for each in sorted((directory / FAILED).glob("*.json"))}
    for name, each in found.items():
        _hold_cell(name, each, planned.get(name), record, held)
        if (directory / CELLS / name / LIMIT).is_file() and name in planned:
            search = json.loads(read_file_bytes(directory / CELLS / name / LIMIT, LARGEST_BYTES))
            hold_values(read_mapping(search).get("name"), planned[name].checkpoint, f"{name}/{LIMIT}", held)
    for name, failure in failed.items():
        stated = read_mapping(json.loads(read_file_bytes(failure, LARGEST_BYTES)))
        where = f"{FAILED}/{name}.json"
        hold_values(stated.get("cell"), _dump_cell(planned.get(name), stated), where, held)
        held.unchecked.append(f"{where}: why a cell failed follows from no arrivals")
    named = [(facts.cell, facts) for each in found.values() for facts in each if facts.cell is not None]
    _hold_arms(record, named, held)
    _hold_attempts(directory, planned, found, held)
    known, is_gate = {*found, *failed}, (directory / GATE).is_file()  # a gate ends after any whole pair
    last = max((planned[name].repeat for name in known if name in planned), default=-1)
    if missing := [
        name for name, cell in planned.items() if name not in known and (cell.repeat <= last or not is_gate)
    ]:
        held.unchecked.append(
            f"{RECORD}: {len(missing)} of {len(planned)} cells are not here: {list_first(missing, _SHOWN)}"
        )
    arms = {make_arm_id(arm.checkpoint, arm.server) for arm in record.arms}
    held.differences += [
        Difference(f"{QUALITY}/{each.name}", "an arm's", "no such arm", "arms")
        for each in sorted((directory / QUALITY).glob("*.json"))
        if each.name != TASKS and each.stem not in arms
    ]


def _plan_cells(record: CampaignRecord) -> dict[str, Cell]:
    """Plan a record's cells again, by id, each profile by its name alone; UsageError of over 100,000."""
    if record.repeats * sum(len(arm.profiles) for arm in record.arms) > _MOST_CELLS:
        raise UsageError(f"it has more than {_MOST_CELLS} cells")
    arms = tuple(
        Arm(
            arm.checkpoint,
            arm.server,
            arm.flags,
            Options(base_url="running" if _ATTACHING & set(arm.flags) else None),
            tuple(profile.build({"name": name}) for name in arm.profiles),
            {},
            ServerSettings(),
        )
        for arm in record.arms
    )
    planned = list_cells(plan_starts(record, arms))
    return {each.id: each.cell for each in planned if each.cell is not None}


def _dump_cell(cell: Cell | None, stated: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a planned cell as JSON, with the stated start where the server may have started again."""
    if cell is None:
        return None
    start = str(read_mapping(stated.get("cell")).get("start"))
    again = re.fullmatch(rf"{re.escape(cell.start)}\.\d+", start) is not None
    return {**cell.model_dump(mode="json"), "start": start if again else cell.start}


def _hold_cell(
    name: str, runs: list[Facts], planned: Cell | None, record: CampaignRecord, held: Proof
) -> None:
    """Hold what the runs of a cell state of it, and the seed of one that is a single run, to the plan."""
    if planned is None:
        held.differences.append(Difference(f"{CELLS}/{name}", "a cell", "none that was planned", "arms"))
        return
    for facts in runs:
        stated = {"cell": None if facts.cell is None else facts.cell.model_dump(mode="json")}
        hold_values(stated["cell"], _dump_cell(planned, stated), f"{CELLS}/{name}: loadgen.cell", held)
        if facts.profile.ladder is None and record.limit is None:
            of_run = [facts.seed, facts.seed_chosen, facts.repeat]
            of_plan = [record.seed, record.seed_chosen, planned.repeat]
            hold_values(of_run, of_plan, f"{CELLS}/{name}: seed, whether it was chosen, and repeat", held)


def _hold_arms(record: CampaignRecord, runs: list[tuple[Cell, Facts]], held: Proof) -> None:
    """Hold each run's server to its arm's flags: it shows none that another arm has in their place.

    Two arms of which no flag is shown by all runs of the one, and none of the other, are unchecked.
    """
    shown = dict[tuple[str, str], list[_Shown]]()
    for cell, facts in runs:
        shown.setdefault((cell.checkpoint, cell.server), []).append(_list_shown(facts))
    for pair in combinations(record.arms, 2):
        held.values += 1
        of_own, of_other = (shown.get((arm.checkpoint, arm.server), []) for arm in pair)
        if not (of_own and of_other):
            continue
        sides = [
            (pair[0], of_own, _list_other_flags(*pair)),
            (pair[1], of_other, _list_other_flags(*pair[::-1])),
        ]
        is_shown = False
        for (arm, own, flags), (_, others, strange) in (sides, sides[::-1]):
            is_shown |= any(
                all(_shows(run, words) for run in own) and not any(_shows(run, words) for run in others)
                for words in flags.values()
            )
            wrong = [
                f"{name} {' '.join(words)}"
                for run in own
                if not any(_shows(run, words) for words in flags.values())
                for name, words in strange.items()
                if _is_text(words) and _shows(run, words)
            ]
            if wrong:
                where = f"{CELLS}: a run of {_name(arm)}"
                held.differences.append(Difference(where, "of its arm", f"{wrong[0]}, another's", "flags"))
        if not is_shown:
            names = " and ".join(map(_name, pair))
            held.unchecked.append(f"{RECORD}: no run shows which of {names} it is of")


def _shows(run: _Shown, words: _Words) -> bool:
    """Whether a run shows a flag's value; of a number only how the server was started counts."""
    own = run[0] if _is_text(words) else run[1]
    return all(word in own or any(text.startswith(f"{word}/") for text in own) for word in words)


def _name(arm: ArmRecord) -> str:
    return f"{arm.checkpoint} on {arm.server}"


def _is_text(words: _Words) -> bool:
    """Whether a word of a flag's value is more than a number."""
    return any(len(word) >= _LEAST_LETTERS and re.search("[A-Za-z]", word) for word in words)


def _list_shown(facts: Facts) -> _Shown:
    """List the texts in what a run knows of its server, and those of how that was started, and runs."""
    stated = facts.json()
    started = frozenset(_list_texts([stated[name] for name in ("launched", "as_run")]))
    others = [stated[name] for name in ("server", "targets", "checkpoint", "profile")]
    return started.union(_list_texts(others)), started


def _list_texts(value: Any) -> Iterator[str]:
    """Yield every text and number inside a JSON value, as text; of `--flag=value` the value too."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(inner)
    elif value is not None and str(value):
        yield str(value)
        yield from filter(None, [str(value).rpartition("=")[2]])


def _list_other_flags(own: ArmRecord, other: ArmRecord) -> dict[str, _Words]:
    """List the flags in which an arm differs from another, each with the words of its value."""
    flags = {
        name: tuple(word.rstrip("/") for part in _list_texts(value) for word in part.split())
        for name, value in own.flags.items()
        if other.flags.get(name) != value
    }
    return {name: words for name, words in flags.items() if any(words)}


def _hold_attempts(
    directory: Path, planned: Collection[str], found: Mapping[str, list[Facts]], held: Proof
) -> None:
    """Compare the attempts, if stored, with the runs: of cells with one run, on a server that ran already."""
    path = directory / ATTEMPTS
    if not path.is_file():
        return
    raw = read_file_bytes(path, LARGEST_BYTES)
    counts = read_mapping(json.loads(raw))
    known: dict[str, Any] = {name: count for name, count in counts.items() if name in planned}
    for name, runs in found.items():
        if name in known and len(runs) == 1:
            cell, started = runs[0].cell, runs[0].launched is not None or bool(runs[0].server.simulated)
            attached = not started if cell is None else cell.start == "attached"
            known[name] = runs[0].attempt + 1 if attached else known[name]
    hold_document(raw, encode_record(known), ATTEMPTS, held)


def _hold_gate(path: Path, raw: bytes, held: Proof) -> None:
    """Compare a gate's record with its campaign's, if any; chosen margins, alpha and base are unchecked."""
    directory = path.parent
    record = read_gate_record(directory)
    if record is None or not (directory / RECORD).is_file():
        held.unchecked.append(f"there is no {RECORD} next to it")
        return
    hold_document(raw, (record.model_dump_json(indent=1) + "\n").encode(), GATE, held)
    campaign = CampaignRecord.read(directory)
    arms = [_name(arm) for arm in campaign.arms]
    base = next(
        (_name(arm) for arm in campaign.arms if campaign.baseline in (_name(arm), arm.checkpoint)), ""
    )
    hold_values(record.max_pairs, campaign.repeats, f"{GATE}: max_pairs", held)
    strangers = [name for name in record.arms if name not in arms]
    if strangers:
        held.differences.append(Difference(f"{GATE}: arms", strangers[0], "no such arm", "arms"))
    elif record.arms[0] != base:
        held.unchecked.append(f"{GATE}: the base ({record.arms[0]}) {_CHOSEN}")
    for metric in record.metrics:
        if metric.margin != MARGIN:
            held.unchecked.append(f"{GATE}: the margin of {metric.name} ({metric.margin:g}) {_CHOSEN}")
    if record.alpha != ALPHA:
        held.unchecked.append(f"{GATE}: alpha ({record.alpha:g}) {_CHOSEN}")


def hold_arm_quality(path: Path, raw: bytes, held: Proof) -> None:
    """Compare every value of an arm's quality with what the files of scores next to it give.

    All is unchecked where a file is missing or unreadable; without its task, the number of tokens.
    """
    stated = read_mapping(json.loads(raw))
    folder, arm, held.source = path.parent, path.stem, OF_SCORES
    if (version := stated.get("format")) != _QUALITY_FORMAT:
        held.unchecked.append(
            f"its figures have format {version}, this loadgen {_QUALITY_FORMAT}: use one with that"
        )
        return
    needed = [REFERENCE_FILE, *([] if stated.get("of_reference") is True else [f"{arm}{SCORES}"])]
    if not all((folder / name).is_file() for name in needed):
        held.unchecked.append(_NOT_KEPT)
        return
    try:
        with np.errstate(all="ignore"):
            made = judge_arm(folder, arm, _MOST_SCORES).model_dump(mode="json")
    except UsageError as error:
        held.unchecked.append(str(error).replace(f"{folder}/", ""))
        return
    named = [(task.tokens, task.arm.rpartition(" on ")) for task in read_tasks(folder)]
    tokens = [count for count, (checkpoint, _, server) in named if make_arm_id(checkpoint, server) == arm]
    if tokens:
        made["settings"]["tokens"] = tokens[-1]
    elif "tokens" in read_mapping(stated.get("settings")):
        held.unchecked.append(f"settings.tokens: {TASKS} has no task of it")
        made["settings"]["tokens"] = stated["settings"]["tokens"]
    hold_document(raw, encode_record(made), path.name, held)
