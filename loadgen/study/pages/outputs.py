"""Outputs: the forms of a report that were asked for, each written from the same runs, read once."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from loadgen.base import files
from loadgen.base.errors import MeasureError, UsageError
from loadgen.base.files import ANYONES, write_output
from loadgen.base.passages import Panel, find_passage, render_passages
from loadgen.base.printing import Screen, print_text
from loadgen.base.tables import format_csv_table
from loadgen.base.text import clean_line, clean_text, format_json, make_file_name
from loadgen.report import result_block
from loadgen.study import compare_command, limit_record, sweep_record
from loadgen.study.answer import answer
from loadgen.study.answer.answer import CheckpointAnswer, make_answer
from loadgen.study.answer.answer_settings import read_answer_flags
from loadgen.study.compare import limits, model
from loadgen.study.compare.comparison import compare_runs
from loadgen.study.compare.limits import ComparedLimits
from loadgen.study.compare.model import ComparedLoad, ComparisonOptions
from loadgen.study.consistency import ceilings
from loadgen.study.consistency.ceilings import Hardware
from loadgen.study.importers import result_sources
from loadgen.study.pages import load_charts
from loadgen.study.pages.comparison_section import COMPARISON
from loadgen.study.pages.document import (
    Document,
    compose_document,
    render_markdown,
    render_page,
    require_extra,
)
from loadgen.study.quality.arm_qualities import list_quality_figures
from loadgen.study.run_summary import Reported

_PLOT = "plot"
_FIRST_COLUMNS = (
    "name", "load", "requests", "input_len", "output_len", "asked_output_len", "max_concurrency",
    "request_rate_per_s", "campaign", "server", "repeat", "start", "engine", "machine", "power_mode",
    "started", "told_by", "source", "level", "doubts", "memory_bytes", "weight_bytes",
    "joules_per_token", "plan_digest", "duration_s", "shape", "simulated",
)  # fmt: skip


def make_outputs(asked: argparse.Namespace, forms: list[str]) -> Iterator[str]:
    """Read the places once, write the files of each form, and yield what it prints, or "".

    Sources that cannot be read are printed as errors. Raises MeasureError without any run, and UsageError.
    """
    given = _Given(asked, result_sources.read_sources(asked.places))
    for problem in given.read.errors:
        print_text(f"loadgen: {clean_text(problem)}", sys.stderr)
    read = given.read
    if not (read.reported or read.failures or read.sweeps or read.limits):
        raise MeasureError(f"no run in {', '.join(asked.places)}: name run directories, campaigns or files")
    for form in forms:
        text = FORMS[form](given)
        yield text if form == _PLOT else clean_text(text)  # a plot's colours are our own


@dataclass(frozen=True)
class _Given:
    """The command line and what was read for it; compared once for all forms."""

    asked: argparse.Namespace
    read: result_sources.Sources

    @cached_property
    def reported(self) -> list[Reported]:
        """The runs read, with their rooflines where the machine is known."""
        return self._completed[0]

    @cached_property
    def comparisons(self) -> list[ComparedLoad]:
        """The comparisons of all runs, a load each."""
        return compare_runs(self.reported, self._ask, self.read.failures, self._completed[1])

    @cached_property
    def alone(self) -> list[ComparedLoad]:
        """The comparisons of runs that are of no search; [] without such runs and failures."""
        return compare_command.compare_sources(self.read, self._ask) if self.read.limits else self.comparisons

    @cached_property
    def compared_limits(self) -> list[ComparedLimits]:
        return limits.compare_limits(self.read.limits, self._ask)

    @cached_property
    def document(self) -> Document:
        """The whole report, composed once for all forms."""
        read = self.read
        document = compose_document(
            self.reported, self.comparisons, read.failures, read.errors, sweeps=read.sweeps,
            limits=read.limits, compared_limits=self.compared_limits, alone=self.alone,
        )  # fmt: skip
        words = clean_line(self._ask.campaign.description)
        if words and len(self.asked.places) == 1:
            document = replace(document, title=words, subtitle=(document.title, *document.subtitle))
        if self.answer is None:
            return document
        return replace(document, sections=(answer.make_passage(self.answer), *document.sections))

    @cached_property
    def answer(self) -> CheckpointAnswer | None:
        """What to take; None if there are not two checkpoints to choose from."""
        asked = read_answer_flags(self.asked, self._ask.campaign.answer)
        return make_answer(self.alone, self.compared_limits, self._ask, asked)

    @cached_property
    def _ask(self) -> ComparisonOptions:
        hardware, campaign = Hardware.from_flags(self.asked), model.read_campaign_settings(self.asked.places)
        return ComparisonOptions(self.asked.baseline or "", hardware=hardware, campaign=campaign)

    @cached_property
    def _completed(self) -> tuple[list[Reported], list[str]]:
        return ceilings.add_ceilings(self.read.reported, self._ask.machine)

    def list_pictures(self) -> Iterator[tuple[str, tuple[Panel, ...], str]]:
        """Yield (file stem, panels, heading) of every picture, first one of all those of load together.

        The stem begins with the anchor of the comparison or run if there are several.
        """
        document = self.document
        loads = find_passage(document.sections, "loads")
        if loads.panels:
            yield "loads", loads.panels, load_charts.title_loads(loads)
        several = sum(part.style == COMPARISON for part in document.sections) > 1
        parts = [
            (part.key if several and part.style == COMPARISON else "", part.panels)
            for part in document.sections
        ]
        for account in document.accounts:
            anchor = account.anchor if len(document.accounts) > 1 else ""
            parts.append((anchor, find_passage(account.sections, "drawn").panels))
        for anchor, panels in parts:
            for panel in panels:
                stem = f"{anchor}-{panel.key}" if anchor else panel.key
                yield stem, (panel,), ""


def _make_text(given: _Given) -> str:
    """Write comparisons, limits, answer and searches as text; with --layout, each run's block alone."""
    if given.asked.layout:
        layout = result_block.find_layout(given.asked.layout)
        runs = given.reported
        blocks = ((run.name, result_block.render_block(run.figures, layout, run.selected)) for run in runs)
        return "\n".join(f"{name}\n{block}\n" for name, block in blocks)
    several = [each for each in given.compared_limits if len(each.rows) > 1]
    missing = [note for sweep in given.read.sweeps for note in sweep_record.list_unfinished(sweep.points)]
    passages = compare_command.list_passages(given.alone, several, given.answer, missing)
    passages += (limit_record.make_search_passage(each.record, each.shown_name) for each in given.read.limits)
    return render_passages(passages, width=Screen.from_stream(sys.stdout).width)


