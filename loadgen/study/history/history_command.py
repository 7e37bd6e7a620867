"""`loadgen history`: the figures of one load on one machine over months, and where they changed.

A measurement is made of runs; a history file has a line of JSON of each, appended whole.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path, PurePath
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from pydantic import AwareDatetime, BaseModel, Field, FiniteFloat, ValidationError

from loadgen.base import files
from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.files import ANYONES, expand_path
from loadgen.base.parsing import Parser, parse_arguments, parse_metadata, suggest_name
from loadgen.base.passages import Curve, CurveStyle, Panel, Passage, print_passages
from loadgen.base.printing import add_json_flag, print_json, print_text
from loadgen.base.tables import Table, cut_middle, format_number, make_table
from loadgen.base.text import clean_line, format_count, list_first
from loadgen.base.untrusted import read_file_head
from loadgen.figures.figure_table import find_named_figure
from loadgen.report.load_identity import Load
from loadgen.study.bundle.reading import is_bundle_file
from loadgen.study.compare.comparability import format_value
from loadgen.study.compare.comparison import INVALID, find_column
from loadgen.study.compare.model import ComparedFigure
from loadgen.study.compare_command import report_unread
from loadgen.study.history.change_points import LEAST_RUNS, MOST_RUNS, ChangePoint, Changes, find_changes
from loadgen.study.importers import json_fields, result_sources
from loadgen.study.pages import outputs
from loadgen.study.pages.document import Document, render_page, require_extra
from loadgen.study.run_summary import Reported
from loadgen.verdict.verdict import Level

_PAGE = "history.html"
_MOST_ROWS = 30  # of the table in a terminal
_HEAD_BYTES = 1 << 16
_ENTRY = b'{"time":'
_USUAL = ("output_throughput", "speed_tok_s", "mean_ttft_ms", "mean_tpot_ms", "p99_itl_ms")
_NAME = 28  # characters of a measurement's name in a table
_TALL = 0.12  # of the spread of the values, above and below them in a picture
_MANY_LABELS = 6
_SHORT_COMMIT = 12  # characters of one that are shown
_HEXADECIMAL = frozenset("0123456789abcdef")
_MOST_BYTES = 64 << 20
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND
_TORN = "its last line was cut off as it was written"
_OTHER_FILE = "write this one to another file"
_COMMIT_KEYS = ("commit", "git_commit", "git_sha", "sha", "revision")  # of --metadata
_LEVELS = (Level.INVALID, Level.SUSPECT, Level.VALID)  # the gravest first
_NAMED = 3


def history_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen history`."""
    parser = Parser(
        prog="loadgen history",
        allow_abbrev=False,
        description="Show the figures of one load on one machine over time, and where they changed. A PLACE "
        "is a file that `loadgen gate --history` wrote, or runs as `loadgen compare` takes them.",
        epilog="docs/history.md describes how a change is found.",
    )
    add = parser.add_argument
    add("places", nargs="+", metavar="PLACE", help="file of `loadgen gate --history`, or runs")
    add("--metric", metavar="KEY,…", default="", help="figures, as tok/s,ttft_p99, or keys of result files")
    add("--name", metavar="NAME", default="", help="show only this checkpoint or label")
    alpha = "share of histories without a change in which one is found (default 0.05)"
    add("--alpha", type=float, metavar="P", default=0.05, help=alpha)
    form = parser.add_argument_group("output")
    form.add_argument("--html", nargs="?", const=_PAGE, metavar="FILE", help=f"page (default {_PAGE})")
    form.add_argument("--plot", action="store_true", help="draw each metric in the terminal")
    add_json_flag(form)
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the history of the places in `argv` and return 0; raises UsageError, as without an extra."""
    given = parse_arguments(history_parser(), argv, intermixed=True)
    if not 0 < given.alpha < 1:
        raise UsageError(f"--alpha {given.alpha:g}: give a probability, as 0.05")
    places = list(given.places)
    if given.html and not given.html.lower().endswith((".html", ".htm")):
        raise UsageError(f"--html {given.html}: name a file that ends in .html")
    entries = read_places(places, given.name)
    wanted = [name.strip() for name in given.metric.split(",") if name.strip()]
    metrics = find_metric_changes(entries, select_metrics(entries, wanted), given.alpha)
    passages = list_history_passages(entries, metrics, given.alpha)
    machine = next((entry.machine for entry in entries if entry.machine), "")
    days = dict.fromkeys(f"{entry.time:%Y-%m-%d}" for entry in (entries[0], entries[-1]))
    facts = (entries[0].load, machine, format_count(len(entries), "measurement"), " to ".join(days))
    subject = tuple(filter(None, facts))
    if given.html:
        page = render_page(Document("History", subject, tuple(passages)))
        outputs.write_text_output(given.html, page)
    if given.json:
        print_json(encode_history(entries, metrics, given.alpha))
    else:
        about = Passage("History", remarks=(", ".join(subject),))
        *others, last = passages
        if last.table is not None and (left := len(last.table.body) - _MOST_ROWS) > 0:
            note = f"{left} older ones are not shown: --json and --html have all"
            last = replace(last, table=replace(last.table, body=last.table.body[left:], notes=(note,)))
        print_passages([about, *others, last])
        if given.plot:
            with require_extra():
                from loadgen.study.pages import pictures
            width, plain = outputs.measure_screen()
            panels = (panel for passage in passages for panel in passage.panels)
            parts = [pictures.render_panel(panel, width, plain) for panel in panels]
            print_text("".join(f"\n{part}" for part in parts), sys.stdout, end="")
    return ExitCode.FIGURES


def read_places(places: Sequence[str], name: str = "") -> list[HistoryEntry]:
    """Read the measurements at the places, in the order of time: history files, else runs.

    What is left out is printed on standard error. Raises UsageError where nothing can be read, and of two
    loads or machines.
    """
    histories = [place for place in places if _is_history(expand_path(place))]
    entries, notes = [entry for place in histories for entry in read_history(place)], list[str]()
    if name:
        entries = [entry for entry in entries if entry.label == name]
    if others := [place for place in places if place not in histories]:
        named = list[str]()
        for place in others:
            path = expand_path(place)
            inside = sorted(path.iterdir()) if path.is_dir() else []
            bundles = [str(each) for each in inside if is_bundle_file(each)]
            named += bundles if bundles and len(bundles) == len(inside) else [place, *bundles]
        read = result_sources.read_sources(named)
        report_unread(read.errors)
        own, notes = list_run_entries(read.reported, name)
        entries += own
    if not entries:
        of = f" of {name}" if name else ""
        raise UsageError(f"no measurement{of} is left: name another label, --name, or another history")
    check_one_subject(entries, Path(places[0]), "name the runs of one")
    report_unread(notes)
    return sorted(entries, key=lambda entry: entry.time)


def _is_history(path: Path) -> bool:
    """Whether a file is empty or has a line that begins as an entry does; False if it cannot be read."""
    try:
        head = read_file_head(path, _HEAD_BYTES)
    except OSError:
        return False
    return not head.strip() or any(line.lstrip().startswith(_ENTRY) for line in head.splitlines())


def list_history_passages(
    entries: Sequence[HistoryEntry], metrics: Sequence[MetricHistory], alpha: float
) -> list[Passage]:
    """List the passages of a history: the changes, a picture of each figure, and every measurement."""
    lines = tuple(describe_changes(metrics, alpha))
    return [
        Passage("Changes", "changes", lines=lines[:-1], remarks=lines[-1:]),
        Passage("Over time", "metrics", panels=tuple(plot_history(metrics))),
        Passage("Measurements", "measurements", table=make_history_table(entries, metrics)),
    ]


class MetricHistory(msgspec.Struct, frozen=True):
    """One figure of the measurements that have it, and where it changed."""

    figure: ComparedFigure
    entries: tuple[HistoryEntry, ...]
    changes: Changes

    def describe(self, point: ChangePoint) -> str:
        """Describe a change in words: how much, from which measurement on, and the interval of that."""
        first = self.entries[point.at]
        better = self.figure.higher_is_faster
        word = ("higher", "lower") if better is None else ("faster", "slower")
        rises = (point.ratio > 1) if better is None else (point.ratio > 1) == better
        step = f"{word[0] if rises else word[1]} ({100 * (point.ratio - 1):+.1f} %)"
        begun = f"{step} from {first.name} on ({_format_time(first)})"
        low, high = self.entries[point.low], self.entries[point.high]
        return f"{begun}, " + (
            "where else is refuted" if low is high else f"between {low.name} and {high.name}"
        )

    def json(self) -> dict[str, Any]:
        """Encode the figure's levels and changes; positions are those in `entries` of the whole."""
        return {
            "label": self.figure.label,
            "higher_is_faster": self.figure.higher_is_faster,
            "measurements": len(self.entries),
            "resemble": self.changes.resemble,
            "levels": list(self.changes.levels),
            "changes": [
                {
                    "ratio": point.ratio,
                    "p": point.p,
                    "first": _identify(self.entries[point.at]),
                    "earliest": _identify(self.entries[point.low]),
                    "latest": _identify(self.entries[point.high]),
                }
                for point in self.changes.points
            ],
        }


