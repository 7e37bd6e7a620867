"""Passages: the parts of a report, made once: words, a table and panels, for a terminal and as Markdown."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.base.errors import LOG_LINE
from loadgen.base.printing import Screen, print_text
from loadgen.base.tables import Table, escape_markdown, render_markdown_table, render_text_table
from loadgen.base.text import WIDTH, clean_line, clean_text, wrap_text

Floats = NDArray[np.floating[Any]]
NAN = float("nan")
UNBOUNDED = "not bounded"  # an interval of which an end lies far off
_WIDE = 16
_FENCE = re.compile(r"`{3,}")
_LABEL, _LONGEST_LABEL = 14, 24  # columns of a verdict or a label before its words; of the longest label


class CurveStyle(StrEnum):
    """How a curve's points are shown."""

    LINE = "line"
    STEPS = "steps"  # y[i] holds from x[i] to x[i + 1]
    POINTS = "points"
    JOINED = "joined"  # points on a line
    MARKS = "marks"  # points by themselves, as large as those on a line


class Curve(msgspec.Struct, frozen=True):
    """Points (x, y) under one name; `labels` stand next to them, `hollow` ones are drawn empty."""

    name: str
    x: Floats
    y: Floats
    form: CurveStyle = CurveStyle.LINE
    labels: tuple[str, ...] = ()
    hollow: tuple[bool, ...] = ()
    of: int | None = None  # the place of the curve whose colour and mark it has, without a name of its own


class Spans(msgspec.Struct, frozen=True):
    """Stretches [begin, end] at heights, all of one kind."""

    name: str
    tone: str  # role of a colour
    begin: Floats
    end: Floats
    at: Floats


class Bar(msgspec.Struct, frozen=True):
    """One bar, its 95 % interval and what would be the best; NaN where there is none."""

    name: str
    value: float
    text: str
    low: float = NAN
    high: float = NAN
    best: float = NAN

    @property
    def interval(self) -> str:
        """The interval as `LOW to HIGH`, in words if it contains 0; "" if there is none."""
        if self.low != self.low:
            return ""
        return UNBOUNDED if self.low <= 0 < self.high else f"{self.low:,.4g} to {self.high:,.4g}"


class Panel(msgspec.Struct, frozen=True):
    """One picture; `band` is a stretch of x that stands out, such as the steady part of a run."""

    key: str  # unique among those drawn together: its file's name
    title: str
    x_label: str
    y_label: str = ""
    curves: tuple[Curve, ...] = ()
    spans: tuple[Spans, ...] = ()
    bars: tuple[Bar, ...] = ()
    x_log: bool = False
    y_log: bool = False
    x_end: float | None = None  # None: as the numbers have it
    y_top: float | None = None
    y_low: float | None = None  # where the y axis begins; None: at 0
    band: tuple[float, float] | None = None
    caption: str = ""
    numbers: Table | None = None  # the same as a table, for readers who cannot see it

    @property
    def reach(self) -> float:
        """What the bars' scale ends at: a little beyond the largest value, interval or best."""
        values = [value for bar in self.bars for value in (bar.value, bar.high, bar.best) if value == value]
        return max([*values, 1e-12]) * 1.02


def is_wide(loads: Floats) -> bool:
    """Whether the highest load is 16 times the lowest or more, so that their axis is logarithmic."""
    return float(loads.max()) >= _WIDE * float(loads.min())


class Passage(msgspec.Struct, frozen=True):
    """A title, and what stands below it in this order, to be written in every form."""

    title: str  # "": what stands in it has no heading
    key: str = ""  # of its anchor on a page, to which the contents link; "": it has none
    menu: str = ""  # its title in the contents; "": the same
    leads: tuple[tuple[str, str], ...] = ()  # verdicts ("": none) and their words: a page's summary has them
    facts: tuple[tuple[str, str], ...] = ()  # labels and their texts
    doubts: tuple[dict[str, str], ...] = ()  # as a result's JSON has them, with a name at least
    lines: tuple[str, ...] = ()
    table: Table | None = None
    style: str = ""  # of the table: `keys` has names of fields, `loads` many columns
    more: tuple[Passage, ...] = ()  # tables of its own, closed on a page until a reader opens them
    panels: tuple[Panel, ...] = ()
    text: str = ""  # to be copied
    remarks: tuple[str, ...] = ()
    folded: bool = False  # closed on a page until a reader opens it

    def __bool__(self) -> bool:
        """Whether anything stands below the title."""
        return bool(self.panels or self.has_words)

    @property
    def has_words(self) -> bool:
        """Whether anything but pictures stands below the title."""
        below = (self.leads, self.facts, self.doubts, self.lines, self.more, self.text, self.remarks)
        return any(below) or (self.table is not None and bool(self.table.body))


