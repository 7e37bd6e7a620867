"""Document: the contents of the report, before it has a form, as Markdown and as one HTML page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from loadgen import __version__
from loadgen.base.errors import UsageError
from loadgen.base.passages import Panel, Passage, render_markdown_passage
from loadgen.base.tables import escape_markdown, format_number, make_table
from loadgen.base.text import describe_install, list_first
from loadgen.study import load_table, sweep_record
from loadgen.study.compare import comparison_report
from loadgen.study.compare.comparison_report import FAILED, SYMBOLS, describe_load
from loadgen.study.compare.limits import ComparedLimits
from loadgen.study.compare.model import ComparedLoad
from loadgen.study.compare_command import make_limit_passage, make_missing_passage
from loadgen.study.importers.clients.loadgen_runs import StoredLimit, StoredSweep
from loadgen.study.pages import load_charts
from loadgen.study.pages.colours import DARK, LIGHT, list_pens
from loadgen.study.pages.comparison_section import (
    LEVELS,
    make_compared_section,
    make_limit_sections,
    make_quality_section,
    plot_ladders,
)
from loadgen.study.pages.run_section import Account, make_account
from loadgen.study.run_summary import FailedCell, Reported

_OF_A_RUN = ("doubts", "latencies", "text", "again")  # the sections that Markdown has of each run
MOST_DRAWN = 32  # runs whose own pictures a page holds
_HERE = Path(__file__).parent
_SCRIPTS = ("page.js", "uPlot.LICENSE", "uPlot.iife.min.js", "charts.js")
_STYLES = ("uPlot.min.css", "page.css")
_DIGITS = 5  # more than a screen can show of any axis
_MOST_DIVIDED = 8  # runs of a page that says of each where its time goes: of more, its report as text alone


class Document(msgspec.Struct, frozen=True):
    """The whole report: sections in the order of the page, then each run."""

    title: str
    subtitle: tuple[str, ...]
    sections: tuple[Passage, ...]
    accounts: tuple[Account, ...] = ()
    levels: tuple[tuple[str, int], ...] = ()  # VALID, SUSPECT, INVALID, and of how many runs

    @property
    def compared(self) -> tuple[Passage, ...]:
        """The sections that are comparisons, in order."""
        return tuple(each for each in self.sections if each.style == "comparison")

    @property
    def simulated(self) -> str:
        """A sentence on the runs that the embedded engine answered, with its preset; "" if there are none."""
        presets = [preset for account in self.accounts if (preset := account.reported.simulated)]
        if not presets:
            return ""
        part = "" if len(presets) == len(self.accounts) else f"{len(presets)} of {len(self.accounts)} runs: "
        names = list(dict.fromkeys(presets))
        timing = names[0] if len(names) == 1 else f"{len(names)} presets"
        return f"{part}the embedded engine answered, with the timing of {timing}; no model ran"


def compose_document(
    reported: Sequence[Reported],
    comparisons: Sequence[ComparedLoad] = (),
    failures: Sequence[FailedCell] = (),
    errors: Sequence[str] = (),
    *,
    sweeps: Sequence[StoredSweep] = (),
    limits: Sequence[StoredLimit] = (),
    compared_limits: Sequence[ComparedLimits] = (),
    alone: Sequence[ComparedLoad] | None = None,
) -> Document:
    """Compose the report on runs, sweeps and searches.

    `alone` are the comparisons of runs that are of no search, if not all are: others are shown as loads. The
    charts of 32 runs at most are drawn. A comparison of a single row without failures is left out.
    """
    tabled_runs = [run for comparison in comparisons for line in comparison.lines for run in line.runs]
    places = {id(run): place for place, run in enumerate(tabled_runs)}
    reported = sorted(reported, key=lambda run: places.get(id(run), len(places)))  # the others come last
    drawn = _select_drawn(reported)
    divide = len(reported) <= _MOST_DIVIDED
    accounts = tuple(
        make_account(run, f"run-{number}", number in drawn, divide) for number, run in enumerate(reported, 1)
    )
    swept = comparison_report.arrange_loads(comparisons)
    named = {id(run): line.shown_name for each in comparisons for line in each.lines for run in line.runs}

    def row(run: Reported) -> str:
        return named.get(id(run), run.name)

    of_load = tuple(load_charts.plot_loads(reported, row))
    if not of_load:  # a point for each setting
        of_points = [run for point in swept.points for run in point.line.runs]
        of_load = tuple(load_charts.plot_settings(of_points, row))
    pictures = (*of_load, *plot_ladders(reported, row))
    tabled = Passage("")
    if swept.rows:
        tabled = replace(load_table.make_load_passage(swept.rows, swept.notes), panels=pictures)
    shown = [
        comparison
        for comparison in (swept if alone is None else comparison_report.arrange_loads(alone)).compared
        if len(comparison.lines) > 1 or any(line.failures for line in comparison.lines)
    ]
    compared = [make_compared_section(comparison, number) for number, comparison in enumerate(shown, 1)]
    quality = make_quality_section(comparisons if alone is None else alone, compared_limits)
    rest = () if tabled else pictures
    ladders = all(panel.key.startswith("ladder") for panel in rest)
    title = "Speed over input length" if ladders else "Latency against throughput"
    several = [each for each in compared_limits if len(each.rows) > 1]
    sections = [
        *map(make_limit_passage, several, count(1)),
        *make_limit_sections(limits), tabled, *compared, quality,
        Passage(title, "sweeps", panels=rest),
    ]  # fmt: skip
    if any(len(comparison.lines) > 1 for comparison in shown):
        sections.append(comparison_report.make_fit_passage(shown))
    points = [note for sweep in sweeps for note in sweep_record.list_unfinished(sweep.points)]
    sections.append(make_missing_passage([*points, *errors], failures))
    levels = Counter(run.level for run in reported if run.level)
    campaigns = {run.cell.campaign for run in reported if run.cell is not None}
    names = list(
        dict.fromkeys(run.name for run in reported) or dict.fromkeys(each.shown_name for each in limits)
    )
    listed = " and ".join(names) if 0 < len(names) < 3 else f"{len(names)} checkpoints"
    return Document(
        title=campaigns.pop() if len(campaigns) == 1 else listed,
        subtitle=_make_subtitle(reported),
        sections=tuple(section for section in sections if section),
        accounts=accounts,
        levels=tuple((level, levels[level]) for level in LEVELS if levels[level]),
    )


def _select_drawn(reported: Sequence[Reported]) -> set[int]:
    """Return the numbers, from 1, of up to 32 runs to draw: the first of each row and load, then the second.

    Runs without requests of their own are left out.
    """
    seen: Counter[tuple[str, object]] = Counter()
    turns = []
    for number, run in enumerate(reported, 1):
        if run.run is not None:
            row = (run.name, run.load.name or run.load)
            turns.append((seen[row], number))
            seen[row] += 1
    return {number for _, number in sorted(turns)[:MOST_DRAWN]}


def _make_subtitle(reported: Sequence[Reported]) -> tuple[str, ...]:
    if not reported:
        return ()
    parts = [f"{len(reported)} runs" if len(reported) != 1 else describe_load(reported[0].load)]
    for names in ((run.engine for run in reported), (run.machine for run in reported)):
        parts += filter(None, [list_first([*dict.fromkeys(filter(None, names))], 1)])
    times = sorted(run.started for run in reported if run.started is not None)
    days = dict.fromkeys(f"{time:%Y-%m-%d}" for time in (*times[:1], *times[-1:]))
    return (*parts, *filter(None, [" to ".join(days)]))


def render_markdown(document: Document) -> str:
    """Render the whole document as Markdown; texts are escaped, so that no name is markup."""
    lines = [f"# {escape_markdown(document.title)}", ""]
    lines += [escape_markdown(" · ".join(document.subtitle)), ""] if document.subtitle else []
    verdicts = [f"{LEVELS[level]} {count} {level}" for level, count in document.levels]
    if document.simulated:
        verdicts.append(f"SIMULATED: {escape_markdown(document.simulated)}")
    lines += ["**Verdict**: " + " · ".join(verdicts), ""] if verdicts else []
    lines += [render_markdown_passage(each) for each in document.sections if each.has_words]
    if len(document.accounts) > 1:
        lines.append(_render_runs(document.accounts))
    for account in document.accounts:
        lines += _render_run(account, alone=len(document.accounts) == 1)
    return "\n".join(lines).rstrip() + "\n"


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
    parts = {part.key: part for part in account.sections if part.key in _OF_A_RUN}
    if not (alone or "doubts" in parts or "again" in parts):
        return
    turn = f" ({account.turn})" if account.turn and not alone else ""
    summary = f"{account.reported.name}: {account.load}{turn}"
    if alone:
        yield from ("## The run", "")
    else:
        yield from ("<details>", f"<summary>{escape(' '.join(summary.split()))}</summary>", "")
    yield from (render_markdown_passage(parts[key], level=3) for key in _OF_A_RUN if key in parts)
    if not alone:
        yield from ("</details>", "")


def render_page(document: Document) -> str:
    """Render the document as one HTML page with its styles and scripts; equal documents give equal bytes.

    Raises UsageError without the extra.
    """
    with require_extra():
        import jinja2
        from markupsafe import Markup
    loader, undefined = jinja2.FileSystemLoader(_HERE), jinja2.StrictUndefined
    places = jinja2.Environment(loader=loader, autoescape=True, undefined=undefined)
    places.filters.update(encoded=encode_panel, exact=repr)
    lines = (line.strip() for line in _read_files(_SCRIPTS).splitlines())
    script = "".join(f"{line}\n" for line in lines if line and not line.startswith("//"))
    accounts = document.accounts
    title = accounts[0].headline if len(accounts) == 1 else document.title
    if document.simulated:
        title += (
            " (SIMULATED)" if all(each.reported.simulated for each in accounts) else " (partly SIMULATED)"
        )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return places.get_template("page.html.j2").render(
        document=document,
        alone=len(accounts) == 1,
        title=title,
        version=__version__,
        levels=LEVELS,
        symbols={**SYMBOLS, FAILED: "✗"},
        light=Markup(_render_variables(LIGHT)),  # nosec B704 # constants of ours
        dark=Markup(_render_variables(DARK)),  # nosec B704 # constants of ours
        style=Markup(_read_files(_STYLES)),  # nosec B704 # files of the package
        script=Markup(script),  # nosec B704 # files of the package
        script_digest=digest,
    ) + "\n"  # fmt: skip


def encode_panel(panel: Panel) -> str:
    """Encode a panel's axes, curves and spans as JSON for charts.js: values in five digits, null for NaN."""

    def round_values(values: Any) -> Any:
        if np.ndim(values) == 0:
            return float(values)
        short = (None if value != value else float(f"{value:.{_DIGITS}g}") for value in values.tolist())
        return [int(value) if value is not None and value.is_integer() else value for value in short]

    drawn = msgspec.to_builtins(replace(panel, bars=(), numbers=None), enc_hook=round_values)
    return json.dumps({**drawn, "pens": list_pens(panel)}, separators=(",", ":"), ensure_ascii=False)


def _read_files(names: tuple[str, ...]) -> str:
    contents = ((name, (_HERE / name).read_text("utf-8")) for name in names)
    return "".join(f"/*! uPlot\n{text}*/\n" if "LICENSE" in name else text for name, text in contents)


def _render_variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{role}:{colour};" for role, colour in colours.items())


@contextmanager
def require_extra() -> Iterator[None]:
    """Raise UsageError, with the command that installs it, where a library of the extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "loadgen":
            raise
        raise UsageError(f"this form needs {missing}: {describe_install('report')}") from None