def _format_time(entry: HistoryEntry) -> str:
    return f"{entry.time:%Y-%m-%d %H:%M}"


def _identify(entry: HistoryEntry) -> dict[str, str]:
    return {"commit": entry.commit, "label": entry.label, "time": entry.time.isoformat()}


def select_metrics(entries: Sequence[HistoryEntry], wanted: Sequence[str] = ()) -> list[ComparedFigure]:
    """Select the figures that `wanted` names, else those usually shown that are there.

    A name is a key, a title, or one that `loadgen gate` takes. Raises UsageError for one that no entry has.
    """
    keys = list(dict.fromkeys(key for entry in entries for key in entry.figures))
    named = {find_column(key).label.lower(): key for key in keys} | {key: key for key in keys}
    if not wanted:
        usual = [key for key in _USUAL if key in keys] or keys[: len(_USUAL)]
        return [find_column(key) for key in usual]
    chosen = []
    for name in wanted:
        key = named.get(name.lower(), "")
        with contextlib.suppress(ValueError):  # else it is no figure by a name that people use
            key = key or find_named_figure(name)[1]
        if key not in keys:
            raise UsageError(f"no metric {name!r}{suggest_name(name, named)}; there are {', '.join(keys)}")
        chosen.append(key)
    return [find_column(key) for key in dict.fromkeys(chosen)]