def _make_json(given: _Given) -> str:
    rows = [
        {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        for row in map(_make_csv_row, given.reported)
    ]
    compared = compare_command.encode_comparison(given.alone, given.compared_limits, given.answer)
    return format_json({"runs": rows, **compared}, indent=1) + "\n"


def _make_plot(given: _Given) -> str:
    with require_extra():
        from loadgen.study.pages import pictures
    document = given.document
    tabled = [part for part in document.sections if part.table and part.style != COMPARISON]
    loads = [panel for section in tabled for panel in section.panels]
    return pictures.render_plots(given.reported, *measure_screen(), loads)


def measure_screen() -> tuple[int, bool]:
    """Return how wide plots for the terminal are, and whether plain: with NO_COLOR or without a terminal."""
    plain = bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()
    return shutil.get_terminal_size().columns, plain


def render_csv(reported: Sequence[Reported]) -> str:
    """Render a header and a row per run as CSV; figures under vLLM's keys in full, empty if unknown."""
    rows = [_make_csv_row(run) for run in reported]
    keys = dict.fromkeys((*_FIRST_COLUMNS, *(key for row in rows for key in row)))
    return format_csv_table(list(keys), rows)


def _make_csv_row(run: Reported) -> dict[str, Any]:
    cell = {} if run.cell is None else run.cell.model_dump()
    started = run.started.isoformat() if run.started else None
    changed = {"load": run.load.name, "started": started, "doubts": " ".join(run.doubts)}
    about = {**cell, **asdict(run.load), **asdict(run), **changed}
    first = {key: about.get(key) for key in _FIRST_COLUMNS}
    return {**run.figures, **first, **({} if run.quality is None else list_quality_figures(run.quality))}


def _write_pictures(given: _Given, form: str) -> str:
    """Write each picture to the directory that was asked for, print how many, and return ""."""
    with require_extra():
        from loadgen.study.pages.pictures import render_picture
    pictures, directory = list(given.list_pictures()), Path(getattr(given.asked, form))
    if not pictures:
        raise UsageError(
            "nothing to plot: the sources have neither request times nor two checkpoints to compare"
        )
    files.create_place(directory, f"--{form}")
    for stem, panels, heading in pictures:
        picture = render_picture(panels, form, heading)
        _write_file(directory / f"{make_file_name(stem)}.{form}", picture, "directory")
    print_text(f"wrote {len(pictures)} pictures to {directory}", sys.stderr)
    return ""


def write_text_output(place: str, text: str) -> str:
    """Write a text to the file `place`, print its size and return ""; return the text if `place` is `-`."""
    if place == "-":
        return text
    path, content = Path(place), clean_text(text).encode()
    done = "replaced" if path.is_file() else "wrote"
    _write_file(path, content, "file")
    print_text(f"{done} {path} ({len(content) / 1e3:,.0f} kB)", sys.stderr)
    return ""


def _write_file(path: Path, content: bytes, noun: str) -> None:
    try:
        write_output(path, lambda file: file.write(content), mode=ANYONES)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another {noun}") from None


FORMS: dict[str, Callable[[_Given], str]] = {
    "text": _make_text,
    "html": lambda given: write_text_output(given.asked.html, render_page(given.document)),
    "markdown": lambda given: write_text_output(given.asked.markdown, render_markdown(given.document)),
    "csv": lambda given: write_text_output(given.asked.csv, render_csv(given.reported)),
    "png": lambda given: _write_pictures(given, "png"),
    "svg": lambda given: _write_pictures(given, "svg"),
    _PLOT: _make_plot,
    "json": _make_json,
}