def find_passage(passages: Iterable[Passage], key: str) -> Passage:
    """Return the first passage with a key; an empty one where there is none."""
    return next((each for each in passages if each.key == key), Passage(""))


def render_passages(passages: Iterable[Passage], markdown: bool = False, width: int = WIDTH) -> str:
    """Write passages one below another, for a terminal or as Markdown, but those of pictures alone."""
    written = (each for each in passages if each.has_words or not each.panels)
    if markdown:
        return "\n".join(render_markdown_passage(each, level=3) for each in written)
    return "\n".join(render_passage(each, width) for each in written)


def render_passage(passage: Passage, width: int = WIDTH) -> str:
    """Write a passage for a terminal: title, leads and lines, facts, table, remarks, then those in `more`."""
    said = [line for lead in passage.leads for line in _draw_lead(*lead, width)]
    said += _wrap_all(passage.lines, width)
    lines = [*wrap_text(clean_line(passage.title), width=width), *(["=" * width, *said, ""] if said else [])]
    labels = [clean_line(label) for label, _ in passage.facts]
    column = min(max([_LABEL - 2, *map(len, labels)]), _LONGEST_LABEL) + 2
    for label, (_, text) in zip(labels, passage.facts, strict=True):
        lines += wrap_text(f"{label:<{column}}{clean_line(text)}", " " * column, width)
    lines += [] if passage.table is None else render_text_table(passage.table, width).splitlines()
    text = "".join(f"{line}\n" for line in (*lines, *_wrap_all(passage.remarks, width)))
    return "\n".join([text, *(render_passage(each, width) for each in passage.more)])


def _draw_lead(verdict: str, words: str, width: int) -> Iterator[str]:
    """Yield a lead's lines; the end of a server's log stays below them as it was written."""
    first, *log = words.split(LOG_LINE)
    yield from wrap_text(clean_line(f"{verdict:<{_LABEL}}{first}" if verdict else first), width=width)
    yield from (f"      | {clean_line(line).rstrip()}" for line in log)


def _wrap_all(texts: Iterable[str], width: int) -> list[str]:
    return [line for text in texts for line in wrap_text(clean_line(text), width=width)]


def render_markdown_passage(passage: Passage, level: int = 2) -> str:
    """Write a passage as Markdown under a heading of a level: lists, its table, its text, and its remarks."""
    leads = ((verdict, words.partition(LOG_LINE)[0]) for verdict, words in passage.leads)
    said = [f"**{verdict}** {escape_markdown(words)}" if verdict else escape_markdown(words)
            for verdict, words in leads]  # fmt: skip
    blocks = [f"{'#' * level} {escape_markdown(passage.title)}\n"]
    said += [f"**{escape_markdown(label)}** {escape_markdown(text)}" for label, text in passage.facts]
    said += [*map(_write_doubt, passage.doubts), *map(escape_markdown, passage.lines)]
    blocks.append(_write_list(said))
    blocks += [] if passage.table is None else [render_markdown_table(passage.table)]
    if passage.text:  # in a fence longer than any inside
        fence = "`" * (max([2, *map(len, _FENCE.findall(passage.text))]) + 1)
        blocks.append(f"{fence}text\n{passage.text}\n{fence}\n")
    blocks.append(_write_list(map(escape_markdown, passage.remarks)))
    blocks += [render_markdown_passage(each, level + 1) for each in passage.more]
    return "\n".join(filter(None, blocks))


def _write_doubt(doubt: dict[str, str]) -> str:
    """Write a doubt: name, severity, evidence and what to do; the end of a server's log as it was written."""
    evidence, *log = doubt.get("evidence", "").split(LOG_LINE)
    item = " ".join(filter(None, (f"**{escape_markdown(doubt['name'])}**", doubt.get("severity"))))
    item += f": {escape_markdown(evidence)}" if evidence else ""
    item += f". *What to do:* {escape_markdown(doubt['remedy'])}" if doubt.get("remedy") else ""
    block = "".join(f"\n      {clean_line(line)}" for line in log)
    return f"{item}\n{block}\n" if log else f"{item}."


def _write_list(items: Iterable[str]) -> str:
    return "".join(f"* {item}\n" for item in items)


def print_passages(passages: Iterable[Passage], markdown: bool = False) -> None:
    """Print passages on standard output, as wide as its screen, or as Markdown."""
    text = render_passages(passages, markdown, Screen.from_stream(sys.stdout).width)
    print_text(clean_text(text), sys.stdout, end="")