def find_metric_changes(
    entries: Sequence[HistoryEntry], figures: Sequence[ComparedFigure], alpha: float
) -> list[MetricHistory]:
    """Find the changes of each figure, all together at level alpha: each at its part (Bonferroni).

    A value that is not above 0 is left out.
    """
    found = []
    for figure in figures:
        own = tuple(entry for entry in entries if entry.figures.get(figure.key, 0.0) > 0)
        series = [entry.figures[figure.key] for entry in own]
        found.append(MetricHistory(figure, own, find_changes(series, alpha / len(figures))))
    return found


def make_history_table(entries: Sequence[HistoryEntry], metrics: Sequence[MetricHistory]) -> Table:
    """Make the table of the measurements: a row each, with a mark at the figures that changed there."""
    verdicts, several = any(entry.verdict for entry in entries), any(entry.runs > 1 for entry in entries)
    columns = ["time", "what", *(["runs"] if several else []), *(["verdict"] if verdicts else [])]
    columns += [metric.figure.label for metric in metrics]
    changed = [
        {id(metric.entries[point.at]): point.ratio for point in metric.changes.points} for metric in metrics
    ]
    body = []
    for entry in entries:
        row = [_format_time(entry), cut_middle(entry.name, _NAME)]
        row += [str(entry.runs)] * several + [entry.verdict] * verdicts
        for metric, ratios in zip(metrics, changed, strict=True):
            key = metric.figure.key
            ratio = ratios.get(id(entry))
            value = metric.figure.scale(entry.figures[key]) if key in entry.figures else None
            cell = format_number(key, value, metric.figure.digits)
            row.append(cell if ratio is None else f"{cell} {'▲' if ratio > 1 else '▼'}")
        body.append(row)
    return make_table(columns, body)


