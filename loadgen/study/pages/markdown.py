"""Markdown: the report for a pull request or a blog: verdicts, tables, blocks; nothing drawn."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from loadgen.base.errors import LOG_LINE
from loadgen.base.tables import (
    Passage,
    escape_markdown,
    format_number,
    make_table,
    render_markdown_passage,
    render_markdown_table,
)
from loadgen.base.text import clean_line
from loadgen.study.pages.comparison_section import LEVELS
from loadgen.study.pages.document import Document
from loadgen.study.pages.run_section import Account

_FENCE = re.compile(r"`{3,}")


def render_markdown(document: Document) -> str:
    """Render the whole document as Markdown; texts are escaped, so that no name is markup."""
    about = " · ".join(document.subtitle)
    lines = [f"# {escape_markdown(document.title)}", "", escape_markdown(about), ""]
    verdicts = [f"{LEVELS[level]} {count} {level}" for level, count in document.levels]
    if document.simulated:
        verdicts.append(f"SIMULATED: {escape_markdown(document.simulated)}")
    lines += ["**Verdict**: " + " · ".join(verdicts), ""] if verdicts else []
    written = (each for each in document.sections if each.leads or each.lines or each.table is not None)
    lines += map(render_markdown_passage, written)
    lines += _render_missing(document)
    if len(document.accounts) > 1:
        lines.append(_render_runs(document.accounts))
    for account in document.accounts:
        lines += _render_run(account, alone=len(document.accounts) == 1)
    return "\n".join(lines).rstrip() + "\n"


def _render_missing(document: Document) -> Iterator[str]:
    if not document.lacks:
        return
    yield from ("## What is missing", "")
    for failed in document.failures:
        cell = failed.cell
        reason, *log = failed.reason.split(LOG_LINE)
        yield f"* {escape_markdown(f'{cell.arm}, {cell.profile}, repeat {cell.repeat + 1}: {reason}')}"
        if log:  # an indented block, in which nothing is markup
            yield from ("", *(f"      {clean_line(line)}" for line in log), "")
    for missing in (*document.points, *document.errors):
        yield f"* {escape_markdown(missing)}"
    yield ""


def _render_runs(accounts: Sequence[Account]) -> str:
    titles = ("Checkpoint", "Load", "Verdict", "Output tok/s", "TTFT ms", "TPOT ms")
    rows = []
    for account in accounts:
        run = account.reported
        turn = f"{account.load}, {account.turn}" if account.turn else account.load
        values = map(run.figure, ("output_throughput", "mean_ttft_ms", "mean_tpot_ms"))
        rows.append((run.name, turn, run.level or "–", *(format_number("", value) for value in values)))
    return render_markdown_passage(Passage("Runs", table=make_table(titles, rows)))


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
        remedy = f" *What to do:* {escape_markdown(doubt['remedy'])}." if doubt["remedy"] else ""
        name = f"**{escape_markdown(doubt['name'])}** {doubt['severity']}"
        yield f"* {name}{escape_markdown(evidence)}.{remedy}"
    yield ""
    if latencies.table is not None:
        yield render_markdown_table(latencies.table)
    yield from _fence_text(text.text)
    if again:
        yield from ("Run it again:", "", *_fence_text(again.text))
    if not alone:
        yield from ("</details>", "")


def _fence_text(text: str) -> list[str]:
    """Return the lines of a text in a fence longer than any inside; [] for an empty text."""
    if not text:
        return []
    fence = "`" * (max([2, *map(len, _FENCE.findall(text))]) + 1)
    return [f"{fence}text", text, fence, ""]
