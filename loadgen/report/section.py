"""Section: one part of the report, made without the others and laid out for where it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from loadgen.base.errors import Broken, make_guarded
from loadgen.base.printing import Mark, Screen
from loadgen.base.tables import Column, Table, format_number, format_share, make_table, render_text_table
from loadgen.base.text import WIDTH, clean_text, wrap_text
from loadgen.facts.run_facts import Facts
from loadgen.report.result_block import Layout
from loadgen.report.run_directory import Result


class ReportOptions(msgspec.Struct, frozen=True):
    """The form of a report (long, short, explained) and the screen it is written for."""

    explain: bool
    layout: Layout
    screen: Screen = Screen()
    directory: str = ""  # of a short report: that of the run, where the rest is

    @property
    def short(self) -> bool:
        """Whether the report is a short one."""
        return bool(self.directory)


SectionLines = Callable[[Result, ReportOptions], Iterable[str]]


class Room(IntEnum):
    """When a section's lines are in the short report, which has ten lines and the tables under its block."""

    NEVER = 0
    LAST = 1  # where the others leave room
    FIRST = 2  # where those that are always there leave room
    ALWAYS = 3
    TABLE = 4  # always there, and none of the ten


class Section(msgspec.Struct, frozen=True):
    """A part of the report: its name, functions for its long and short lines, and in which runs it exists.

    Its table stands above its lines, and on the page in the part of that title.
    """

    name: str
    lines: SectionLines = lambda result, options: ()
    is_there: Callable[[Facts], object] = lambda facts: True
    whole_load: bool = False  # True: only in runs that sent the whole load, not that of one shard
    wrapped: bool = True  # False: the long ones are laid out already
    room: Room = Room.NEVER
    short: SectionLines | None = None  # of a short report; None: they are the same
    marks: Callable[[Result], Iterable[Mark]] = lambda result: ()
    page: str = ""  # the title of the part of an HTML page that has its lines and table; "": none
    table: Callable[[Result], Table] | None = None
    most_rows: int = 1000  # of a table in a short report: of more, a line says how many; 0: it has none


class ShownSection(msgspec.Struct, frozen=True):
    """A section laid out for a screen: its entries, each a list of wrapped lines."""

    room: Room
    entries: list[list[str]]
    failures: list[list[str]]  # that it could not be made

    @property
    def lines(self) -> list[str]:
        """The wrapped lines of all entries."""
        return [line for entry in (*self.entries, *self.failures) for line in entry]

    def fitting(self, room: int) -> list[list[str]]:
        """Return, in turn, the entries that fit into `room` lines, from ALWAYS on all; then the failures."""
        fitting = []
        for entry in self.entries:
            if self.room >= Room.ALWAYS or len(entry) <= room:
                fitting.append(entry)
                room -= len(entry)
        return fitting + self.failures


def is_shown(section: Section, result: Result) -> bool:
    """Whether a run has what a section is about."""
    return bool(section.is_there(result.facts)) and (not section.whole_load or result.facts.whole_load)


def make_section(
    section: Section,
    result: Result,
    options: ReportOptions,
    lines: SectionLines | None = None,
    tabled: bool = True,
) -> ShownSection:
    """Lay out a section of a run, its table (if `tabled`) and its own lines or `lines`; never raises."""
    broken: list[Broken] = []
    none: list[list[str]] = []
    screen = options.screen

    def wrap(line: str) -> list[str]:
        return wrap_text(clean_text(line), width=screen.width)

    def draw(table: Table) -> list[str]:
        rows, most = len(table.body), section.most_rows
        if options.short and rows > most:
            return (
                wrap(f"{rows} rows: the table {section.page.lower()} is in the whole report") if most else []
            )
        return clean_text(render_text_table(table, max(WIDTH, screen.width))).splitlines()

    def make() -> list[list[str]]:
        if not is_shown(section, result):
            return []
        marks = [mark._replace(phrase=clean_text(mark.phrase)) for mark in section.marks(result)]
        laid_out = not section.wrapped and lines is None
        every = (lines or section.lines)(result, options)
        cut = [wrap(line) if not laid_out else clean_text(line).split("\n") for line in every]
        if tabled and section.table is not None and (table := section.table(result)).body:
            cut.insert(0, draw(table))
        plain = [row for rows in cut for row in rows]
        painted = iter(screen.paint(plain, marks) if marks else plain)
        return [[next(painted) for _ in rows] for rows in cut]

    entries = make_guarded(section.name, make, none, broken)
    failures = [wrap(f"section {part.name} failed: {part.why}; please report it") for part in broken]
    return ShownSection(section.room, entries, failures)


def list_lines(
    sections: Iterable[Section], result: Result, options: ReportOptions, tabled: bool = True
) -> list[str]:
    """List the lines of sections one after the other, with their tables if `tabled`; never raises."""
    shown = (make_section(section, result, options, tabled=tabled) for section in sections)
    return [line for section in shown for line in section.lines]


class PartColumn(NamedTuple):
    """A column of a table of parts of a run, a row each; one that ends with `share` is in percent."""

    field: str  # of the row
    title: str
    digits: int = 0  # after the point
    short: str = ""  # the title in a terminal; "": the same


def make_part_table(
    title: str, key: str, columns: Sequence[PartColumn], rows: Iterable[tuple[str, Any]]
) -> Table:
    """Make the table of named rows, which stand at a key of the run's JSON."""
    body = []
    for index, (name, row) in enumerate(rows):
        cells = [name]
        for column in columns:
            at, value = f"loadgen.{key}.{index}.{column.field}", getattr(row, column.field)
            is_share = column.field.endswith("share")
            cells.append(format_share(at, value) if is_share else format_number(at, value, column.digits))
        body.append(cells)
    titles = (Column(column.field, column.title, short=column.short) for column in columns)
    return make_table([title, *titles], body)
