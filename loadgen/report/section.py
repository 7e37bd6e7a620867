"""Section: one part of the report, made without the others and laid out for where it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from loadgen.base.errors import Broken, make_guarded
from loadgen.base.printing import Mark, Screen
from loadgen.base.text import align_cells, clean_text, format_cell_ms, wrap_text
from loadgen.facts.run_facts import Facts
from loadgen.report.result_block import Layout
from loadgen.report.run_directory import Result


class ReportOptions(msgspec.Struct, frozen=True):
    """The form of a report (long, short, explained) and the screen it is written for."""

    explain: bool
    layout: Layout
    screen: Screen = Screen()
    directory: str = ""  # that of the run, where the rest of a short report is


SectionLines = Callable[[Result, ReportOptions], Iterable[str]]


class Room(IntEnum):
    """When a section's lines are in the short report, which has ten lines and the tables under its block."""

    NEVER = 0
    LAST = 1  # where the others leave room
    FIRST = 2  # where those that are always there leave room
    ALWAYS = 3
    TABLE = 4  # always there, and none of the ten


class Section(msgspec.Struct, frozen=True):
    """A part of the report: its name, functions for its long and short lines, and in which runs it exists."""

    name: str
    lines: SectionLines
    is_there: Callable[[Facts], object] = lambda facts: True
    whole_load: bool = False  # True: only in runs that sent the whole load, not that of one shard
    wrapped: bool = True  # False: the long ones are laid out already
    room: Room = Room.NEVER
    short: SectionLines | None = None  # of a short report; None: they are the same
    marks: Callable[[Result], Iterable[Mark]] = lambda result: ()
    page: str = ""  # the title of the part of an HTML page that has its lines; "": none


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


def make_section(
    section: Section, result: Result, options: ReportOptions, lines: SectionLines | None = None
) -> ShownSection:
    """Lay out a section of a run, from its own lines or from `lines`; never raises."""
    broken: list[Broken] = []
    none: list[list[str]] = []
    screen = options.screen

    def wrap(line: str) -> list[str]:
        return wrap_text(clean_text(line), width=screen.width)

    def make() -> list[list[str]]:
        if not section.is_there(result.facts) or (section.whole_load and not result.facts.whole_load):
            return []
        marks = [mark._replace(phrase=clean_text(mark.phrase)) for mark in section.marks(result)]
        laid_out = not section.wrapped and lines is None
        every = (lines or section.lines)(result, options)
        cut = [wrap(line) if not laid_out else clean_text(line).split("\n") for line in every]
        painted = iter(screen.paint([row for rows in cut for row in rows], marks))
        return [[next(painted) for _ in rows] for rows in cut]

    entries = make_guarded(section.name, make, none, broken)
    failures = [wrap(f"section {part.name} failed: {part.why}; please report it") for part in broken]
    return ShownSection(section.room, entries, failures)


MS = "ms"


class PartColumn(NamedTuple):
    """A column of a table of parts of a run, a row each: as a page has it, and in the report's text."""

    field: str  # of the row
    title: str
    digits: int  # after the point, on a page
    width: int  # in text; 0: it is not there
    form: str = "{}"  # of the text; MS: as all cells of milliseconds
    short: str = ""  # title of the text; "": the same


def draw_parts(
    title: str, width: int, columns: Sequence[PartColumn], rows: Iterable[tuple[str, Any]], gap: str = ""
) -> list[str]:
    """Draw a table of rows after their names; a name over `width` has a line of its own; [] if empty."""
    shown = [column for column in columns if column.width]
    widths = (-width, *(column.width for column in shown))
    lines = []
    for name, row in rows:
        if len(name) > width:
            lines.append(name)
        cells = [name if len(name) <= width else ""]
        for column in shown:
            value = getattr(row, column.field)
            if value is None or value != value:
                cells.append("-")
            else:
                cells.append(format_cell_ms(value) if column.form == MS else column.form.format(value))
        lines.append(align_cells(cells, widths, gap))
    titles = (title, *(column.short or column.title for column in shown))
    return [align_cells(titles, widths, gap), *lines] if lines else []