def describe_changes(metrics: Sequence[MetricHistory], alpha: float) -> list[str]:
    """Describe the changes of each figure in a line each, and what limits them."""
    lines = []
    for metric in metrics:
        points, label = metric.changes.points, metric.figure.label
        if len(metric.entries) < LEAST_RUNS:
            count = format_count(len(metric.entries), "measurement")
            lines.append(f"{label}: {count}, too few to find a change: {LEAST_RUNS} or more are needed")
            continue
        lines += [f"{label}: {metric.describe(point)}" for point in points] or [f"{label}: no change"]
        if metric.changes.begin:
            lines.append(f"{label}: only the newest {MOST_RUNS} were examined")
        if metric.changes.resemble:
            lines.append(
                f"{label}: successive measurements resemble each other, so that changes are found later"
            )
    return [
        *lines,
        f"A change is found in {100 * alpha:g} % of histories without one; as often an interval misses it.",
    ]


def plot_history(metrics: Sequence[MetricHistory]) -> Iterator[Panel]:
    """Yield a picture of each figure that has measurements: its values and levels, changes labelled."""
    for metric in metrics:
        if not metric.entries:
            continue
        figure, points = metric.figure, metric.changes.points
        values = np.array([figure.scale(entry.figures[figure.key]) for entry in metric.entries])
        x = np.arange(1, len(values) + 1, dtype=np.float64)
        labels = [""] * len(values)
        for point in points[-_MANY_LABELS:]:
            labels[point.at] = metric.entries[point.at].name
        curves = [Curve("measured", x, values, CurveStyle.MARKS, tuple(labels))]
        edges = [metric.changes.begin, *(point.at for point in points), len(values)]
        levels = [figure.scale(level) for level in metric.changes.levels]
        for low, high, level in zip(edges, edges[1:], levels, strict=False):
            name, of = ("level", None) if low == edges[0] else ("", 1)
            ends = np.array([low + 0.5, high + 0.5])
            curves.append(Curve(name, ends, np.array([level, level]), of=of))
        spread = float(np.ptp(values)) or 0.1 * float(values[0])
        last = points[-1] if points else None
        yield Panel(
            f"history-{figure.key}", f"{figure.label} over time", "measurement", figure.label, tuple(curves),
            y_low=max(0.0, float(values.min()) - _TALL * spread),
            y_top=float(values.max()) + _TALL * spread,
            band=None if last is None else (last.low + 0.5, last.high + 1.5),
            caption="The band is the interval of the last change. The axis does not begin at 0.",
            numbers=make_table(
                ("measurement", "time", figure.label),
                [
                    (entry.name, _format_time(entry), format_number(figure.key, value, figure.digits))
                    for entry, value in zip(metric.entries, values.tolist(), strict=True)
                ],
            ),
        )  # fmt: skip


def encode_history(
    entries: Sequence[HistoryEntry], metrics: Sequence[MetricHistory], alpha: float
) -> dict[str, Any]:
    """Make the JSON object of a history: its subject, the changes by figure, and every measurement."""
    return {
        "machine": next((entry.machine for entry in entries if entry.machine), ""),
        "load": entries[0].load,
        "alpha": alpha,
        "metrics": {metric.figure.key: metric.json() for metric in metrics},
        "entries": [entry.model_dump(mode="json") for entry in entries],
    }


class HistoryEntry(BaseModel, extra="ignore", frozen=True, defer_build=True):
    """One measurement: what was measured, where and when, its figures under vLLM's keys, and its verdict."""

    time: AwareDatetime
    label: str = ""  # of what was measured: a checkpoint, a version; "": none
    commit: str = ""  # that was measured; "": not known
    machine: str = ""  # and its power mode; "": not known
    load: str  # in words, equal for two runs only if their loads were
    figures: dict[str, FiniteFloat] = Field(min_length=1)  # means over the runs
    verdict: str = ""  # of the gate, or the gravest of the runs'
    runs: int = Field(1, ge=1)

    @property
    def name(self) -> str:
        """What a reader finds the measurement by: commit and label, else its time."""
        commit = self.commit[:_SHORT_COMMIT] if _HEXADECIMAL.issuperset(self.commit) else self.commit
        named = clean_line(" ".join(filter(None, (commit, self.label))))
        return named or f"{self.time:%Y-%m-%d %H:%M}"


