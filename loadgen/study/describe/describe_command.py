"""`loadgen data describe`: a workload in figures, words and pictures, and how far it is from another."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from loadgen.base.errors import ExitCode, UsageError
from loadgen.base.json_output import print_json
from loadgen.base.parsing import Parser
from loadgen.base.printing import print_text
from loadgen.base.text import clean_text
from loadgen.features.data.data_command import add_workload_flags, split_options
from loadgen.figures.workloads.fidelity import (
    Fidelity,
    compare_measured,
    format_apart,
    format_value,
    measure_workload,
)
from loadgen.run.command import progress
from loadgen.run.command.options import parse_words
from loadgen.study.describe.load_lines import list_parts, render_load
from loadgen.study.describe.load_panels import DescribedLoad, plot_workloads
from loadgen.study.describe.load_reading import read_load
from loadgen.study.pages.document import Document
from loadgen.study.pages.outputs import render_html, write_text_output
from loadgen.study.pages.page_parts import PageSection
from loadgen.study.tables import cut_middle, make_table

_OWN = ("file", "against", "html", "json", "against_format")
_MOST_LETTERS = 24  # of a name in a legend
_COLUMN = 13  # of a name over a column of text


def describe_parser() -> argparse.ArgumentParser:
    """Make the parser of `loadgen data describe`; flags that are not given are absent from its result."""
    parser = Parser(
        prog="loadgen data describe",
        usage="%(prog)s [FILE] [AGAINST] [--html FILE] [FLAG ...]",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        description="Describe a trace, a data set or a planned workload: how arrivals vary over scales, "
        "lengths, what prefix caches of any size would reuse, sessions. AGAINST is the workload that FILE "
        "was made of: how far FILE is from it.",
        epilog="The other flags are those of `loadgen bench` for a workload, images aside. A trace is read "
        "whole unless one of them selects some of it.",
    )
    add = parser.add_argument
    add("file", nargs="?", metavar="FILE", help="a trace or a data set; without it, random prompts")
    add("against", nargs="?", metavar="AGAINST", help="another one, to compare with")
    add("--html", metavar="FILE", help="write one self-contained page with pictures; - for standard output")
    add("--json", action="store_true", help="print JSON")
    add("--against-format", metavar="NAME", help="--trace-format of AGAINST, where its rows do not show it")
    add_workload_flags(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `loadgen data describe`: print the figures, or write the page; return the exit code 0.

    Raises UsageError. Nothing is sent.
    """
    values = parse_words(describe_parser(), argv, intermixed=True)
    asked = {name: values.pop(name) for name in _OWN if name in values}
    if asked.get("json") and asked.get("html") == "-":
        raise UsageError("--json and --html - both write to standard output: leave out one of them")
    if "against_format" in asked and "against" not in asked:
        raise UsageError("--against-format: name the file that FILE is compared with, too")
    options = split_options(values)
    with progress.display(quiet=False).waiting("reading"):
        described, compared = _describe_files(asked, values, options)
    if asked.get("json"):
        fidelity = None if compared is None else compared.json()
        print_json({"workloads": [each.figures.json() for each in described], "fidelity": fidelity})
    elif asked.get("html") != "-":
        print_text(clean_text(_render_text(described, compared)), sys.stdout)
    if "html" in asked:
        page = render_html(make_describe_document(described, compared))
        print_text(write_text_output(asked["html"], page), sys.stdout, end="")
    return ExitCode.FIGURES


def _describe_files(
    asked: dict[str, Any], values: dict[str, Any], options: dict[str, Any]
) -> tuple[list[DescribedLoad], Fidelity | None]:
    """Measure the file, and the other if there is one, and compare them; raises UsageError."""
    described = [_describe_file(asked.get("file"), values, options)]
    if (against := asked.get("against")) is None:
        return described, None
    same = {name: value for name, value in values.items() if name != "trace_format"}
    form = {"trace_format": asked["against_format"]} if "against_format" in asked else {}
    described.append(_describe_file(against, {**same, **form}, options))
    if described[0].name == described[1].name:
        described = [
            DescribedLoad(name, each.load, each.figures)
            for name, each in zip(("FILE", "AGAINST"), described, strict=True)
        ]
    own, other = ((each.load, each.figures) for each in described)
    return described, compare_measured(other, own)


def _describe_file(file: str | None, values: dict[str, Any], options: dict[str, Any]) -> DescribedLoad:
    """Read and measure a workload; raises UsageError if it has no request."""
    load = read_load(file, values, options)
    if not len(load):
        raise UsageError(f"{load.name} has no request to describe")
    return DescribedLoad(cut_middle(load.name.partition(",")[0], _MOST_LETTERS), load, measure_workload(load))


def _render_text(described: Sequence[DescribedLoad], compared: Fidelity | None) -> str:
    """Return the figures of each workload, and the comparison below them."""
    texts = [render_load(each.figures) for each in described]
    if compared is not None:
        first, second = (cut_middle(each.name, _COLUMN) for each in reversed(described))
        texts.append("\n".join(compared.lines(first, second)))
    return "\n\n".join(texts)


def make_describe_document(described: Sequence[DescribedLoad], compared: Fidelity | None) -> Document:
    """Make the page's document: the comparison if there is one, pictures of all, and each one's figures."""
    names = [each.figures.name.partition(",")[0] for each in described]
    sections = [PageSection("Pictures", "pictures", "Pictures", panels=plot_workloads(described))]
    sections += [
        PageSection(each.figures.name, f"load-{number}", each.name, facts=tuple(list_parts(each.figures))[1:])
        for number, each in enumerate(described, 1)
    ]
    if compared is not None:
        sections.insert(0, _make_fidelity_section(described, compared))
    total = sum(each.figures.requests for each in described)
    return Document(
        title=" against ".join(names),
        subtitle=(f"{total:,} requests", "not sent"),
        sections=tuple(section for section in sections if section),
        accounts=(),
        levels=(),
        failures=(),
        errors=(),
    )


def _make_fidelity_section(described: Sequence[DescribedLoad], compared: Fidelity) -> PageSection:
    """Make the section of how far the first workload is from the second, which it was made of."""
    rows = (
        (figure.label, format_value(figure.first), format_value(figure.second), format_apart(figure))
        for figure in compared.figures
    )
    table = make_table(
        ("", ("first", described[1].name), ("second", described[0].name), "apart"),
        rows,
        notes=compared.remarks,
    )
    title = f"How far {described[0].name} is from {described[1].name}"
    return PageSection(title, "fidelity", "Fidelity", table=table)
