"""Markdown: the report for a pull request or a blog: verdicts, tables, blocks; nothing drawn."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from loadgen.base.errors import LOG_LINE
from loadgen.base.layout import Table, escape_markdown
from loadgen.base.printable import clean_line
from loadgen.study.compare.model import ComparedFigure, ComparedLoad, Line
from loadgen.study.pages import formatting
from loadgen.study.pages.document import Compared, Document
from loadgen.study.pages.formatting import Number
from loadgen.study.pages.run_section import Account

_FENCE = re.compile(r"`{3,}")


def render(document: Document) -> str:
    """The whole report; names are escaped, so that none of them is markup."""
    lines = [f"# {_cell(document.title)}", "", _cell(" · ".join(document.subtitle)), ""]
    verdicts = [f"{formatting.LEVELS[level]} {count} {level}" for level, count in document.levels]
    if document.simulated:
        verdicts.append("SIMULATED: the embedded engine answered, no model ran")
    lines += ["**Verdict**: " + " · ".join(verdicts), ""] * bool(verdicts)
    for title, table in document.compared_limits:
        lines += [f"## {_cell(title)}", "", *_words(table)]
    for search in document.limits:
        lines += [f"## {_cell(search.title)}", "", *(f"- {_cell(words)}" for words in search.words), ""]
        lines += _words(search.runs)
    if document.loads is not None:
        lines += [f"## {_cell(document.loads.title)}", "", *_words(document.loads.words)]
        lines += [*(f"- {_cell(note)}" for note in document.loads.notes), ""]
    for part in document.compared:
        lines += _compared(part)
    if document.fits is not None:
        lines += ["## What fits which memory (GiB)", "", *_words(document.fits)]
    lines += _missing(document)
    if len(document.accounts) > 1:
        lines += _runs(document.accounts)
    for account in document.accounts:
        lines += _run(account, alone=len(document.accounts) == 1)
    return "\n".join(lines).rstrip() + "\n"


def _compared(part: Compared) -> Iterator[str]:
    comparison = part.comparison
    yield from (f"## {_cell(part.title)}", "")
    for line in comparison.lines:
        effect = line.effects.get(comparison.headline)
        if effect is not None:
            lead = _cell(formatting.lead(comparison, line))
            yield f"- {formatting.SYMBOLS[effect.call]} **{effect.call}** {_cell(line.shown_name)}: {lead}"
        for remark in (*formatting.marks(comparison, line), *filter(None, [line.answers]), *line.failures):
            yield f"- {_cell(line.name)}: {_cell(remark.partition(LOG_LINE)[0])}"
    for sentence, names in formatting.common(comparison).items():
        yield f"- {_cell(names)}: {_cell(sentence)}"
    yield ""
    roofline = any(line.roofline is not None for line in comparison.lines)
    titles = ["Checkpoint", *(figure.label for figure in comparison.figures)]
    titles += ["Roofline"] * roofline + ["Runs"]
    yield from _table(titles, [_row(comparison, line, roofline) for line in comparison.lines])
    if comparison.baseline:
        yield (
            f"Compared with {_cell(comparison.baseline)}; ratio = row ÷ baseline with its 95 % confidence "
            f"interval; equivalent is within ± {100 * comparison.margin:g} %."
        )
        yield ""
    for remark in comparison.remarks:
        yield from (_cell(remark), "")
    for title, table in part.tables:
        yield from (f"### {title}", "", *_words(table))


def _row(comparison: ComparedLoad, line: Line, roofline: bool) -> list[str]:
    name = _cell(line.shown_name) + " (baseline)" * (line.name == comparison.baseline)
    cells = [name, *(_figure(line, figure) for figure in comparison.figures)]
    cells += [f"{100 * line.roofline:.0f} %" if line.roofline is not None else "–"] * roofline
    return [*cells, str(len(line.runs))]


def _figure(line: Line, figure: ComparedFigure) -> str:
    summary, effect = line.summaries.get(figure.key), line.effects.get(figure.key)
    if summary is None:
        return "–"
    mean = f"{formatting.written(figure, summary.mean)} {formatting.spread(figure, summary)}".rstrip()
    if effect is None or effect.ratio != effect.ratio:
        return mean
    between = f" ({formatting.interval(effect)})" if formatting.interval(effect) else ""
    ratio = f"{formatting.ratio(effect.ratio)}{between} {formatting.SYMBOLS[effect.call]}".removesuffix(" –")
    return f"{mean}<br>{ratio}"


def _missing(document: Document) -> Iterator[str]:
    if not document.lacks:
        return
    yield from ("## What is missing", "")
    for failed in document.failures:
        cell = failed.cell
        reason, *log = failed.reason.split(LOG_LINE)
        yield f"- {_cell(cell.arm)}, {_cell(cell.profile)}, repeat {cell.repeat + 1}: {_cell(reason)}"
        if log:  # an indented block, in which nothing is markup
            yield from ("", *(f"      {clean_line(line)}" for line in log), "")
    for missing in (*document.points, *document.errors):
        yield f"- {_cell(missing)}"
    yield ""


def _runs(accounts: Sequence[Account]) -> Iterator[str]:
    yield from ("## Runs", "")
    titles = ["Checkpoint", "Load", "Verdict", "Output tok/s", "TTFT ms", "TPOT ms"]
    keys = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms")
    rows = []
    for account in accounts:
        run = account.reported
        turn = f"{account.load}, {account.turn}" if account.turn else account.load
        values = [run.figure(key) for key in keys]
        figures = ["–" if value is None else f"{value:,.2f}" for value in values]
        rows.append([_cell(run.name), _cell(turn), run.level or "–", *figures])
    yield from _table(titles, rows)


def _run(account: Account, alone: bool) -> Iterator[str]:
    if not (alone or account.doubts or account.command):
        return
    turn = f" ({account.turn})" if account.turn and not alone else ""
    summary = f"{account.reported.name}: {account.load}{turn}"
    if alone:
        yield from ("## The run", "")
    else:
        yield from ("<details>", f"<summary>{html.escape(' '.join(summary.split()))}</summary>", "")
    for doubt in account.doubts:
        evidence = f": {doubt['evidence']}" if doubt["evidence"] else ""
        remedy = f" *What to do:* {_cell(doubt['remedy'])}." if doubt["remedy"] else ""
        yield f"- **{_cell(doubt['name'])}** {doubt['severity']}{_cell(evidence)}.{remedy}"
    yield ""
    if account.latencies is not None and account.latencies.rows:
        rows = [[entry.text if isinstance(entry, Number) else _cell(entry) for entry in row]
                for row in account.latencies.rows]  # fmt: skip
        yield from _table(account.latencies.titles, rows)
    yield from _fenced(account.text)
    if account.command:
        yield from ("Run it again:", "", *_fenced(account.command))
    if not alone:
        yield from ("</details>", "")


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(title or ' ' for title in titles)} |"
    yield f"| --- |{' ---: |' * (len(titles) - 1)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _words(table: Table) -> Iterator[str]:
    yield from _table(
        [_cell(column.title) for column in table.columns], [list(map(_cell, row)) for row in table.body]
    )
    for note in table.notes:
        yield from (_cell(note), "")


def _fenced(text: str) -> list[str]:
    """A text in a fence that is longer than any in it."""
    if not text:
        return []
    fence = "`" * (max([2, *map(len, _FENCE.findall(text))]) + 1)
    return [f"{fence}text", text, fence, ""]


def _cell(text: str) -> str:
    """One line of text that is no markup."""
    return escape_markdown(clean_line(" ".join(text.split()))).replace("#", r"\#")
