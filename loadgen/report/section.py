"""Section: one part of the report, made without the others and laid out for where it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import msgspec

from loadgen.base.errors import Broken, make_each
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
    wrapped: bool = True  # False: the long ones are laid out already
    room: Room = Room.ALWAYS
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


def make_sections(
    sections: Sequence[Section], result: Result, options: ReportOptions, tabled: bool = True
) -> dict[str, ShownSection]:
    """Lay out sections of a run by name, each with its table (if `tabled`) and its lines; never raises."""
    broken: list[Broken] = []
    parts = {each.name: partial(_lay_out, each, result, options, tabled) for each in sections}
    made = make_each(parts, broken)
    width = options.screen.width
    failed = {
        name: [wrap_text(f"section {name} failed: {why}; please report it", width=width)]
        for name, why in broken
    }
    return {
        each.name: ShownSection(each.room, made.get(each.name, []), failed.get(each.name, []))
        for each in sections
    }


def _lay_out(section: Section, result: Result, options: ReportOptions, tabled: bool) -> list[list[str]]:
    """List a section's entries, wrapped and painted, its table first; [] if the run has none of it."""
    if not section.is_there(result.facts):
        return []
    screen, lines = options.screen, (options.short and section.short) or section.lines
    marks = [mark._replace(phrase=clean_text(mark.phrase)) for mark in section.marks(result)]
    if section.wrapped or lines is not section.lines:
        cut = [wrap_text(line, width=screen.width) for line in lines(result, options)]
    else:
        cut = [clean_text(line).split("\n") for line in lines(result, options)]
    tabled = tabled and (section.most_rows > 0 or not options.short)
    if tabled and section.table is not None and (table := section.table(result)).body:
        cut.insert(0, _draw_table(section, table, options))
    plain = [row for rows in cut for row in rows]
    painted = iter(screen.paint(plain, marks) if marks else plain)
    return [[next(painted) for _ in rows] for rows in cut]


def _draw_table(section: Section, table: Table, options: ReportOptions) -> list[str]:
    """Draw a table; in a short report one line takes the place of more than `most_rows` rows."""
    rows, width = len(table.body), options.screen.width
    if not options.short or rows <= section.most_rows:
        return clean_text(render_text_table(table, max(WIDTH, width))).splitlines()
    return wrap_text(f"{rows} rows: the table {section.page.lower()} is in the whole report", width=width)


def fit_lines(shown: Mapping[str, ShownSection], most: int, above: str) -> list[str]:
    """List sections' lines in order; of rooms below ALWAYS while at most `most` lines follow `above`."""
    under = list(shown.values())[list(shown).index(above) + 1 :]
    left = most - sum(len(part.lines) for part in under if part.room is Room.ALWAYS)
    chosen: dict[str, list[list[str]]] = {}
    for name, part in sorted(shown.items(), key=lambda item: -item[1].room):
        chosen[name] = []
        for entry in part.entries:
            if part.room >= Room.ALWAYS or len(entry) <= left:
                chosen[name].append(entry)
                left -= len(entry) * (part.room < Room.ALWAYS)
        chosen[name] += part.failures
        left -= sum(map(len, part.failures)) * (part.room < Room.ALWAYS)
    return [line for name in shown for entry in chosen[name] for line in entry]


def list_lines(
    sections: Sequence[Section], result: Result, options: ReportOptions, tabled: bool = True
) -> list[str]:
    """List the lines of sections one after the other, with their tables if `tabled`; never raises."""
    return [
        line for shown in make_sections(sections, result, options, tabled).values() for line in shown.lines
    ]


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