def append_entry(path: str | Path, entry: HistoryEntry) -> None:
    """Append a measurement to a history file as one whole line, which is on the disk when this returns.

    A missing file is made; a measurement that the file has already is not appended again, as where a gate is
    judged again. A torn last line is removed, and a line on standard error says so. Raises UsageError, and
    leaves the file as it was, where it cannot be written, is no history, or is of another machine or load.
    """
    place = expand_path(path)
    try:
        with os.fdopen(files.open_refusing_link(place, _FLAGS, ANYONES), "r+b", buffering=0) as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            content = file.read(_MOST_BYTES)
            before = read_history(place) if content else []
            check_one_subject([*before, entry], place, _OTHER_FILE)
            if entry in before:
                return
            if find_torn_line(content.decode("utf-8", "replace")):  # as by a machine that lost power
                file.truncate(content.rfind(b"\n") + 1)
                print_text(clean_line(f"loadgen: {place}: {_TORN}: it is removed"), sys.stderr)
            _append_line(file.fileno(), entry)
    except OSError as error:
        raise UnwrittenHistory(
            f"cannot write {place}: {error.strerror or error}; name another history"
        ) from None


def find_torn_line(text: str) -> str:
    """Return a history's last line if it has no end and is only the begin of an entry, else ""."""
    last = text.rpartition("\n")[2]
    try:
        json.loads(last or "{}")
    except ValueError:
        return last if last.startswith("{") else ""
    return ""


def _append_line(handle: int, entry: HistoryEntry) -> None:
    """Append the line of an entry and sync it; an OSError of the disk leaves the file as it was."""
    size = os.fstat(handle).st_size
    line = entry.model_dump_json().encode() + b"\n"
    if size and os.pread(handle, 1, size - 1) != b"\n":  # edited by hand
        line = b"\n" + line
    try:
        if os.write(handle, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # what was written is cut off below
        os.fsync(handle)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, size)
        raise


