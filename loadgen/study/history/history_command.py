"""`loadgen history`: the figures of one load on one machine over months, and where they changed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.files import expand_path
from loadgen.base.json_output import add_json_flag, print_json
from loadgen.base.parsing import Parser, parse_arguments
from loadgen.base.printing import print_text
from loadgen.base.text import clean_text, format_count
from loadgen.base.untrusted import read_file_head
from loadgen.study.bundle.reading import is_bundle_file
from loadgen.study.compare_command import report_unread
from loadgen.study.history.history_file import HistoryEntry, check_one_subject, read_history
from loadgen.study.history.history_report import (
    MetricHistory,
    describe_changes,
    encode_history,
    find_metric_changes,
    make_history_table,
    plot_history,
    select_metrics,
    wrap_lines,
)
from loadgen.study.history.run_entries import list_run_entries
from loadgen.study.importers import result_sources
from loadgen.study.pages import outputs
from loadgen.study.pages.document import Document
from loadgen.study.pages.page_parts import PageSection
from loadgen.study.tables import render_text_table

_PAGE = "history.html"
_MOST_ROWS = 30  # of the table in a terminal
_HEAD_BYTES = 1 << 16
_ENTRY = b'{"time":'


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
    add("places", nargs="+", metavar="PLACE")
    add("--metric", metavar="KEY,…", default="", help="as tok/s,ttft_p99, or a key of result files")
    add("--name", metavar="NAME", default="", help="only this checkpoint or label")
    alpha = "share of histories without a change in which one is found (default 0.05)"
    add("--alpha", type=float, metavar="P", default=0.05, help=alpha)
    form = parser.add_argument_group("output")
    form.add_argument("--html", nargs="?", const=_PAGE, metavar="FILE", help=f"a page (default {_PAGE})")
    form.add_argument("--plot", action="store_true", help="a picture of each metric in the terminal")
    add_json_flag(form)
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the history of the places in `argv` and return 0; raises UsageError."""
    given = parse_arguments(history_parser(), argv, intermixed=True)
    if not 0 < given.alpha < 1:
        raise UsageError(f"--alpha {given.alpha:g}: give a probability, as 0.05")
    places = list(given.places)
    if given.html and not given.html.lower().endswith((".html", ".htm")):
        raise UsageError(f"--html {given.html}: name a file that ends in .html")
    entries = read_places(places, given.name)
    wanted = [name.strip() for name in given.metric.split(",") if name.strip()]
    metrics = find_metric_changes(entries, select_metrics(entries, wanted), given.alpha)
    if given.html:
        text = outputs.render_html(_make_document(entries, metrics, given.alpha))
        outputs.write_text_output(given.html, text)
    if given.json:
        print_json(encode_history(entries, metrics, given.alpha))
    else:
        print_text(clean_text(_render_text(entries, metrics, given.alpha)), sys.stdout, end="")
        if given.plot:
            print_text(_render_plots(metrics), sys.stdout, end="")
    return ExitCode.FIGURES


def read_places(places: Sequence[str], name: str = "") -> list[HistoryEntry]:
    """Read the measurements at the places, in the order of time: history files, else runs.

    What is left out is printed on standard error. Raises UsageError where nothing can be read, and of two
    loads or machines.
    """
    files = [place for place in places if _is_history(expand_path(place))]
    entries, notes = [entry for place in files for entry in read_history(place)], list[str]()
    if name:
        entries = [entry for entry in entries if entry.label == name]
    if others := [place for place in places if place not in files]:
        read = result_sources.read_sources([path for place in others for path in _list_bundles(place)])
        report_unread(read.errors)
        own, notes = list_run_entries(read.reported, name)
        entries += own
    if not entries:
        of = f" of {name}" if name else ""
        raise UsageError(f"no measurement{of} is left: name another label, --name, or another history")
    check_one_subject(entries, Path(places[0]), "name the runs of one")
    report_unread(notes)
    return sorted(entries, key=lambda entry: entry.time)


def _list_bundles(place: str) -> list[str]:
    """List the bundles that lie in a directory, after it if it has anything else; other places alone."""
    path = expand_path(place)
    inside = sorted(path.iterdir()) if path.is_dir() else []
    bundles = [str(each) for each in inside if is_bundle_file(each)]
    return bundles if bundles and len(bundles) == len(inside) else [place, *bundles]


def _is_history(path: Path) -> bool:
    """Whether a file is empty or has a line that begins as an entry does; False if it cannot be read."""
    try:
        head = read_file_head(path, _HEAD_BYTES)
    except OSError:
        return False
    return not head.strip() or any(line.lstrip().startswith(_ENTRY) for line in head.splitlines())


def _list_subject(entries: Sequence[HistoryEntry]) -> tuple[str, ...]:
    """List what a history is of: load, machine, count and days."""
    machine = next((entry.machine for entry in entries if entry.machine), "")
    days = dict.fromkeys(f"{entry.time:%Y-%m-%d}" for entry in (entries[0], entries[-1]))
    parts = (entries[0].load, machine, format_count(len(entries), "measurement"), " to ".join(days))
    return tuple(filter(None, parts))


def _render_text(entries: Sequence[HistoryEntry], metrics: Sequence[MetricHistory], alpha: float) -> str:
    """Render subject, the newest measurements and the changes for a terminal."""
    table = make_history_table(entries, metrics)
    left = len(table.body) - _MOST_ROWS
    if left > 0:
        note = f"{left} older ones are not shown: --json and --html have all"
        table = replace(table, body=table.body[left:], notes=(note,))
    subject, lines = wrap_lines([", ".join(_list_subject(entries))]), describe_changes(metrics, alpha)
    return f"{subject}\n{render_text_table(table)}\n{wrap_lines(lines)}"


def _make_document(
    entries: Sequence[HistoryEntry], metrics: Sequence[MetricHistory], alpha: float
) -> Document:
    """Make the page: the changes, the pictures, and every measurement."""
    pictures, table = tuple(plot_history(metrics)), make_history_table(entries, metrics)
    lines = tuple(describe_changes(metrics, alpha))
    sections = (
        PageSection("Changes", "changes", menu="Changes", lines=lines[:-1], remarks=lines[-1:]),
        PageSection("Over time", "metrics", menu="Over time", panels=pictures),
        PageSection("Measurements", "measurements", menu="Measurements", table=table, style="words"),
    )
    return Document("History", _list_subject(entries), sections, (), (), (), ())


def _render_plots(metrics: Sequence[MetricHistory]) -> str:
    """Render a picture of each metric in characters; raises UsageError without the extra `report`."""
    with outputs.require_extra():
        from loadgen.study.pages.pictures import terminal_plots
    width, plain = outputs.measure_screen()
    parts = [terminal_plots.render_panel(panel, width, plain) for panel in plot_history(metrics)]
    return "".join(f"\n{part}" for part in parts)
