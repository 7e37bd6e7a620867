"""Markdown: the report for a pull request or a blog: verdicts, tables, blocks; nothing drawn."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from loadgen.base.errors import LOG_LINE
from loadgen.base.text import clean_line
from loadgen.study.pages.comparison_section import LEVELS, SYMBOLS, Compared
from loadgen.study.pages.document import Document
from loadgen.study.pages.page_parts import PageSection
from loadgen.study.pages.run_section import Account
from loadgen.study.tables import Table, escape_markdown

_FENCE = re.compile(r"`{3,}")


def render_markdown(document: Document) -> str:
    """Render the whole document as Markdown; texts are escaped, so that no name is markup."""
    lines = [f"# {_escape(document.title)}", "", _escape(" · ".join(document.subtitle)), ""]
    verdicts = [f"{LEVELS[level]} {count} {level}" for level, count in document.levels]
    if document.simulated:
        verdicts.append(f"SIMULATED: {_escape(document.simulated)}")
    lines += ["**Verdict**: " + " · ".join(verdicts), ""] if verdicts else []
    if (table := document.answer.table) is not None:  # with each interval behind its mean
        body = tuple(
            tuple(f"{cell} {getattr(cell, 'aside', '')}".rstrip() for cell in row) for row in table.body
        )
        lines += _render_section(replace(document.answer, table=replace(table, body=body)))
        lines += [*(f"- {_escape(note)}" for note in document.answer.remarks), ""]
    for title, table in document.compared_limits:
        lines += [f"## {_escape(title)}", "", *_render_words(table)]
    for section in document.sections:
        lines += _render_section(section) if isinstance(section, PageSection) else _render_comparison(section)
    lines += _render_missing(document)
    if len(document.accounts) > 1:
        lines += _render_runs(document.accounts)
    for account in document.accounts:
        lines += _render_run(account, alone=len(document.accounts) == 1)
    return "\n".join(lines).rstrip() + "\n"


def _render_section(section: PageSection) -> Iterator[str]:
    if section.lines or section.table is not None:
        yield from (f"## {_escape(section.title)}", "")
    if section.lines:
        yield from (*(f"- {_escape(line)}" for line in section.lines), "")
    if section.table is not None:
        yield from _render_words(section.table)


def _render_comparison(part: Compared) -> Iterator[str]:
    comparison = part.comparison
    yield from (f"## {_escape(part.title)}", "")
    for row in part.rows:
        line = row.line
        if row.call is not None:
            name, lead = _escape(line.shown_name), _escape(row.lead)
            yield f"- {SYMBOLS[row.call]} **{row.call}** {name}: {lead}"
        for remark in (*row.marks, *filter(None, [line.answers]), *line.failures):
            yield f"- {_escape(line.name)}: {_escape(remark.partition(LOG_LINE)[0])}"
    for sentence, names in part.shared.items():
        yield f"- {_escape(names)}: {_escape(sentence)}"
    yield ""
    roofline = ["Roofline"] if any(row.roofline for row in part.rows) else []
    titles = ["Checkpoint", *(figure.label for figure in comparison.figures), *roofline, "Runs"]
    body = []
    for row in part.rows:
        cells = [_escape(row.line.shown_name) + (" (baseline)" if row.is_baseline else "")]
        for cell in row.cells:
            mean = f"{cell.mean} {cell.spread}".rstrip()
            between = f" ({cell.interval})" if cell.interval else ""
            ratio = f"{cell.ratio}{between} {SYMBOLS[cell.call]}".removesuffix(" –")
            cells.append(f"{mean}<br>{ratio}" if cell.ratio else mean)
        body.append([*cells, *filter(None, [row.roofline]), str(len(row.line.runs))])
    yield from _render_table(titles, body)
    if comparison.baseline:
        yield (
            f"Compared with {_escape(comparison.baseline)}; ratio = row ÷ baseline with its 95 % confidence "
            f"interval; equivalent is within ± {100 * comparison.margin:g} %."
        )
        yield ""
    for remark in comparison.remarks:
        yield from (_escape(remark), "")
    for title, table in part.tables:
        yield from (f"### {title}", "", *_render_words(table))


def _render_missing(document: Document) -> Iterator[str]:
    if not document.lacks:
        return
    yield from ("## What is missing", "")
    for failed in document.failures:
        cell = failed.cell
        reason, *log = failed.reason.split(LOG_LINE)
        yield f"- {_escape(cell.arm)}, {_escape(cell.profile)}, repeat {cell.repeat + 1}: {_escape(reason)}"
        if log:  # an indented block, in which nothing is markup
            yield from ("", *(f"      {clean_line(line)}" for line in log), "")
    for missing in (*document.points, *document.errors):
        yield f"- {_escape(missing)}"
    yield ""


def _render_runs(accounts: Sequence[Account]) -> Iterator[str]:
    yield from ("## Runs", "")
    titles = ["Checkpoint", "Load", "Verdict", "Output tok/s", "TTFT ms", "TPOT ms"]
    keys = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms")
    rows = []
    for account in accounts:
        run = account.reported
        turn = f"{account.load}, {account.turn}" if account.turn else account.load
        values = [run.figure(key) for key in keys]
        figures = ["–" if value is None else f"{value:,.2f}" for value in values]
        rows.append([_escape(run.name), _escape(turn), run.level or "–", *figures])
    yield from _render_table(titles, rows)


def _render_run(account: Account, alone: bool) -> Iterator[str]:
    """Yield a run's doubts, latencies, text and command, folded unless it is `alone` in the report.

    Nothing of one of several that has neither doubts nor a command.
    """
    doubts, latencies, text, again = map(account.section, ("doubts", "latencies", "text", "again"))
    if not (alone or doubts or again):
        return
    turn = f" ({account.turn})" if account.turn and not alone else ""
    summary = f"{account.reported.name}: {account.load}{turn}"
    if alone:
        yield from ("## The run", "")
    else:
        yield from ("<details>", f"<summary>{html.escape(' '.join(summary.split()))}</summary>", "")
    for doubt in doubts.doubts:
        evidence = f": {doubt['evidence']}" if doubt["evidence"] else ""
        remedy = f" *What to do:* {_escape(doubt['remedy'])}." if doubt["remedy"] else ""
        yield f"- **{_escape(doubt['name'])}** {doubt['severity']}{_escape(evidence)}.{remedy}"
    yield ""
    if latencies.table is not None:
        yield from _render_words(latencies.table)
    yield from _fence_text(text.text)
    if again:
        yield from ("Run it again:", "", *_fence_text(again.text))
    if not alone:
        yield from ("</details>", "")


def _render_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(title or ' ' for title in titles)} |"
    yield f"| --- |{' ---: |' * (len(titles) - 1)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _render_words(table: Table) -> Iterator[str]:
    titles = [_escape(column.title) for column in table.columns]
    yield from _render_table(titles, [list(map(_escape, row)) for row in table.body])
    if table.notes:
        yield from (*(f"- {_escape(note)}" for note in table.notes), "")


def _fence_text(text: str) -> list[str]:
    """Return the lines of a text in a fence longer than any inside; [] for an empty text."""
    if not text:
        return []
    fence = "`" * (max([2, *map(len, _FENCE.findall(text))]) + 1)
    return [f"{fence}text", text, fence, ""]


def _escape(text: str) -> str:
    """Return a text on one line, with the signs of Markdown escaped and unprintable letters replaced."""
    return escape_markdown(clean_line(" ".join(text.split()))).replace("#", r"\#")