def read_history(path: str | Path) -> list[HistoryEntry]:
    """Read a history file in the order of time.

    A torn last line is left out. Raises UsageError for an empty file, a bad line, and two loads or machines.
    """
    place = expand_path(path)
    text = json_fields.decode_text(json_fields.read_bounded(place, _MOST_BYTES), place)
    torn = find_torn_line(text)
    text = text.removesuffix(torn)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not (lines or torn):
        raise UsageError(f"{place} is empty: `loadgen gate --history {place}` appends to it")
    entries = []
    for number, line in lines:
        try:
            entries.append(HistoryEntry.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"]))
            why = clean_line(f"{key}: {first['msg']}" if key else first["msg"])
            raise UsageError(f"{place}:{number} is no entry of a history ({why}): remove the line") from None
    check_one_subject(entries, place)
    return sorted(entries, key=lambda entry: entry.time)


def check_one_subject(
    entries: Sequence[HistoryEntry], place: Path, advice: str = "keep a file for each"
) -> None:
    """Raise UsageError if two entries are of two loads, or of two machines that are both known."""
    for what in ("load", "machine"):
        values = list(dict.fromkeys(filter(None, (getattr(entry, what) for entry in entries))))
        if len(values) > 1:
            shown = " and ".join(map(clean_line, values[:2]))
            raise UsageError(f"{place} has more than one {what} ({shown}): {advice}")


class UnwrittenHistory(UsageError):
    """A history cannot be written to."""


def describe_history_load(load: Load) -> str:
    """Describe a load in a line that two runs of ours share only if they were under the same load."""
    known = {name: value for name, value in load.list_facts().items() if value not in (None, "", ())}
    facts = []
    for name, value in known.items():
        if isinstance(value, tuple):  # settings that differ from the defaults
            shown = " ".join(f"{key}={format_value(each)}" for key, each in value)
        else:
            shown = value if isinstance(value, str) else f"{value:g}"
        facts.append(f"{name} {shown}")
    return ": ".join(filter(None, (load.name, ", ".join(facts)))) or "not known"


def find_commit(run: Reported) -> str:
    """Return the commit that a run's `--metadata` names; "" if it names none."""
    named = {} if run.facts is None else parse_metadata(run.facts.metadata)
    return next((named[key] for key in _COMMIT_KEYS if named.get(key)), "")


def make_entry(
    runs: Sequence[Reported], label: str | None = None, commit: str | None = None, verdict: str | None = None
) -> HistoryEntry:
    """Make the measurement of runs of one load, of the means of the figures that all have.

    Label, commit and verdict are the runs' where they are not given: the checkpoint's name, what --metadata
    names, the gravest level. Raises UsageError where no run has a time, or all lack figures.
    """
    times = [run.started for run in runs if run.started is not None]
    held = [run.held for run in runs]
    keys = [key for key in held[0] if all(key in figures for figures in held)] if held else []
    if not times or not keys:
        lacks = "figures" if times else "time"
        raise UsageError(
            f"{runs[0].source if runs else 'nothing'} has no {lacks}: it has no place in a history"
        )
    levels, first = {run.level for run in runs}, runs[0]
    # The place is the simulated engine, or the machine with its power mode; "" if unknown.
    machine = ", ".join(filter(None, (first.machine, first.power_mode)))
    if first.simulated:
        machine = f"simulated: {first.simulated}"
    return HistoryEntry(
        time=min(times, key=_order_time).astimezone(),
        label=first.name if label is None else label,
        commit=find_commit(first) if commit is None else commit,
        machine=machine,
        load=describe_history_load(first.load),
        figures={key: float(np.mean([figures[key] for figures in held])) for key in keys},
        verdict=next((level for level in _LEVELS if level in levels), "") if verdict is None else verdict,
        runs=len(runs),
    )


def list_run_entries(reported: Iterable[Reported], name: str = "") -> tuple[list[HistoryEntry], list[str]]:
    """List the measurements of runs in the order of time, and lines on the runs that are left out.

    Runs of one directory of a campaign are one measurement, and successive ones of one commit; any other run
    is one by itself. With `name` other checkpoints are left out. Raises UsageError where a campaign has
    several checkpoints, and where nothing is left.
    """
    runs = [run for run in reported if not name or run.name == name]
    apart: list[tuple[str, Callable[[Reported], bool]]] = [
        (INVALID, lambda run: run.level == INVALID),
        ("without a time", lambda run: run.started is None),
        ("ended early", lambda run: run.saturated),
    ]
    notes = []
    for why, is_out in apart:
        if out := [run.source for run in runs if is_out(run)]:
            notes.append(f"left out, {why}: {list_first(out, _NAMED)}")
        runs = [run for run in runs if not is_out(run)]
    if not runs:
        raise UsageError(
            f"no run{f' of {name}' if name else ''} is left: {'; '.join(notes) or 'name others'}"
        )
    runs.sort(key=lambda run: _order_time(run.started))
    groups = [list(group) for _, group in groupby(runs, key=_identify_measurement)]
    for group in groups:
        names = list(dict.fromkeys(run.name for run in group))
        if len(names) > 1:
            raise UsageError(
                f"one measurement has several checkpoints ({list_first(names, _NAMED)}): name one, --name"
            )
    return [make_entry(group) for group in groups], notes


def _identify_measurement(run: Reported) -> tuple[str, ...]:
    """Return what the runs of one measurement share: the campaign's directory, or a commit."""
    if run.cell is not None:
        return run.cell.campaign, str(PurePath(run.source).parent.parent)
    commit = find_commit(run)
    return (commit, run.name) if commit else (run.source,)


def _order_time(time: datetime | None) -> float:
    return 0.0 if time is None else time.timestamp()
